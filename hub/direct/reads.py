"""Turns the guards that Dynamo made into the Python objects whose change could make one of them fail.

Dynamo walks to every value that the program read: from the model, through attributes and items, to a number, a function, a
tensor. It compares what it finds at the end. Here every object on the way is watched for any change instead. While none has
changed, each walk leads where it led, and Dynamo's answer would be the one that it gave. Changes that it would not mind
cost a call through Dynamo; none that it would mind is missed. What cannot be watched is a refusal, and stays with Dynamo.
"""

from __future__ import annotations

import functools
import gc
import threading
import types
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch._dynamo import guards as dynamo_guards
from torch._dynamo import source as sources
from torch._dynamo.types import GuardFilterEntry
from torch._guards import Source

OWN_SLOT = "_hub_program"
"""Where a compiled module keeps what runs its calls: set once."""
MISSING = object()
"""Stands for the value of a key that a dict does not have."""

_OF_THE_THREAD = frozenset({
    "AUTOGRAD_SAVED_TENSORS_HOOKS",
    "DEFAULT_DEVICE",
    "DETERMINISTIC_ALGORITHMS",
    "DUAL_LEVEL",
    "FSDP_TRAINING_STATE",
    "FUNCTORCH_STACK_MATCH",
    "GLOBAL_STATE",
    "GRAD_MODE",
    "SHAPE_ENV",
    "TORCH_FUNCTION_STATE",
})  # fmt: skip
"""Guards that read no Python object: `modes` compares that state. Entries pin every size, and with them what the shapes'
guard says of them."""
_BY_IDENTITY = frozenset({
    "BOOL_MATCH",
    "BUILTIN_MATCH",
    "CLASS_MATCH",
    "FUNCTION_MATCH",
    "ID_MATCH",
    "MODULE_MATCH",
    "NONE_MATCH",
    "NOT_NONE_MATCH",
})  # fmt: skip
"""Guards on which object stands at the end of a walk, whatever is in it."""
_ON_CONTENTS = frozenset({
    "CLOSURE_MATCH",
    "CONSTANT_MATCH",
    "DICT_CONTAINS",
    "DICT_KEYS_MATCH",
    "DICT_NOT_CONTAINS",
    "DICT_VERSION",
    "EMPTY_NN_MODULE_HOOKS_DICT",
    "EQUALS_MATCH",
    "HASATTR",
    "MAPPING_KEYS_CHECK",
    "NN_MODULE",
    "NOT_PRESENT_IN_GENERIC_DICT",
    "SEQUENCE_LENGTH",
    "TYPE_MATCH",
})  # fmt: skip
"""Guards on what is in the object at the end of a walk: it is watched like those on the way."""
_ON_EQUALITY = frozenset({"CONSTANT_MATCH", "EQUALS_MATCH"})
_ON_TENSORS = frozenset({"TENSOR_MATCH", "DISPATCH_KEY_SET_MATCH"})
_ON_PAIRS = frozenset({"DUPLICATE_INPUT"})
"""Guards that two walks lead to one object: they do while each leads where it led."""
_COPIES = (sources.TypeDictSource, sources.TypeMROSource)
"""Steps that make their value from a class, which is watched: a copy of its attributes, the order of its bases."""
_PLAIN = (
    int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice, tuple, frozenset,
    torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo,
    types.BuiltinFunctionType, types.MethodType, types.CodeType, types.MethodWrapperType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.MappingProxyType, staticmethod, classmethod, property, super, weakref.ref,
)  # fmt: skip
"""Types whose objects cannot change. (What a mapping proxy shows is a class's dict, which is watched with the class. What a
weak reference leads to is held, see `_take`.)"""


@dataclass(frozen=True, slots=True)
class Unwatched:
    """Why a program stays with Dynamo: the guard that nothing here implies."""

    guard: str
    """As Dynamo names it, its kind and the place that it reads; "" where it is no guard."""
    reason: str

    def __str__(self) -> str:
        """Return the reason, with the guard behind it."""
        return f"{self.reason} (guard {self.guard})" if self.guard else self.reason


@dataclass(frozen=True, slots=True)
class Step:
    """One place that Dynamo reads: where it is, and whether what is there is looked into."""

    source: Source
    guard: str
    is_read: bool
    is_deep: bool = False
    """Whether what containers in it hold counts too."""


@dataclass
class Reads:
    """What a captured program read, as it is now. Filled by `find`, each object once."""

    dicts: dict[int, Any] = field(default_factory=dict)
    keyed: dict[int, tuple[Any, dict[Any, Any]]] = field(default_factory=dict)
    """Dicts that change for other reasons, namespaces, with the keys that count."""
    objects: dict[int, Any] = field(default_factory=dict)
    """Objects whose class counts."""
    lists: dict[int, list[Any]] = field(default_factory=dict)
    cells: dict[int, Any] = field(default_factory=dict)
    functions: dict[int, Any] = field(default_factory=dict)
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    """Parameters, buffers and other tensors that are no inputs: their form counts."""
    seen: set[int] = field(default_factory=set)
    classes: set[type] = field(default_factory=set)


