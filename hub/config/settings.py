"""Sources of settings: the call, the environment, or a hub.toml.

Values are not validated here; only names are checked. `hub.config.options` holds the schema.
"""

from __future__ import annotations

import importlib.metadata as metadata
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hub.config.forms import (
    CONFIG_FILE,
    KEYS,
    MOVED,
    OPTIONS,
    PATHS,
    PREFIX,
    TABLES,
    keys_of,
    parse_text,
    place_of,
    variable_of,
)
from hub.config.suggest import did_you_mean, is_misspelt
from hub.config.trust import distrust_file
from hub.errors import OptionError, warn_user, words_of

_RESERVED = ("disc", "mdla")
"""First-party plugins whose settings are accepted even if the plugin is not installed."""
SLOW_IMPORTS = "HUB_SLOW_IMPORTS"
"""Variable that tells child processes which plugins took too long to import."""
_PROGRESS = "HUB_PROGRESS"
_PROGRESS_FORMS = ("live", "plain", "off")
"""As in `hub.report.progress`, which reads the variable."""
_OTHER_VARIABLES = frozenset({_PROGRESS, SLOW_IMPORTS})
"""Variables that the hub reads elsewhere and that are not options."""
_SERVICE = re.compile(r"HUB_(SERVICE|PORT)(_\w+)?")
"""Variables that Kubernetes sets in every container next to a service named "hub": its address."""
_warned: set[str] = set()
"""Files and variables that this process has warned about: settings are read for every model."""
VARIABLES: Mapping[str, str] = {variable_of(key): key for key in KEYS}
"""Setting of each variable."""
_NAMES = (*VARIABLES, _PROGRESS)
"""Variables that a user may set."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as given, and its origin."""

    value: Any
    origin: str


def working_folder() -> Path:
    """Return the working directory; if it was removed, the root folder, above which no settings can be looked for."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")


def from_call(given: Mapping[str, Any] | None, origin: str, cwd: Path) -> Mapping[str, Setting]:
    """Return the explicit settings of one model. Raises OptionError for an unknown name."""
    if given is not None and not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise OptionError(f"{origin} must be a mapping, got {type(given).__name__}", hint='write options={"threads": 2}')
    return dict(_flat(given or {}, origin, cwd, OPTIONS))


def from_flags(flags: Mapping[str, str | None], origin: str, cwd: Path) -> Mapping[str, Setting]:
    """Return the settings of tables that are given as flags of a command; None for one that is not. Raises OptionError."""
    return {
        key: Setting(_anchored(key, parse_text(key, text, origin), cwd), origin)
        for key, text in flags.items()
        if text is not None
    }


def from_environment(environ: Mapping[str, str], cwd: Path) -> Mapping[str, Setting]:
    """Return the settings in `HUB_*` variables. Raises OptionError for a misspelt variable or unreadable text.

    That goes for `HUB_PROGRESS`, too, which is no option and is read elsewhere.

    Other programs' variables begin with `HUB_` too: what is not near the name of an option is ignored, with one warning.
    """
    if (form := environ.get(_PROGRESS, "").strip().lower()) and form not in _PROGRESS_FORMS:
        raise OptionError(f"{_PROGRESS} is {form!r}", hint=f"the words are {', '.join(_PROGRESS_FORMS)}")
    found: dict[str, Setting] = {}
    foreign: list[str] = []
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in _OTHER_VARIABLES or not environ[variable].strip():
            continue
        if (key := VARIABLES.get(variable)) is not None:
            value = parse_text(key, environ[variable], variable)
            found[key] = Setting(_anchored(key, value, cwd), variable)
        elif owner := _owner(variable):
            name = variable.removeprefix(f"{PREFIX}{owner.upper()}_").lower()
            found[f"{owner}.{name}"] = Setting(environ[variable].strip(), variable)
        elif _is_meant(variable):
            raise _unknown_variable(variable)
        elif not _SERVICE.fullmatch(variable):
            foreign.append(variable)
    if foreign:
        text = f"ignored, since no option of the hub has such a name: {', '.join(foreign)}"
        _warn_once("variables", f"{text}\n  hint: options are {', '.join(VARIABLES)}")
    return found


def _is_meant(variable: str) -> bool:
    """Return whether an unknown variable was meant for the hub: a former option, a table's key, or a misspelling."""
    name = variable.removeprefix(PREFIX).lower()
    is_of_table = any(name.startswith(f"{table}_") for table in TABLES)
    return name in MOVED or is_of_table or is_misspelt(variable, _NAMES, ignoring=PREFIX)


