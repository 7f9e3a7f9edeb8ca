"""Options: the user's settings for the hub, checked against one schema and gathered from several sources in a fixed order.

Precedence, highest first, setting by setting:

1. explicit: `torch.compile(..., options={...})`, or flags of the `hub` command;
2. environment variables `HUB_<SETTING>`, such as `HUB_THREADS=2` (an empty value counts as unset);
3. the nearest `hub.toml`, from the working directory upward to a repository root or the home folder;
   a backend's own settings in a table of its name;
4. the defaults below.

Settings of the worker processes and the cache hold for all models. They are set in tables of hub.toml, `[workers]` and
`[cache]`, or in variables `HUB_<TABLE>_<KEY>`, such as `HUB_CACHE_DIR`; `options={...}` cannot have them.

Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hub.config.forms import TABLES, wrong_value
from hub.config.settings import Setting, from_call, from_environment, from_file, from_flags
from hub.config.suggest import did_you_mean
from hub.config.tables import CacheSettings, PathOrNone, WorkerSettings
from hub.errors import OptionError

__all__ = ["BUDGETS_S", "DEFAULT", "EXPLICIT", "MAX_THREADS", "Options", "check_backends", "resolve"]

EXPLICIT = "options="
"""Origin of settings that were given in the call itself."""

DEFAULT = "default"
"""Origin of settings that were not given."""

BUDGETS_S: Mapping[str, float] = {"off": 20.0, "fast": 20.0, "full": 600.0}
"""Seconds that planning may take, by `tune`, unless `budget_s` says otherwise."""

MAX_THREADS = 1024
"""Threads that one call may use at most. Libraries start as many as they are told, until the system has none left."""

_EAGER = "eager"
_Part = TypeVar("_Part", bound=BaseModel)


def _as_tuple(value: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _operator_keys(force: Mapping[str, str]) -> Mapping[str, str]:
    for key in force:
        if not 2 <= len(key.split(".")) <= 3 or not all(part.isidentifier() for part in key.split(".")):
            raise ValueError(f"{key!r} is not an operator")
    return force


_Name = Annotated[str, Field(min_length=1)]
_Names = Annotated[tuple[_Name, ...], BeforeValidator(_as_tuple)]


class Options(BaseModel):
    """The options of one model, and the settings that hold for all of them; frozen. Made by `resolve`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    backends: _Names | None = None
    """Backends that may bid; None means every available one. Eager always may."""
    exclude: _Names = ()
    """Backends that are not allowed."""
    force: Annotated[dict[str, _Name], AfterValidator(_operator_keys)] = {}
    """Backend, or "eager", by operator ("aten.softmax") or overload ("aten.softmax.int"); the overload wins."""
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] | None = None
    """Threads one call may use; None means as many as PyTorch uses."""
    accuracy: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Largest allowed max|error| / max|reference|; None means as exact as float32 eager."""
    strict: bool = False
    """True turns every failure and every unasked fallback into an error."""
    shadow: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of live calls that are run in eager too and compared; 0 means none."""
    cuda_graphs: bool = False
    """True records plans that run wholly on one GPU as CUDA graphs."""
    renew: bool = False
    """True plans again, with every price known so far, and replaces the cached plan."""
    tune: Literal["off", "fast", "full"] = "fast"
    """Effort to spend on finding the best plan: by prices alone, by measuring, or by extensive measuring."""
    start: Literal["eager", "wait"] = "eager"
    """Behaviour of the first calls: run in eager at once, while the model is planned in the background, or wait for the
    plan."""
    budget_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default_factory=lambda data: BUDGETS_S[data.get("tune", "fast")]
    )
    """Seconds that planning may take; the default follows `tune`."""
    isolate: bool = True
    """False runs plugins in this process instead of in workers, to debug a plugin."""
    background: bool = True
    """True continues verification in a worker process after the first answer."""
    plan: PathOrNone = None
    """Plan file to replay instead of planning; None means that the hub plans."""
    debug_dir: PathOrNone = None
    """Folder that readable programs, sources and logs are written to; None means that nothing is written."""
    workers: WorkerSettings = WorkerSettings()
    """Settings of the worker processes, for all models."""
    cache: CacheSettings = CacheSettings()
    """Settings of the cache, for all models."""
    own: dict[str, dict[str, Any]] = {}
    """Backends' own settings, by backend, as given: written `{"NAME": {...}}` among the others."""
    origins: dict[str, str] = Field(default_factory=dict, repr=False, exclude=True)
    """Origin of each setting that was given. Not itself a setting."""

    @property
    def may_answer_in_eager(self) -> bool:
        """Return whether the first calls may run in eager while the model is planned in the background."""
        return self.start == "eager" and self.isolate and not self.strict and self.plan is None

    def own_of(self, backend: str) -> Mapping[str, Setting]:
        """Return the given settings of one backend."""
        given = self.own.get(backend, {})
        return {key: Setting(value, self.origin(f"{backend}.{key}")) for key, value in given.items()}

    def origin(self, key: str) -> str:
        """Return where a setting came from: "options=", "HUB_THREADS", the path of a hub.toml, or "default"."""
        return self.origins.get(key, DEFAULT)

    def for_workers(self) -> Options:
        """Return the options without origins, except those of backends' own settings: relative paths start there."""
        own = {key: origin for key, origin in self.origins.items() if key.partition(".")[0] in self.own}
        return self.model_copy(update={"origins": own})

    def forced(self, operator: str) -> str | None:
        """Return the backend that an overload ("aten.softmax.int") is forced to, or None if it is free."""
        return self.force.get(operator, self.force.get(operator.rpartition(".")[0]))

    def allows(self, backend: str) -> bool:
        """Return whether a backend may bid. Eager always may."""
        return backend == _EAGER or (backend not in self.exclude and (self.backends is None or backend in self.backends))

    def to_json(self) -> str:
        """Return the settings, without their origins, as JSON with sorted keys: equal settings give equal text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)


def resolve(
    given: Mapping[str, Any] | None,
    environ: Mapping[str, str],
    cwd: Path,
    *,
    origin: str = EXPLICIT,
    home: Path | None = None,
    flags: Mapping[str, str | None] | None = None,
) -> Options:
    """Return the options in force, from all sources in the documented order of precedence.

    `given` are the explicit options of one model, and `origin` is their name in messages. `flags` are settings of tables,
    as text by full name ("cache.dir"), for commands that work on one cache. Raises OptionError, with the setting and its
    origin, for one that is unknown, of the wrong type or value, or in contradiction with another one.
    """
    explicit = {**from_call(given, origin, cwd), **from_flags(flags or {}, origin, cwd)}
    return _validated({**from_file(cwd, home), **from_environment(environ, cwd), **explicit})


def check_backends(options: Options, known: Iterable[str]) -> None:
    """Raise OptionError, suggesting the nearest name, if a setting's backend is neither in `known` nor "eager"."""
    names = (*known, _EAGER)
    for key, used in (
        ("backends", options.backends or ()),
        ("exclude", options.exclude),
        ("force", options.force.values()),
    ):
        for name in used:
            if name not in names:
                raise OptionError(
                    f"option {key!r} (from {options.origin(key)}): no backend is named {name!r}{did_you_mean(name, names)}",
                    hint=f"choose from {', '.join(names)}; `hub list-backends` shows them",
                )


