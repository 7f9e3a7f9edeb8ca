"""Sources of settings: the call, the environment, or a hub.toml; and how each setting is written.

Values are not validated here; only names are checked. `hub.config.options` holds the schema.
"""

from __future__ import annotations

import importlib.metadata as metadata
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hub.config.suggest import did_you_mean
from hub.errors import OptionError, words_of

CONFIG_FILE = "hub.toml"
_PREFIX = "HUB_"
_RESERVED = ("disc", "mdla")
"""First-party plugins whose settings are accepted even if the plugin is not installed."""
SLOW_IMPORTS = "HUB_SLOW_IMPORTS"
"""Variable that tells child processes which plugins took too long to import."""
_OTHER_VARIABLES = frozenset({"HUB_PROGRESS", SLOW_IMPORTS})
"""Variables that the hub reads elsewhere and that are not options."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as given, and its origin."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class _Form:
    """Written form of one setting: for messages, and for reading it from text."""

    wanted: str
    example: str
    """Example value in Python syntax."""
    parse: Callable[[str], Any] = str
    """Parser for the text of a variable or flag. Raises ValueError."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in _names(text)]
    if bad := [key for key, equals, _ in pairs if not equals]:
        raise ValueError(f"{bad[0]!r} has no '='")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUTH:
        raise ValueError(f"{text!r} is neither true nor false")
    return _TRUTH[word]


def _seconds(text: str) -> float:
    """Read "90", "90s", "10m" or "1.5h"."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS_S else (text, "s")
    return float(number) * _UNITS_S[unit]


_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}

_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

_FORMS: Mapping[str, _Form] = {
    "backends": _Form("names of backends", '["onnxruntime", "openvino"]', _names),
    "exclude": _Form("names of backends", '["inductor"]', _names),
    "force": _Form("a mapping from operators to backends", '{"aten.softmax": "eager"}', _pairs),
    "threads": _Form("a whole number of at least 1", "2", int),
    "accuracy": _Form("a number above 0", "0.001", float),
    "strict": _Form("true or false", "True", _truth),
    "shadow": _Form("a share of calls from 0 to 1", "0.01", float),
    "cuda_graphs": _Form("true or false", "True", _truth),
    "renew": _Form("true or false", "True", _truth),
    "tune": _Form('one of "off", "fast" and "full"', '"fast"'),
    "start": _Form('"eager" or "wait"', '"wait"'),
    "budget_s": _Form("a number of seconds above 0", '60; flags and variables may say "90s", "10m" or "1h"', _seconds),
    "isolate": _Form("true or false", "False", _truth),
    "background": _Form("true or false", "False", _truth),
    "compile_workers": _Form("a whole number, 0 for one per core", "4", int),
    "compile_limit_s": _Form("a number of seconds above 0", '120; flags and variables may say "90s" or "10m"', _seconds),
    "memory_limit_gb": _Form("a number of gigabytes above 0", "16.0", float),
    "output_limit_mb": _Form("a number of megabytes above 0", "100.0", float),
    "plan": _Form("the path of a plan file", '"plan.json"'),
    "cache_dir": _Form("the path of a folder", '"~/.cache/hub"'),
    "cache_gb": _Form("a number of gigabytes above 0", "10", float),
    "debug_dir": _Form("the path of a folder", '"hub_debug"'),
}


KEYS: tuple[str, ...] = tuple(_FORMS)
"""Names of the settings."""
_PATHS = ("plan", "cache_dir", "debug_dir")


def from_call(given: Mapping[str, Any] | None, origin: str, cwd: Path) -> Mapping[str, Setting]:
    """Return the explicit settings. Raises OptionError for an unknown name."""
    if given is not None and not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise OptionError(f"{origin} must be a mapping, got {type(given).__name__}", hint='write options={"threads": 2}')
    return dict(_flat(given or {}, origin, cwd))


def from_environment(environ: Mapping[str, str], cwd: Path) -> Mapping[str, Setting]:
    """Return the settings in `HUB_*` variables. Raises OptionError for an unknown variable or unreadable text."""
    found: dict[str, Setting] = {}
    for variable in sorted(environ):
        if not variable.startswith(_PREFIX) or variable in _OTHER_VARIABLES or not environ[variable].strip():
            continue
        key = variable.removeprefix(_PREFIX).lower()
        owner = _owner(variable)
        if key in KEYS and variable.isupper():
            value = parse_text(key, environ[variable], variable)
            found[key] = Setting(_anchored(key, value, cwd), variable)
        elif owner:
            found[f"{owner}.{key.removeprefix(f'{owner}_')}"] = Setting(environ[variable].strip(), variable)
        else:
            raise _unknown_variable(variable)
    return found


def of_backend(name: str, settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Return the settings of one backend by their own keys; among all settings, they are named "NAME.KEY"."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): setting for key, setting in settings.items() if key.startswith(prefix)}


def is_variable(origin: str) -> bool:
    """Return whether a setting came from the environment."""
    return origin.startswith(_PREFIX)


def _owner(variable: str) -> str:
    """Return the plugin that a variable's setting belongs to, preferring the longest name; "" for none."""
    names = (name for name in _plugins() if variable.startswith(f"{_PREFIX}{name.upper()}_"))
    return max(names, key=len, default="")