def of_backend(name: str, settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Return the settings of one backend by their own keys; among all settings, they are named "NAME.KEY"."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): setting for key, setting in settings.items() if key.startswith(prefix)}


def is_variable(origin: str) -> bool:
    """Return whether a setting came from the environment."""
    return origin.startswith(PREFIX)


def folder_of(origin: str) -> Path | None:
    """Return the folder of the hub.toml that a setting came from; None if it came from elsewhere."""
    path = Path(origin)
    return path.parent if path.is_absolute() and path.name == CONFIG_FILE else None


def why_not_named(backend: str) -> str:
    """Return why no backend may have this name: its settings would be mistaken for the hub's; "" if one may."""
    if backend in TABLES:
        return f"no backend can be named {backend!r}: hub.toml has a table [{backend}] of the hub's own settings"
    if backend in OPTIONS:
        return f"no backend can be named {backend!r}: the hub has an option of this name"
    return ""


def _owner(variable: str) -> str:
    """Return the plugin that a variable's setting belongs to, preferring the longest name; "" for none."""
    names = (name for name in _plugins() if variable.startswith(f"{PREFIX}{name.upper()}_"))
    return max(names, key=len, default="")


def _plugins() -> tuple[str, ...]:
    """Return the names that settings of backends may have; a plugin whose name is the hub's own has none."""
    names = {*_RESERVED, *(point.name for point in metadata.entry_points(group="hub"))}
    return tuple(sorted(name for name in names if not why_not_named(name)))


def from_file(cwd: Path, home: Path | None) -> Mapping[str, Setting]:
    """Return the settings in the nearest hub.toml; relative paths are relative to its folder. Raises OptionError.

    A file above the working directory that another user could have written is skipped, with one warning: its settings name
    folders to write to and programs to load.
    """
    found = (path for path in _config_candidates(cwd, home or _home()) if _exists(path))
    path = next((path for path in found if path.parent == cwd or _is_trusted(path)), None)
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a byte order mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise OptionError(
            f"{path} cannot be read: {words_of(error)}", hint="a hub.toml has keys and tables, such as: threads = 2"
        ) from error
    return dict(_flat(table, str(path), path.parent, KEYS))


def _flat(given: Mapping[str, Any], origin: str, folder: Path, keys: Sequence[str]) -> Iterator[tuple[str, Setting]]:
    """Yield settings by name, whichever way they are written; those of tables and backends as "NAME.KEY".

    `keys` are the hub's own settings that this source may have. Raises OptionError.
    """
    plugins = _plugins()
    groups = {*plugins, *(key.partition(".")[0] for key in keys if "." in key)}
    for key, value in given.items():
        if key in keys:
            yield key, Setting(_anchored(key, value, folder), origin)
        elif key in groups and isinstance(value, Mapping):
            own = cast("Mapping[Any, Any]", value)
            yield from _flat({f"{key}.{name}": item for name, item in own.items()}, origin, folder, keys)
        elif key in groups:
            raise _not_grouped(key, value, origin)
        elif str(key).partition(".")[0] in plugins:
            yield key, Setting(value, origin)
        else:
            raise _unknown_key(key, origin, (*keys, *plugins))


def _config_candidates(cwd: Path, home: Path | None) -> Iterator[Path]:
    """Yield possible paths of a hub.toml, nearest first, up to and including the repository root or the home folder."""
    for folder in (cwd, *cwd.parents):
        yield folder / CONFIG_FILE
        if folder == home or _exists(folder / ".git"):
            return


def _is_trusted(path: Path) -> bool:
    """Return whether the settings in a file may be used; if not, warn once in this process."""
    try:
        reason = distrust_file(path)
    except OSError as error:
        reason = words_of(error)
    if reason:
        _warn_once(str(path), f"{path} is not used: {reason}\n  hint: copy it to the working directory if you trust it")
    return not reason


def _warn_once(key: str, text: str) -> None:
    if key not in _warned:
        _warned.add(key)  # first, because a user may have turned warnings into errors
        warn_user(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a parent folder that this user may not access
        return False


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a user without an entry in the user database, as in some containers
        return None


def _anchored(key: str, value: Any, folder: Path) -> Any:
    """Make a relative path absolute, relative to where it was written. Leave other values unchanged."""
    if key not in PATHS or not isinstance(value, (str, Path)) or not str(value):
        return value
    try:
        return folder / Path(value).expanduser()
    except RuntimeError:  # "~name" of a user who does not exist: reported when values are validated
        return value


def _not_grouped(key: str, value: Any, origin: str) -> OptionError:
    """Return the error for a single value where a table's or a backend's settings belong."""
    if key in TABLES:
        names = ", ".join(full.partition(".")[2] for full in keys_of(key))
        return OptionError(f"option {key!r} (from {origin}) must be a table, got {value!r}", hint=f"its keys are {names}")
    text = f"option {key!r} (from {origin}) must be a mapping of that backend's settings, got {value!r}"
    return OptionError(text, backend=key, hint=f"in hub.toml they are in a table [{key}]; in options=, in a dictionary")


def _unknown_key(key: Any, origin: str, known: Sequence[str]) -> OptionError:
    """Return the error for a name that its source cannot have; `known` are those that it can."""
    if key in MOVED:
        return OptionError(f"{origin}: {key!r} is now {place_of(MOVED[key])}")
    table = str(key).partition(".")[0]
    if table in TABLES and table not in {name.partition(".")[0] for name in known}:
        places = "; ".join(map(place_of, (key,) if key in KEYS else keys_of(table)))
        return OptionError(f"{origin}: {key!r} is set for all models at once", hint=f"set {places}")
    hint = f"choose from {', '.join(name for name in known if name in KEYS)}, or a backend's name"
    return OptionError(f"unknown option {key!r} (from {origin}){did_you_mean(str(key), known)}", hint=hint)


def _unknown_variable(variable: str) -> OptionError:
    former = variable.removeprefix(PREFIX).lower()
    if former in MOVED:
        return OptionError(f"{variable}: {former!r} is now {place_of(MOVED[former])}")
    meant = did_you_mean(variable, _NAMES, ignoring=PREFIX)
    return OptionError(f"unknown environment variable {variable!r}{meant}", hint=f"choose from {', '.join(_NAMES)}")
