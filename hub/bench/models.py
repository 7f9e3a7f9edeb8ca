"""Loading of the models that users name: a built-in name, `package.module:factory`, or `file.py:factory`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from hub.bench import zoo
from hub.errors import HubError, ModelError, OptionError, text_of, type_of

_RESULT = "a function that returns (module, inputs)"
_FORM = f"package.module:factory or file.py:factory; a factory is {_RESULT}"
_EXAMPLE = "for example: return torch.nn.Linear(4, 4), (torch.ones(2, 4),)"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to be called: `module(*inputs)`."""

    name: str
    module: Any
    """A `torch.nn.Module` in eval mode."""
    inputs: tuple[Any, ...]


def load_model(spec: str, *, batch: int | None = None, small: bool = False, is_tried: bool = False) -> LoadedModel:
    """Return the model that `spec` names, with the inputs of one call.

    `batch` is passed to factories that accept it; `small` makes a built-in model tiny; `is_tried` calls the model once, in
    eager, so that a mistake in it is not taken for one of a compiler. Raise OptionError, with the nearest name, if there is
    no such model, and ModelError, with the cause and the place, if it cannot be made or called.
    """
    loaded = _loaded(spec, batch=batch, small=small)
    if is_tried:
        _try(loaded)
    return loaded


def check_name(spec: str) -> None:
    """Raise OptionError, with the nearest name, if `spec` has the form of a built-in name but is not one."""
    if spec.endswith(".py"):
        raise OptionError(f"{spec!r} names a file and no function", hint=f"write {spec}:FACTORY, {_RESULT}")
    if ":" not in spec:
        zoo.recipe_of(spec)


def _loaded(spec: str, *, batch: int | None, small: bool) -> LoadedModel:
    check_name(spec)
    if ":" not in spec:
        module, inputs = zoo.build(spec, batch=batch, small=small)
        return LoadedModel(spec, module, inputs)
    factory = _factory(spec)
    arguments = _arguments(spec, factory, batch)
    with _failing(f"the factory of {spec!r} failed"):
        made = factory(**arguments)
    return _checked(spec, made)


def _try(loaded: LoadedModel) -> None:
    """Call a model once. Raise ModelError if it fails."""
    import torch  # the model needs it

    with _failing(f"the model {loaded.name!r} fails in eager"), torch.no_grad():
        loaded.module(*loaded.inputs)


@contextlib.contextmanager
def _failing(what: str) -> Generator[None]:
    """Raise ModelError, with the cause and the user's line, if the user's code raises or ends the process."""
    try:
        yield
    except HubError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(f"{what}{_place(error)}: {text_of(error)}") from error


def _place(error: BaseException) -> str:
    """Return the innermost line of the user's code that an error passed through; "" if there is none."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    own = next((frame for frame in frames if not _is_library(frame.filename)), None)
    return "" if own is None else f" (at {Path(own.filename).name}:{own.lineno} in {own.name})"


def _is_library(file: str) -> bool:
    """Return whether a file belongs to Python, to an installed package, or to the hub."""
    folders = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]), "<")
    return file.startswith(folders) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _factory(spec: str) -> Callable[..., Any]:
    place, _, attribute = spec.rpartition(":")
    if not place or not attribute:
        raise OptionError(f"{spec!r} names no model", hint=f"write {_FORM}")
    module = _module_from_file(Path(place)) if place.endswith(".py") else _module_from_name(place)
    found = getattr(module, attribute, None)
    if not callable(found):
        from hub.config.suggest import did_you_mean  # only mistakes need it

        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        what = "" if found is None else f", but a value of type {type(found).__name__}"
        raise OptionError(
            f"{place} has no function {attribute!r}{what}{did_you_mean(attribute, names)}", hint=f"name {_RESULT}"
        )
    if hasattr(found, "forward") and not isinstance(found, type):
        raise OptionError(f"{spec!r} is a model itself: its inputs are not known", hint=f"name {_RESULT}")
    return found


def _module_from_name(name: str) -> ModuleType:
    if Path(name).is_file():
        raise OptionError(f"{name} is not a Python file: its name does not end in .py", hint=f"write {_FORM}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise OptionError(f"{name!r} is neither a Python file nor the name of a module", hint=f"write {_FORM}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that a file in the working directory does not shadow an installed package
    try:
        with _importing(name):
            return importlib.import_module(name)
    except ModelError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise
    raise OptionError(f"there is no module {missing!r}, neither installed nor in {folder}", hint=f"write {_FORM}")


def _module_from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise OptionError(f"there is no file {path}", hint=f"write {_FORM}")
    name = f"hub_model_{path.stem}"  # not the plain stem, which may be the name of a package
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None, "Python has a loader for .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(path.resolve().parent))
    with _importing(str(path)):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importing(name: str) -> Generator[None]:
    """Raise ModelError, with the cause, if the body's import fails."""
    try:
        with _failing(f"{name} cannot be imported"):
            yield
    except ModelError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError):
            raise ModelError(error.message, hint=f"install the package that has {cause.name!r}") from cause
        raise


def _arguments(spec: str, factory: Callable[..., Any], batch: int | None) -> Mapping[str, Any]:
    """Return the arguments of a factory's call. Raise OptionError if it takes others."""
    parameters = _parameters(factory)
    given = set[str]() if batch is None else {"batch"}
    missing = [name for name, parameter in parameters.items() if _is_required(parameter) and name not in given]
    if missing:
        needs = f"{spec!r} needs {', '.join(missing)}, which no command gives"
        raise OptionError(needs, hint=f"name {_RESULT} and takes no argument, or `batch` alone")
    if batch is None:
        return {}
    if "batch" not in parameters:
        raise OptionError(
            f"the factory of {spec!r} takes no argument `batch`", hint="leave --batch out, or add the argument"
        )
    return {"batch": batch}


def _is_required(parameter: inspect.Parameter) -> bool:
    is_open = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not is_open


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a callable; none for one in C that does not tell them."""
    try:
        return inspect.signature(factory).parameters
    except (ValueError, TypeError):
        return {}


def _checked(spec: str, made: Any) -> LoadedModel:
    import torch  # the factory has imported it already

    module, inputs = cast("tuple[Any, Any]", made) if _is_pair(made) else (None, None)
    if not isinstance(module, torch.nn.Module):
        found = "a pair without a module" if _is_pair(made) else type_of(made)
        raise ModelError(f"the factory of {spec!r} returned {found}, not a module and its inputs", hint=_EXAMPLE)
    if isinstance(inputs, Mapping):
        named = cast("Mapping[str, Any]", inputs)
        return LoadedModel(spec, _keyword_call(module.eval(), tuple(named)), tuple(named.values()))
    if not isinstance(inputs, (tuple, list)):
        found = type_of(inputs)
        raise ModelError(f"the factory of {spec!r} returned {found} as inputs, not a tuple or dict", hint=_EXAMPLE)
    return LoadedModel(spec, module.eval(), tuple(cast("Sequence[Any]", inputs)))


def _is_pair(made: Any) -> bool:
    return isinstance(made, (tuple, list)) and len(cast("Sequence[Any]", made)) == 2


def _keyword_call(module: Any, names: Sequence[str]) -> Any:
    """Return a module that takes its inputs by position and passes them on by name."""
    import torch  # as above

    class KeywordCall(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, *inputs: Any) -> Any:
            return self.model(**dict(zip(names, inputs, strict=True)))

    return KeywordCall().eval()
