"""Flags that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub.cli.ending import ending
from hub.cli.output import output_for_json
from hub.config.settings import working_folder
from hub.errors import OptionError

if TYPE_CHECKING:
    from hub.config.options import Options

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A built-in name, package.module:factory, or file.py:factory.")
]
"""Type of a command's argument that names a model, for `load_model`."""
Batch = Annotated[int | None, typer.Option("--batch", min=1, help="Batch size: the first dimension of the inputs.")]
"""Type of a command's option for the first dim of the inputs, for `load_model`."""
Output = Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plans to this file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CacheDir = Annotated[
    str | None, typer.Option("--cache-dir", metavar="FOLDER", help="Another cache folder than the one in use.")
]
"""Type of the option of commands that work on one cache folder, for `settings_now`."""


def _flag(name: str, metavar: str | None, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text)


_OPTIONS: Mapping[str, Any] = {
    "backends": Annotated[str | None, _flag("--backends", "A,B", "Use only these backends.")],
    "exclude": Annotated[str | None, _flag("--exclude", "A,B", "Do not use these backends.")],
    "force": Annotated[
        list[str] | None, _flag("--force", "OPERATOR=BACKEND", "Send an operator to a backend. May be repeated.")
    ],
    "threads": Annotated[str | None, _flag("--threads", "N", "Number of threads for one call.")],
    "accuracy": Annotated[str | None, _flag("--accuracy", "X", "Largest allowed max|error| / max|reference|.")],
    "shadow": Annotated[str | None, _flag("--shadow", "X", "Share of live calls that are compared with eager.")],
    "cuda_graphs": Annotated[
        bool | None, _flag("--cuda-graphs/--no-cuda-graphs", None, "Record plans on one GPU as CUDA graphs.")
    ],
    "renew": Annotated[bool | None, _flag("--renew/--no-renew", None, "Plan again, using all measurements so far.")],
    "strict": Annotated[bool | None, _flag("--strict/--no-strict", None, "Turn every failure into an error.")],
    "tune": Annotated[str | None, _flag("--tune", "off|fast|full", "How long to search for the best plan.")],
    "start": Annotated[str | None, _flag("--start", "eager|wait", "Run in eager until the plan is ready, or wait for it.")],
    "budget_s": Annotated[str | None, _flag("--budget", "TIME", "Time limit of planning: 90, 90s, 10m or 1h.")],
    "isolate": Annotated[bool | None, _flag("--isolate/--no-isolate", None, "Try plugins in separate processes.")],
    "background": Annotated[
        bool | None, _flag("--background/--no-background", None, "Continue to verify after the first call.")
    ],
    "plan": Annotated[str | None, _flag("--plan", "FILE", "Replay this plan file instead of planning.")],
    "set": Annotated[list[str] | None, _flag("--set", "BACKEND.KEY=VALUE", "A backend's own setting. May be repeated.")],
    "debug_dir": Annotated[str | None, _flag("--debug-dir", "FOLDER", "Where readable programs and logs are written.")],
}
"""Flag of each option of one model. Values stay text, so that a wrong one gives the same message as in a variable."""

_NO_START = "leave --start out; programs set it with options={...} or HUB_START"
_OF_BACKENDS = frozenset({"backends", "exclude", "force"})
"""Options whose values name backends."""
_VERBOSE = Annotated[bool, typer.Option("-v", "--verbose", help="Show whole messages, and the traceback of an error.")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with a `--verbose` flag: errors become one line and a hint, exit status 1, or 2 for wrong use."""

    def run(*, verbose: bool, **arguments: Any) -> None:
        is_alone = arguments.get("json") in (True, "-")
        with ending(is_verbose=verbose), output_for_json() if is_alone else nullcontext():
            function(**arguments)

    return _signed(run, function, {"verbose": (_VERBOSE, False)})


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with a flag for each option of a model; it is called with `given`, the flags that were set."""

    def run(**arguments: Any) -> None:
        flags = {key: arguments.pop(key) for key in _OPTIONS}
        function(given=given_options(flags), **arguments)

    return _signed(run, function, {key: (annotation, None) for key, annotation in _OPTIONS.items()}, without=("given",))


def given_options(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options given as flags, parsed and checked against the other sources. Raise OptionError."""
    from hub.config.forms import COMMAND_LINE, parse_text
    from hub.plan_file import read_plans

    texts = {key: ",".join(value) if key == "force" else value for key, value in flags.items() if value not in (None, [])}
    own = own_settings(texts.pop("set", ()))
    given: dict[str, Any] = {
        key: parse_text(key, text, COMMAND_LINE) if isinstance(text, str) else text for key, text in texts.items()
    }
    given |= own
    chosen = settings_now(given)
    if given.get("start") == "eager":
        raise OptionError("a command waits for the plan that it shows: --start eager would have no effect", hint=_NO_START)
    if own or not chosen.origins.keys().isdisjoint(_OF_BACKENDS):
        check_named(chosen)  # later checks would find the same mistakes, but after a model is built
    if "plan" in given and chosen.plan is not None:
        read_plans(chosen.plan)  # reports a mistake in the file before a model is built
    return given


def check_named(options: Options) -> None:
    """Raise OptionError for a backend that does not exist, and for a wrong setting of one that does."""
    from hub.config.options import check_backends
    from hub.discovery.registry import registry

    check_backends(options, registry().configured(options).entries)


def settings_now(
    given: Mapping[str, Any] | None = None, *, cache_dir: str | None = None, cache_gb: str | None = None
) -> Options:
    """Return the options in force for a command with these flags. Raise OptionError for invalid ones."""
    import os  # late: `--help` does not need it

    from hub.config.forms import COMMAND_LINE
    from hub.config.options import resolve

    flags = {"cache.dir": cache_dir, "cache.gb": cache_gb}
    return resolve(given, os.environ, working_folder(), origin=COMMAND_LINE, flags=flags)


def own_settings(texts: Iterable[str]) -> Mapping[str, str]:
    """Parse "BACKEND.KEY=VALUE" texts. Raise OptionError for a malformed one."""
    pairs = [text.partition("=") for text in texts]
    for key, equals, _ in pairs:
        if not equals or not all(key.partition(".")):
            raise OptionError(f"--set {key}{equals}: BACKEND.KEY=VALUE expected", hint="for example --set mdla.format=int8")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _signed(
    run: Callable[..., None],
    function: Callable[..., None],
    added: Mapping[str, tuple[Any, Any]],
    without: tuple[str, ...] = (),
) -> Callable[..., None]:
    """Return `run` with the signature of `function`, minus some parameters and plus others: typer reads signatures."""
    kept = [item for item in inspect.signature(function, eval_str=True).parameters.values() if item.name not in without]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in added.items()
    ]
    parameters = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in kept] + more
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    run.__signature__ = inspect.Signature(parameters)
    return run
