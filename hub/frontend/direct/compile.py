"""`hub.compile`: the use of the hub with the least overhead per call."""

from __future__ import annotations

import abc
import contextlib
import copy
import functools
import inspect
import sys
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast, overload

import torch
from torch import fx
from torch.compiler import is_dynamo_compiling

from hub.capture.call import OWN_SLOT, program_behind
from hub.config.options import resolve
from hub.config.settings import working_folder
from hub.errors import OptionError, type_of
from hub.frontend.direct.program import Program
from hub.frontend.direct.reads import IS_HEAP_TYPE
from hub.frontend.freezing import Frozen
from hub.process.environment import environment_now
from hub.torch_private import OptimizedModule

Model = TypeVar("Model", bound=Callable[..., Any])
_ONE_CALL = "for one call model(x) write example_inputs=[(x,)]"


class CompiledModule:
    """Mixin for the class of a compiled module: calls go through the hub, everything else is the module's own.

    A compiled module shares its attributes with the original module: parameters, hooks, flags, names. A change to one is a
    change to both, until one of them is given another `__dict__`.
    """

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        """Skip the `__init_subclass__` of the module's own class: its author did not write this subclass."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return cast("Any", super()).__call__(*args, **kwargs)
        try:
            program: Any = object.__getattribute__(self, OWN_SLOT)
        except AttributeError:  # an object that the module's own code made of this class
            return cast("Any", super()).__call__(*args, **kwargs)
        return program.call(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == OWN_SLOT:
            raise AttributeError(name)
        try:
            return cast("Any", super()).__getattr__(name)
        except AttributeError:
            if (program := program_behind(self)) is None:
                raise
            return getattr(program.function, name)  # of a class that the module was given later, as parametrizations do

    def __copy__(self) -> Any:
        program = program_of(self)
        return _again(copy.copy(program.function), program.options, program.dynamic)

    def __reduce_ex__(self, protocol: Any) -> Any:
        program = program_of(self)
        return _again, (program.function, dict(program.options), program.dynamic)


class CompiledFunction:
    """A function whose calls go through the hub. As a method, it is compiled once per object and class."""

    _hub_program: Any = None
    """The object that runs the calls."""

    def __init__(self, program: Program) -> None:
        functools.update_wrapper(self, program.function)  # before the rest: it copies attributes
        self._hub_program = program

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run one call."""
        if is_dynamo_compiling():
            return self._hub_program.function(*args, **kwargs)
        return self._hub_program.call(args, kwargs)

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember which method of which class this is, and the name under which objects keep it."""
        self._method_of = (owner, name)
        mark = zlib.crc32(f"{owner.__module__}.{owner.__qualname__}".encode())
        self._key = f"_hub_compiled_{name}_{mark:x}"  # a subclass may have a compiled method of the same name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the method of an object. It is compiled for this object alone, and its calls watch its attributes.

        The object keeps it, in its `__dict__`: from anywhere else, it would keep the object alive.
        """
        if instance is None:
            return self
        program, place = self._hub_program, getattr(self, "_method_of", None)
        attributes = getattr(instance, "__dict__", None)
        if is_dynamo_compiling() or place is None or attributes is None:
            return types.MethodType(self, instance)
        found = attributes.get(self._key)
        if found is not None:
            method = found._hub_program.function
            if method.__self__ is instance and method.__func__ is program.function:
                return found
            attributes.pop(self._key, None)  # the dict is a copy of another object's, or the class has another method now
        method = types.MethodType(program.function, instance)
        return attributes.setdefault(
            self._key, _CompiledMethod(Program(method, program.options, dynamic=program.dynamic), *place)
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle the function by its name, as Python does. If it has none, its copy is planned again."""
        program = self._hub_program
        name = getattr(self, "__qualname__", "")
        with contextlib.suppress(AttributeError):
            named: Any = sys.modules.get(getattr(self, "__module__", ""))
            if functools.reduce(getattr, name.split("."), named) is self:
                return name
        return _again, (program.function, dict(program.options), program.dynamic)


class _CompiledMethod(CompiledFunction):
    """A method of one object. `owner` is the class that holds the compiled function, by that name."""

    def __init__(self, program: Program, owner: type, name: str) -> None:
        super().__init__(program)
        self._place = (owner, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle the method as the method of the copied object."""
        return _method_of, (self._hub_program.function.__self__, *self._place)


def _method_of(instance: Any, owner: type, name: str) -> Any:
    """Return a method as `super()` would find it. Copies and pickles of compiled methods refer to this by name."""
    return vars(owner)[name].__get__(instance, type(instance))


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
    """Return a model or function that runs the hub's plan without calling Dynamo at every call.

    For a module, return a module of its class that shares its attributes. Without `model`, return a decorator. The first
    call runs in eager. The second is captured, and planned while further calls run in eager. From the third call of a form
    on, calls skip Dynamo while nothing that the model reads has changed. `options` are those of the hub's backend.

    `dynamic` is the same as in `torch.compile`. `example_inputs` holds inputs, each a tuple of arguments or a dict of
    keyword arguments. The model is captured for each of them now, by calls whose results are discarded, without gradients
    in eval mode. Raise OptionError for wrong options, for a model that is compiled already, and for a module whose class
    cannot be changed.
    """
    resolve(options, environment_now(), working_folder())  # report a mistake here, not in some later call
    if model is None:
        return functools.partial(compile, options=options, dynamic=dynamic, example_inputs=example_inputs)
    _check(model)
    given = [_arguments(inputs) for inputs in _examples(example_inputs)]
    compiled = _again(model, dict(options or {}), dynamic)
    for args, kwargs in given:
        program_of(compiled).capture(args, kwargs)
    return compiled


def program_of(compiled: Any) -> Program:
    """Return the `Program` behind what `compile` returned. Raise OptionError for anything else."""
    if (program := program_behind(compiled)) is None:
        raise OptionError(f"{type(compiled).__name__} was not made by hub.compile", hint="pass what hub.compile returned")
    return program


def _check(model: Any) -> None:
    """Raise OptionError if the model cannot be compiled, or is compiled already."""
    name = type(model).__name__
    if isinstance(model, type) or not callable(model):
        what, hint = type_of(model), "pass a torch.nn.Module or a function"
        if isinstance(model, type):
            what, hint = f"the class {model.__name__}", f"pass an instance of it: {model.__name__}(...)"
        raise OptionError(f"{what} is neither a module nor a function", hint=hint)
    is_compiled = isinstance(model, (CompiledModule, CompiledFunction, OptimizedModule, Frozen))
    # Not `getattr`: a `__getattr__` of the model's own may raise anything, or know every name.
    is_disabled = inspect.getattr_static(model, "_torchdynamo_disable", False)
    if is_compiled or (inspect.getattr_static(model, "_torchdynamo_orig_callable", None) and not is_disabled):
        raise OptionError(f"the {name} is compiled already", hint="compile what it was made of")
    if not isinstance(model, torch.nn.Module):
        return
    if inspect.getattr_static(model, "_compiled_call_impl", None) is not None:
        raise OptionError(f"the {name} is compiled in place already", hint="leave out model.compile()")
    if not hasattr(model, "__dict__") or isinstance(model, torch.jit.ScriptModule):
        raise OptionError(f"{type_of(model)} cannot be given another class", hint="use torch.compile(model, backend='hub')")


def _examples(given: Any) -> Sequence[Any]:
    """Return `example_inputs` as a sequence, one item for each call. Raise OptionError if it is something else."""
    if given is None:
        return ()
    if not isinstance(given, (tuple, list)):
        raise OptionError(f"example_inputs is {type_of(given)}, not a list of calls", hint=_ONE_CALL)
    return cast("Sequence[Any]", given)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return one of `example_inputs` as arguments and keyword arguments. Raise OptionError for other types."""
    if isinstance(inputs, Mapping):
        return (), cast("Mapping[str, Any]", inputs)
    if not isinstance(inputs, (tuple, list)):
        raise OptionError(f"example_inputs has {type_of(inputs)}, not a tuple of arguments or a dict", hint=_ONE_CALL)
    return tuple(cast("Sequence[Any]", inputs)), {}


def _again(model: Any, options: Mapping[str, Any], dynamic: bool | None) -> Any:
    """Return the compiled form of a checked model. Copies and pickles of compiled models refer to this function by name."""
    program = Program(model, options, dynamic=dynamic)
    if not isinstance(model, torch.nn.Module):
        return CompiledFunction(program)
    compiled = object.__new__(_class_for(type(model)))
    object.__setattr__(compiled, "__dict__", vars(model))
    object.__setattr__(compiled, OWN_SLOT, program)
    return compiled


def _class_for(kind: type) -> Any:
    """Return the class of a compiled module. Bypass a custom metaclass, which expects classes of its author.

    Code of the module that asks for its class gets the original one, to make another module, say, or to change it.
    """
    members: dict[str, Any] = {
        "__slots__": (OWN_SLOT,), "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__,
        "__class__": property(_class_of, _set_class),
    }  # fmt: skip
    if hasattr(kind, "__deepcopy__"):
        members["__deepcopy__"] = _deep_copy
    if issubclass(cast("Any", kind), fx.GraphModule):
        members["recompile"] = _recompile  # it changes the class of its object
    if hasattr(kind, "__del__"):
        members["__del__"] = _leave  # the module ends when the original does
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType) and base.__flags__ & IS_HEAP_TYPE:
                members.setdefault(name, _shared(member))
    metaclass: Any = type(kind)
    make = abc.ABCMeta if issubclass(metaclass, abc.ABCMeta) else type
    return cast("Any", make).__new__(metaclass, kind.__name__, (CompiledModule, kind), members)


def _class_of(compiled: Any) -> Any:
    program: Any = program_behind(compiled)
    return cast("Any", type)(compiled if program is None else program.function)


def _set_class(compiled: Any, kind: type) -> None:
    program_of(compiled).function.__class__ = kind


def _deep_copy(compiled: Any, memo: dict[int, Any]) -> Any:
    program = program_of(compiled)
    return _again(copy.deepcopy(program.function, memo), copy.deepcopy(program.options, memo), program.dynamic)


def _recompile(compiled: Any) -> Any:
    return cast("Any", program_of(compiled).function).recompile()


def _leave(_: Any) -> None:
    """Do nothing."""


def _shared(slot: Any) -> property:
    """Return a property of a compiled module that reads and writes a slot of the original module."""
    return property(
        lambda compiled: slot.__get__(program_of(compiled).function),
        lambda compiled, value: slot.__set__(program_of(compiled).function, value),
        lambda compiled: slot.__delete__(program_of(compiled).function),
    )