def steps_of(entries: Iterable[GuardFilterEntry], is_input: frozenset[str]) -> tuple[Step, ...] | Unwatched:
    """Return the places that guards read, each once, or the guard that keeps the program with Dynamo.

    `is_input` names the roots whose values are the inputs of a call: entries compare those in full.
    """
    steps: dict[tuple[Any, bool, bool], Step] = {}
    for entry in entries:
        guard = entry.orig_guard
        kind, source = entry.guard_type, guard.originating_source
        name = f"{kind} {source.name}".rstrip()
        if kind in _OF_THE_THREAD:
            continue
        if kind in _ON_PAIRS:
            others = [value for value in _bound(guard.create_fn) if isinstance(value, Source)]
            if any(_root(one).name in is_input for one in (source, *others)):
                return Unwatched(name, "one input is another one, or a part of the model")
            steps.update(((one, False, False), Step(one, name, is_read=False)) for one in (source, *others))
        elif kind not in _BY_IDENTITY | _ON_CONTENTS | _ON_TENSORS:
            return Unwatched(name, "this kind of guard has no equal here")
        elif _root(source).name not in is_input:
            is_read, is_deep = kind not in _BY_IDENTITY, kind in _ON_EQUALITY
            steps[source, is_read, is_deep] = Step(source, name, is_read, is_deep)
    return tuple(steps.values())


def find(steps: Sequence[Step], scope: Mapping[str, Any]) -> Reads | Unwatched:
    """Walk to every place, in the scope of Dynamo's expressions (`L`, `G`), and note each object on the way."""
    reads = Reads()
    values: dict[Source, Any] = {}
    for step in steps:
        value = _walk(step.source, scope, values, reads)
        if isinstance(value, Unwatched):
            return Unwatched(step.guard, value.reason)
        if step.is_read and value is not MISSING and (why := _note_all(value, reads, is_deep=step.is_deep)):
            return Unwatched(step.guard, why)
    return reads


def _walk(source: Source, scope: Mapping[str, Any], values: dict[Source, Any], reads: Reads) -> Any:
    """Return the value at a source, MISSING where there is none now, or why a step on the way cannot be watched."""
    if source in values:
        return values[source]
    base = getattr(source, "base", None)
    if base is None:
        value = _at_root(source, scope, reads)
    else:
        holder = _walk(base, scope, values, reads)
        if holder is MISSING or isinstance(holder, Unwatched):
            value = holder
        else:
            value = _take(source, holder, scope, reads, is_copy=isinstance(base, _COPIES))
    values[source] = value
    return value


def _at_root(source: Source, scope: Mapping[str, Any], reads: Reads) -> Any:
    if isinstance(source, sources.GlobalSource):
        names = scope["G"]
        value = names.get(source.global_name, MISSING)
        _note_key(names, source.global_name, value, reads)
        return value
    if isinstance(source, sources.LocalSource):
        return scope["L"][source.local_name]
    if isinstance(source, sources.ConstantSource):
        return MISSING
    return Unwatched("", f"it begins at a {type(source).__name__}")


def _take(source: Source, holder: Any, scope: Mapping[str, Any], reads: Reads, *, is_copy: bool) -> Any:
    """Return what one step leads to from the object before it, and note what would make it lead elsewhere."""
    try:
        value = _value(source, holder, scope)
    except (AttributeError, KeyError, IndexError):
        value = MISSING
    if isinstance(holder, weakref.ref) and (not isinstance(value, torch.Tensor) or _note(value, reads)):
        return Unwatched("", "it is reached by a weak reference")  # a tensor is held from now on, others may end
    if is_copy or isinstance(holder, _PLAIN):
        return value
    if isinstance(holder, types.ModuleType) and isinstance(source, sources.AttrSource):
        names: dict[str, Any] = holder.__dict__
        _note_key(names, source.member, names.get(source.member, MISSING), reads)
        return value
    if _is_namespace(holder) and isinstance(source, sources.DictGetItemSource) and isinstance(source.index, str):
        _note_key(cast("dict[str, Any]", holder), source.index, value, reads)
        return value
    if why := _note(holder, reads):
        return Unwatched("", why)
    return value