def _validated(settings: Mapping[str, Setting]) -> Options:
    origins = {key: setting.origin for key, setting in settings.items()}
    tables = {"workers": _part(WorkerSettings, settings, "workers."), "cache": _part(CacheSettings, settings, "cache.")}
    options = _part(Options, settings, "", **tables, own=_own(settings), origins=origins)
    _check_agreement(options)
    return options


def _part(kind: type[_Part], settings: Mapping[str, Setting], prefix: str, **more: Any) -> _Part:
    """Return the value of the settings whose names are a prefix and one of its fields. Raises OptionError."""
    values = {name: settings[prefix + name].value for name in kind.model_fields if prefix + name in settings}
    try:
        return kind(**values, **more)
    except ValidationError as error:
        key = prefix + str(error.errors()[0]["loc"][0])
        raise wrong_value(key, settings[key].value, settings[key].origin) from None


def _own(settings: Mapping[str, Setting]) -> dict[str, dict[str, Any]]:
    """Return backends' own settings by backend. Raises OptionError for values that cannot be written as JSON."""
    found: dict[str, dict[str, Any]] = {}
    for key, setting in settings.items():
        backend, dot, name = key.partition(".")
        if not dot or backend in TABLES:
            continue
        value = str(setting.value) if isinstance(setting.value, Path) else setting.value
        try:
            found.setdefault(backend, {})[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            raise OptionError(
                f"option {key!r} (from {setting.origin}) must be text, numbers, lists or mappings: {value!r}",
                backend=backend,
            ) from None
    return {backend: dict(sorted(own.items())) for backend, own in sorted(found.items())}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that this user may not look into
        return False


def _check_agreement(options: Options) -> None:
    """Raise OptionError if two settings contradict each other."""
    folder = options.debug_dir
    if folder is not None and (file := next(filter(_is_file, (folder, *folder.parents)), None)):
        text = f"option 'debug_dir' (from {options.origin('debug_dir')}): {file} is a file, not a folder"
        raise OptionError(text, hint="name a folder; it is made if it does not exist")
    if _EAGER in options.exclude:
        raise OptionError(
            f"option 'exclude' (from {options.origin('exclude')}): eager is the fallback and cannot be excluded",
            hint="strict=True raises where a model would run in eager",
        )
    for name in options.exclude:
        if options.backends is not None and name in options.backends:
            raise _contradiction(options, "backends", "exclude", f"{name!r} is both requested and excluded")
    for operator, backend in options.force.items():
        if not options.allows(backend):
            other = "exclude" if backend in options.exclude else "backends"
            raise _contradiction(options, "force", other, f"{operator} is forced to {backend!r}, which is not allowed")


def _contradiction(options: Options, first: str, second: str, fact: str) -> OptionError:
    places = f"{first!r} (from {options.origin(first)}) and {second!r} (from {options.origin(second)})"
    return OptionError(f"options {places} contradict each other: {fact}", hint=f"change {first!r} or {second!r}")