def _plugins() -> tuple[str, ...]:
    return tuple(sorted({*_RESERVED, *(point.name for point in metadata.entry_points(group="hub"))}))


def from_file(cwd: Path, home: Path | None) -> Mapping[str, Setting]:
    """Return the settings in the nearest hub.toml; relative paths are relative to its folder. Raises OptionError."""
    path = next((path for path in _config_candidates(cwd, home or _home()) if _exists(path)), None)
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise OptionError(
            f"{path} cannot be read: {words_of(error)}", hint="a hub.toml has lines such as: threads = 2"
        ) from error
    return dict(_flat(table, str(path), path.parent))


def _flat(given: Mapping[str, Any], origin: str, folder: Path) -> Iterator[tuple[str, Setting]]:
    """Yield settings by name, those of backends as "NAME.KEY", whichever way they are written. Raises OptionError."""
    for key, value in given.items():
        if key in KEYS:
            yield key, Setting(_anchored(key, value, folder), origin)
        elif str(key).partition(".")[0] not in _plugins():
            raise _unknown_key(key, origin)
        elif "." in key:
            yield key, Setting(value, origin)
        elif isinstance(value, Mapping):
            own = cast("Mapping[Any, Any]", value)
            yield from ((f"{key}.{name}", Setting(item, origin)) for name, item in own.items())
        else:
            raise OptionError(
                f"option {key!r} (from {origin}) must be a mapping of that backend's settings, got {value!r}", backend=key
            )


def _config_candidates(cwd: Path, home: Path | None) -> Iterator[Path]:
    """Yield possible paths of a hub.toml, nearest first, up to and including the repository root or the home folder."""
    for folder in (cwd, *cwd.parents):
        yield folder / CONFIG_FILE
        if folder == home or _exists(folder / ".git"):
            return


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
    if key not in _PATHS or not isinstance(value, (str, Path)) or not str(value):
        return value
    return folder / Path(value).expanduser()


def parse_text(key: str, text: str, origin: str) -> Any:
    """Return the value of a setting written as text ("a,b" for names, "x=a,y=b" for `force`). Raises OptionError."""
    try:
        return _FORMS[key].parse(text)
    except ValueError:
        raise wrong_value(key, text, origin) from None


def wrong_value(key: str, value: Any, origin: str) -> OptionError:
    """Return the error for a value of the wrong type or size."""
    form = _FORMS[key]
    return OptionError(
        f"option {key!r} (from {origin}) must be {form.wanted}, got {value!r}", hint=f"for example {key} = {form.example}"
    )


def _unknown_key(key: Any, origin: str) -> OptionError:
    hint = f"choose from {', '.join(KEYS)}, or a backend's name"
    return OptionError(f"unknown option {key!r} in {origin}{did_you_mean(str(key), (*KEYS, *_plugins()))}", hint=hint)


def _unknown_variable(variable: str) -> OptionError:
    names = [_PREFIX + key.upper() for key in KEYS]
    meant = did_you_mean(variable, names, ignoring=_PREFIX)
    return OptionError(f"unknown environment variable {variable!r}{meant}", hint=f"choose from {', '.join(names)}")