def _value(source: Source, holder: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(source, sources.UnspecializedParamBufferSource | sources.AttrSource):
        return getattr(holder, source.member)
    if isinstance(source, sources.DictGetItemSource) and not isinstance(source.index, Source):
        return holder[source.index]
    if getattr(source, "name", "") and type(source).__name__.endswith("NNModuleSource"):
        return holder
    try:
        return eval(source.name, {**_helpers(), **scope})
    except (AttributeError, KeyError, IndexError):
        raise
    except Exception as error:  # what an expression of Dynamo's raises where the model has changed
        raise KeyError(source.name) from error


def _helpers() -> Mapping[str, Any]:
    """Return the names that Dynamo's expressions use."""
    return dynamo_guards._get_closure_vars()  # pyright: ignore[reportPrivateUsage] - part of what a source's name means


def _note_all(value: Any, reads: Reads, *, is_deep: bool) -> str:
    """Note an object, and where its contents count, the containers in it."""
    why = _note(value, reads)
    if is_deep and not why and isinstance(value, (list, tuple, dict)):
        held = cast("Any", value)
        inner: Iterable[Any] = held.values() if isinstance(value, dict) else held
        return next((why for one in inner if (why := _note_all(one, reads, is_deep=True))), "")
    return why


def _note(given: object, reads: Reads) -> str:
    """Note all that an object holds itself. Return why it cannot be watched; "" where it can."""
    value = cast("Any", given)  # so that a test of its type leaves it what it is
    if id(value) in reads.seen:
        return ""
    reads.seen.add(id(value))
    if isinstance(value, torch.Tensor):
        reads.tensors[id(value)] = value
        return ""
    if isinstance(value, type):
        _note_class(value, reads)
        return ""
    if issubclass(type(value), (tuple, list)):
        if issubclass(type(value), list):
            reads.lists[id(value)] = value
        return _note_instance(value, reads)
    if issubclass(type(value), dict):
        reads.dicts[id(value)] = value
        return _note_instance(value, reads)
    if isinstance(value, types.FunctionType):
        return _note_function(value, reads)
    if isinstance(value, types.CellType):
        reads.cells[id(value)] = value
        return ""
    if isinstance(value, types.ModuleType):
        return f"all of the module {value.__name__} is read"
    if isinstance(value, _PLAIN):
        return ""
    if isinstance(value, torch.nn.Module):
        return _note_module(value, reads)
    return _note_instance(value, reads)


def _note_class(one: type, reads: Reads) -> None:
    """Watch a class and its bases. Those written in C cannot change."""
    if one in reads.classes:
        return
    reads.classes.add(one)
    for base in one.__mro__:
        if base.__flags__ & _IS_HEAP_TYPE and not base.__flags__ & _IS_IMMUTABLE:
            namespace: Any = gc.get_referents(base.__dict__)[0]
            reads.dicts[id(namespace)] = namespace


_IS_HEAP_TYPE, _IS_IMMUTABLE = 1 << 9, 1 << 8
"""Bits of `type.__flags__`: Py_TPFLAGS_HEAPTYPE and Py_TPFLAGS_IMMUTABLETYPE of CPython's object.h."""


def _note_function(function: Any, reads: Reads) -> str:
    reads.functions[id(function)] = function
    cells: tuple[types.CellType, ...] = function.__closure__ or ()
    for cell in cells:
        reads.cells[id(cell)] = cell
    if function.__kwdefaults__:
        reads.dicts[id(function.__kwdefaults__)] = function.__kwdefaults__
    attributes: dict[str, Any] = function.__dict__
    reads.dicts[id(attributes)] = attributes
    return ""


def _note_module(module: torch.nn.Module, reads: Reads) -> str:
    """Watch a module's attributes, and what it keeps in dicts of its own: parameters, buffers, submodules, hooks."""
    attributes: dict[str, Any] = module.__dict__
    for name, value in attributes.items():
        if name.startswith("_") and issubclass(type(value), dict):
            reads.dicts[id(value)] = value
    return _note_instance(module, reads)


def _note_instance(value: object, reads: Reads) -> str:
    """Watch an object's class and attributes."""
    if isinstance(value, threading.local):
        return "it is another one in each thread"
    kind = type(value)
    if kind.__flags__ & _IS_HEAP_TYPE:
        reads.objects[id(value)] = value
        _note_class(kind, reads)
    attributes: Any = getattr(value, "__dict__", None)
    if attributes is not None and not _is_dict(attributes):
        return f"a {kind.__name__} makes its attributes up"
    if attributes is not None:
        reads.dicts[id(attributes)] = attributes
    if kind is functools.partial:  # what it holds is read-only, and a dict
        reads.dicts[id(cast("Any", value).keywords)] = cast("Any", value).keywords
        return ""
    if slots := [name for base in kind.__mro__ for name in _slots(base)]:
        return f"a {kind.__name__} keeps {slots[0]} in a slot, whose changes cannot be seen"
    if attributes is None and not isinstance(value, (dict, list, tuple)):
        return f"changes of a {kind.__name__} cannot be seen"
    return ""


def _is_dict(value: object) -> bool:
    return type(value) is dict


def _slots(base: type) -> list[str]:
    members = vars(base).items()
    return [name for name, one in members if isinstance(one, types.MemberDescriptorType) and name != OWN_SLOT]


def _note_key(names: dict[str, Any], key: str, value: Any, reads: Reads) -> None:
    reads.keyed.setdefault(id(names), (names, {}))[1][key] = value


def _is_namespace(value: Any) -> bool:
    """Return whether a dict holds a Python module's names, which others write to as they please."""
    return type(value) is dict and "__name__" in value and "__spec__" in value


def _root(source: Source) -> Source:
    while (base := getattr(source, "base", None)) is not None:
        source = base
    return source


def _bound(function: Any) -> tuple[Any, ...]:
    """Return the arguments that a partial function holds."""
    return (*getattr(function, "args", ()), *getattr(function, "keywords", {}).values())
