"""Loading of the models that users name: a built-in name, `package.module:factory`, or `file.py:factory`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from hub.bench import zoo
from hub.errors import HubError

_FORM = "package.module:factory or file.py:factory, where factory() returns (module, inputs)"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to be called: `module(*inputs)`."""

    name: str
    module: Any
    """A `torch.nn.Module` in eval mode."""
    inputs: tuple[Any, ...]


def load_model(spec: str, *, batch: int | None = None, small: bool = False) -> LoadedModel:
    """Return the model that `spec` names, with the inputs of one call.

    `batch` is passed to factories that accept it; `small` makes a built-in model tiny. Raise HubError, with the nearest
    name if there is no such model, or with the cause if its factory fails.
    """
    if ":" not in spec:
        module, inputs = zoo.build(spec, batch=batch, small=small)
        return LoadedModel(spec, module, inputs)
    factory = _factory(spec)
    try:
        made = factory(**_arguments(spec, factory, batch))
    except HubError:
        raise
    except Exception as error:
        raise HubError(f"the factory of {spec!r} failed: {type(error).__name__}: {error}") from error
    return _checked(spec, made)


def check_name(spec: str) -> None:
    """Raise HubError, with the nearest name, if `spec` has the form of a built-in name but is not one."""
    if ":" not in spec:
        zoo.recipe_of(spec)


def _factory(spec: str) -> Callable[..., Any]:
    place, _, attribute = spec.rpartition(":")
    try:
        module = _module_from_file(Path(place)) if place.endswith(".py") else _module_from_name(place)
    except Exception as error:
        raise HubError(f"{place} cannot be imported: {type(error).__name__}: {error}", hint=f"write {_FORM}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        from hub.config.suggest import did_you_mean  # only mistakes need it

        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise HubError(f"{place} has no function {attribute!r}{did_you_mean(attribute, names)}", hint=f"write {_FORM}")
    return found


def _module_from_name(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that a file in the working directory does not shadow an installed package
    return importlib.import_module(name)


def _module_from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"hub_model_{path.stem}"  # not the plain stem, which may be the name of a package
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _arguments(spec: str, factory: Callable[..., Any], batch: int | None) -> Mapping[str, Any]:
    if batch is None:
        return {}
    if "batch" not in inspect.signature(factory).parameters:
        raise HubError(f"the factory of {spec!r} takes no argument `batch`", hint="leave --batch out, or add the argument")
    return {"batch": batch}


def _checked(spec: str, made: Any) -> LoadedModel:
    import torch  # the factory has imported it already

    module, inputs = cast("tuple[Any, Any]", made) if _is_pair(made) else (None, None)
    if not isinstance(module, torch.nn.Module):
        raise HubError(f"the factory of {spec!r} gave no pair of a module and its inputs", hint=f"write {_FORM}")
    if isinstance(inputs, Mapping):
        named = cast("Mapping[str, Any]", inputs)
        return LoadedModel(spec, _keyword_call(module.eval(), tuple(named)), tuple(named.values()))
    if not isinstance(inputs, (tuple, list)):
        raise HubError(f"the factory of {spec!r} gave inputs that are no tuple", hint=f"write {_FORM}")
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
