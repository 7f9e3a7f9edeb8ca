"""`hub.compile`: the way to use the hub that costs least at every call."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast, overload

import torch

from hub.direct.program import Program
from hub.errors import OptionError

Model = TypeVar("Model", bound=Callable[..., Any])
_PROGRAM = "_hub_program"


class CompiledModule:
    """What makes a module's class that of its compiled form: calls go through the hub, all else is the module's own.

    A compiled module shares its attributes with the module that it was made of: parameters, hooks, flags, names. What is
    done to one is done to both.
    """

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return cast("Any", super()).__call__(*args, **kwargs)
        return cast("Any", self)._hub_program(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        program = program_of(self)
        return _again(copy.deepcopy(program.function, memo), program.options, program.dynamic)

    def __copy__(self) -> Any:
        program = program_of(self)
        return _again(copy.copy(program.function), program.options, program.dynamic)

    def __reduce_ex__(self, protocol: Any) -> Any:
        program = program_of(self)
        return _again, (program.function, dict(program.options), program.dynamic)


class CompiledFunction:
    """A function whose calls go through the hub. As a method, it is called with its object."""

    def __init__(self, program: Program) -> None:
        self._hub_program = program
        functools.update_wrapper(self, program.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call."""
        return self._hub_program(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return the method of an object."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle the function; the copy plans anew."""
        program = self._hub_program
        return _again, (program.function, dict(program.options), program.dynamic)


@overload
def compile(  # noqa: A001 - as torch.compile is called
    model: Model,
    *,
    options: Mapping[str, Any] | None = ...,
    dynamic: bool | None = ...,
    example_inputs: Sequence[Any] | None = ...,
) -> Model: ...
@overload
def compile(  # noqa: A001
    model: None = None,
    *,
    options: Mapping[str, Any] | None = ...,
    dynamic: bool | None = ...,
    example_inputs: Sequence[Any] | None = ...,
) -> Callable[[Model], Model]: ...
def compile(  # noqa: A001
    model: Any = None,
    *,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    example_inputs: Sequence[Any] | None = None,
) -> Any:
    """Return a model or function that runs the hub's plan without asking Dynamo at every call.

    A module gives a module of its class, which shares its attributes with it; without `model`, a decorator is returned. The
    first call answers in eager; the second is captured, and planned while further calls answer in eager; from the third of
    a form on, calls skip Dynamo while nothing that the model reads has changed. `options` are those of the hub's backend.

    `dynamic` is `torch.compile`'s. `example_inputs` holds inputs, each a tuple of arguments or a dict of keyword arguments;
    the model is captured for each of them now, by calls whose results are thrown away. Raise OptionError for a module that
    cannot be given another class.
    """
    if model is None:
        return functools.partial(compile, options=options, dynamic=dynamic, example_inputs=example_inputs)
    compiled = _again(model, dict(options or {}), dynamic)
    for inputs in example_inputs or ():
        if issubclass(type(inputs), Mapping):
            program_of(compiled).capture((), inputs)
        else:
            program_of(compiled).capture(tuple(inputs), {})
    return compiled


def program_of(compiled: Any) -> Program:
    """Return the calls behind what `compile` returned. Raises OptionError for anything else."""
    if (program := getattr(compiled, _PROGRAM, None)) is None:
        raise OptionError(f"{type(compiled).__name__} was not made by hub.compile", hint="pass what hub.compile returned")
    return program


def _again(model: Any, options: Mapping[str, Any], dynamic: bool | None) -> Any:
    program = Program(model, options, dynamic=dynamic)
    if not isinstance(model, torch.nn.Module):
        return CompiledFunction(program)
    kind = type(model)
    if isinstance(model, CompiledModule):
        raise OptionError("the model is compiled already", hint="compile the model that it was made of")
    if not hasattr(model, "__dict__") or isinstance(model, torch.jit.ScriptModule):
        raise OptionError(
            f"a {kind.__name__} cannot be given another class", hint="use torch.compile(model, backend='hub')"
        )
    members = {"__slots__": (_PROGRAM,), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    make_class = cast("Any", type(kind))  # a metaclass of the user's keeps its say
    compiled = object.__new__(make_class(kind.__name__, (CompiledModule, kind), members))
    object.__setattr__(compiled, "__dict__", vars(model))
    object.__setattr__(compiled, _PROGRAM, program)
    return compiled
