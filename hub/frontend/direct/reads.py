"""Turn the guards that Dynamo made into the Python objects whose change could make one of them fail.

Dynamo walks to every value that the program read: from the model, through attributes and items, to a number, a function or
a tensor. It compares the value at the end of each walk. This module watches every object on the path for any change
instead. While none has changed, each walk ends at the same value, so Dynamo's guards would pass again. A change that no
guard depends on costs one call through Dynamo; a change that a guard depends on is never missed. If an object cannot be
watched, the guard stays with Dynamo.
"""

from __future__ import annotations

import collections
import functools
import gc
import struct
import threading
import types
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from hub.capture.call import OWN_SLOT
from hub.errors import type_of
from hub.torch_private import Guard, Source, get_closure_vars
from hub.torch_private import dynamo_sources as sources

MISSING = object()
"""Placeholder for the value of a key that a dict does not have."""

_OF_THE_THREAD = frozenset({
    "AUTOGRAD_SAVED_TENSORS_HOOKS",
    "DEFAULT_DEVICE",
    "DETERMINISTIC_ALGORITHMS",
    "DUAL_LEVEL",
    "FSDP_TRAINING_STATE",
    "FUNCTORCH_STACK_MATCH",
    "GLOBAL_STATE",
    "GRAD_MODE",
    "TORCH_FUNCTION_STATE",
})  # fmt: skip
"""Guards on state that belongs to no Python object. `modes` compares it."""
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
"""Guards on the identity of the object at the end of a walk, not on its contents."""
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
"""Guards on the contents of the object at the end of a walk. It is watched like the objects on the path."""
_ON_ATTRIBUTES = "HASATTR"
_ON_EQUALITY = frozenset({"CONSTANT_MATCH", "EQUALS_MATCH"})
_ON_TENSORS = frozenset({"TENSOR_MATCH", "DISPATCH_KEY_SET_MATCH"})
_ON_PAIRS = frozenset({"DUPLICATE_INPUT"})
"""Guards that two walks end at one object. They pass while each walk ends at the same object as before."""
_KNOWN = _BY_IDENTITY | _ON_CONTENTS | _ON_TENSORS
_COPIES = (sources.TypeDictSource, sources.TypeMROSource)
"""Sources that compute their value from a class, which is watched: a copy of its attributes, its MRO."""
_PLAIN = (
    int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice, tuple, frozenset,
    torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo,
    types.BuiltinFunctionType, types.MethodType, types.CodeType, types.MethodWrapperType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    staticmethod, classmethod, property, super, weakref.ref,
)  # fmt: skip
"""Types with immutable instances; those of subclasses can change. (`_take` holds the target of a weak reference.)"""
_UNCHANGING = frozenset(_PLAIN)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that consist of what TensorGuards compares, plus attributes."""
_PINNED = frozenset({"device", "dtype", "layout", "ndim", "requires_grad", "shape"})
"""Attributes of a tensor that follow from its form."""
_INTO_CONTAINERS = (
    sources.GetItemSource, sources.DictGetItemSource, sources.ConstDictKeySource, sources.ConvertIntSource,
    sources.DynamicScalarSource, sources.NegateSource,
)  # fmt: skip
"""Sources that lead from a call's inputs to values that entries compare."""


@dataclass(frozen=True, slots=True)
class Unwatched:
    """The reason why a program stays with Dynamo: a guard that no watch implies."""

    guard: str
    """The guard as Dynamo names it, its kind and its source; "" if the reason is not a guard."""
    reason: str

    def __str__(self) -> str:
        """Return the reason, followed by the guard."""
        return f"{self.reason} (guard {self.guard})" if self.guard else self.reason


@dataclass(frozen=True, slots=True)
class Step:
    """One source that Dynamo reads, and whether the contents of the object there count."""

    source: Source
    guard: str
    is_read: bool
    is_deep: bool = False
    """Whether the contents of nested containers count, too."""
    is_asked: bool = False
    """Whether the object there is asked for an attribute, which code of its class may supply."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes it from other steps: all but the guard."""
        return self.source, self.is_read, self.is_deep, self.is_asked


@dataclass
class Reads:
    """The current objects that a captured program reads. Filled by `find`, each object once."""

    dicts: dict[int, Any] = field(default_factory=dict)
    keyed: dict[int, tuple[Any, dict[Any, Any]]] = field(default_factory=dict)
    """Namespaces, dicts that also change for other reasons, with the keys that count."""
    objects: dict[int, Any] = field(default_factory=dict)
    """Objects whose class and attributes count."""
    lists: dict[int, list[Any]] = field(default_factory=dict)
    cells: dict[int, Any] = field(default_factory=dict)
    functions: dict[int, Any] = field(default_factory=dict)
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    """Parameters, buffers and other tensors that are not inputs. Their form counts."""
    classes: dict[type, None] = field(default_factory=dict)
    """Classes whose names and bases count. (Their attributes are among the dicts.)"""
    seen: dict[int, str] = field(default_factory=dict)
    """Identities of all noted objects, each with the reason why it cannot be watched; "" if it can."""
    walked: set[int] = field(default_factory=set)
    """Identities of all values that walks reached."""

    def has_all(self, second: Reads, third: Reads) -> bool:
        """Return whether these are the objects that two later walks led to, apart from those that each walk makes anew.

        Dynamo reads some through copies, such as that of a class's dict.
        """
        names = ("dicts", "keyed", "objects", "lists", "cells", "functions", "tensors", "classes")
        found = ((getattr(self, name), getattr(second, name), getattr(third, name)) for name in names)
        return all(
            len(first) == len(later) == len(latest) and first.keys() >= later.keys() & latest.keys()
            for first, later, latest in found
        )


@dataclass(frozen=True, slots=True)
class Needs:
    """What must hold for a call to use a captured program, according to Dynamo's guards."""

    steps: tuple[Step, ...]
    """Sources that are watched in place of guards."""
    kept: tuple[Guard, ...]
    """The other guards, mostly on inputs. They must be checked at every call."""
    of_the_thread: tuple[Guard, ...]
    """Guards on the thread's state, which `modes` compares too."""
    unwatched: Unwatched | None
    """A kept guard that an entry for one form of the inputs does not imply; None if it implies all of them."""


def needs_of(
    guards: Iterable[tuple[str, Guard]],
    unguarded: Iterable[Source],
    is_input: frozenset[str],
    scope: Mapping[str, Any],
    functions: Iterable[Any] = (),
) -> Needs:
    """Return which guards, each given after its kind, a watch implies, and which have to be checked.

    `unguarded` are the sources of values in the result on which Dynamo makes no guard. `is_input` names the root sources
    that are the inputs of a call. `scope` and `functions` are as in `find`.
    """
    steps: dict[tuple[Any, ...], Step] = {}
    kept: list[Guard] = []
    of_the_thread: list[Guard] = []
    unwatched: list[Unwatched] = []
    finder = _Finder(scope, functions)

    def is_watched(placed: tuple[Step, ...] | Unwatched) -> bool:
        if not isinstance(placed, Unwatched):
            placed = next((why for step in placed if (why := finder.note(step))), placed)
        if isinstance(placed, Unwatched):
            unwatched.append(placed)
            return False
        steps.update((step.key, step) for step in placed)
        return bool(placed)

    for kind, guard in guards:
        if kind in _OF_THE_THREAD:
            of_the_thread.append(guard)
        elif not is_watched(_placed(kind, guard, is_input)):
            kept.append(guard)
    for source in unguarded:
        is_watched(_placed_in_result(source, is_input))
    return Needs(tuple(steps.values()), tuple(kept), tuple(of_the_thread), unwatched[0] if unwatched else None)


def tensors_of(needs: Needs, is_input: frozenset[str]) -> tuple[Source, ...]:
    """Return the sources of the tensors that a program reads from its inputs, in the graph or by identity alone."""
    found = (guard.originating_source for guard in needs.kept if guard.create_fn_name() == "TENSOR_MATCH")
    return tuple(source for source in found if root_of(source).name in is_input)


def _placed(kind: str, guard: Guard, is_input: frozenset[str]) -> tuple[Step, ...] | Unwatched:
    """Return the sources that a guard reads, () if they are inputs that entries compare in full, or why it is unwatched."""
    source = guard.originating_source
    name = f"{kind} {source.name}".rstrip()
    if kind == "SHAPE_ENV":
        return ()  # entries pin every size
    if kind in _ON_PAIRS:
        others = [value for value in _bound(guard.create_fn) if isinstance(value, Source)]
        if any(root_of(one).name in is_input for one in (source, *others)):
            return Unwatched(name, "one input is another one, or a part of the model")
        return tuple(Step(one, name, is_read=False) for one in (source, *others))
    if root_of(source).name in is_input:
        is_compared = _is_compared(source) and kind in _KNOWN and kind != _ON_ATTRIBUTES
        return () if is_compared else Unwatched(name, "an attribute of an input is read")
    if kind not in _KNOWN:
        return Unwatched(name, "this kind of guard has no equal here")
    return (Step(source, name, kind not in _BY_IDENTITY, kind in _ON_EQUALITY, kind == _ON_ATTRIBUTES),)


def _placed_in_result(source: Source, is_input: frozenset[str]) -> tuple[Step, ...] | Unwatched:
    """Return as `_placed` does for a number or string in the result, which Dynamo's code reads at each call."""
    name = f"{source.name} in the result"
    if root_of(source).name not in is_input:
        return (Step(source, name, is_read=False),)
    return () if _is_compared(source) else Unwatched(name, "an attribute of an input is read")


def find(steps: Sequence[Step], scope: Mapping[str, Any], functions: Iterable[Any] = ()) -> Reads | Unwatched:
    """Walk to every source, in the scope of Dynamo's expressions (`L`, `G`), and note each object on the path.

    `functions` are noted, too.
    """
    finder = _Finder(scope, functions)
    return next((why for step in steps if (why := finder.note(step))), finder.reads)


class _Finder:
    """A walker over sources, one after the other. An object that cannot be watched once is never watched later."""

    def __init__(self, scope: Mapping[str, Any], functions: Iterable[Any]) -> None:
        self.reads = Reads()
        self._scope, self._values = scope, dict[Source, Any]()
        for function in functions:
            _note(function, self.reads)

    def note(self, step: Step) -> Unwatched | None:
        """Note all objects on the path to one source. Return why one of them cannot be watched; None if all can."""
        value = _walk(step.source, self._scope, self._values, self.reads)
        if isinstance(value, Unwatched):
            return Unwatched(step.guard, value.reason)
        if step.is_asked and _makes_attributes_up(type(value)):
            return Unwatched(step.guard, f"{type_of(value)} makes attributes up")
        if step.is_read and value is not MISSING and (why := _note_all(value, self.reads, is_deep=step.is_deep)):
            return Unwatched(step.guard, why)
        return None


def _makes_attributes_up(kind: Any) -> bool:
    """Return whether a class has a `__getattr__` other than that of modules, which looks in dicts that are watched."""
    return getattr(kind, "__getattr__", None) not in (None, torch.nn.Module.__getattr__)


def _walk(source: Source, scope: Mapping[str, Any], values: dict[Source, Any], reads: Reads) -> Any:
    """Return the value at a source, MISSING if it has none now, or why an object on the path cannot be watched."""
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
    reads.walked.add(id(value))
    return value


def _at_root(source: Source, scope: Mapping[str, Any], reads: Reads) -> Any:
    if isinstance(source, sources.GlobalSource):
        names = scope["G"]
        value = names.get(source.global_name, MISSING)
        _note_key(names, source.global_name, value, reads)
        return value
    if isinstance(source, sources.LocalSource):
        name = source.local_name
        return scope["L"][name] if name in scope["L"] else Unwatched("", f"{name} has no value when the call begins")
    if isinstance(source, sources.ConstantSource):
        return MISSING
    return Unwatched("", f"it begins at {type_of(source)}")


def _take(source: Source, holder: Any, scope: Mapping[str, Any], reads: Reads, *, is_copy: bool) -> Any:
    """Return the value that one step reads from `holder`, and note everything that could change that value."""
    if isinstance(source, _CALLS):
        return Unwatched("", "it is what a function returns")
    try:
        value = _value(source, holder, scope)
    except Exception:  # noqa: BLE001 - a property may raise anything
        value = MISSING
    if issubclass(type(holder), weakref.ref) and (not isinstance(value, torch.Tensor) or _note(value, reads)):
        return Unwatched("", "it is reached by a weak reference")  # tensors are kept alive from now on, others may die
    if is_copy or type(holder) in _UNCHANGING:
        return value
    member = source.member if isinstance(source, _ATTRIBUTES) else None
    if issubclass(type(holder), types.ModuleType) and member is not None:
        names: dict[str, Any] = holder.__dict__
        _note_key(names, member, names.get(member, MISSING), reads)
        _note_class(holder.__class__, reads)
        return value if names.get(member, MISSING) is value else Unwatched("", f"the module makes {member} up")
    if _is_namespace(holder) and isinstance(source, sources.DictGetItemSource) and isinstance(source.index, str):
        _note_key(cast("dict[str, Any]", holder), source.index, value, reads)
        return value
    if why := _note(holder, reads):
        return Unwatched("", why)
    if member is not None and issubclass(type(holder), collections.OrderedDict):
        reads.objects[id(holder)] = holder
    if member is not None and not _is_kept(holder, member, value):
        return Unwatched("", f"{type_of(holder)} computes {member}, or stores it where changes cannot be seen")
    return value


_CALLS = tuple(
    getattr(sources, name)
    for name in (
        "AttrProxySource", "CallFunctionNoArgsSource", "CallMethodItemSource", "FlattenScriptObjectSource",
        "ScriptObjectQualifiedNameSource", "SubclassAttrListSource",
    )
    if hasattr(sources, name)
)  # fmt: skip
"""Sources that call a function or method each time, as far as this PyTorch has them."""
_ATTRIBUTES = (sources.AttrSource, sources.GenericAttrSource, sources.GradSource)
_MADE_BY_PYTHON = (
    types.FunctionType, types.CellType, types.MethodType, types.CodeType, type,
)  # fmt: skip
"""Built-in types of which all attributes are watched."""


def _is_kept(holder: Any, member: str, value: Any) -> bool:
    """Return whether an attribute's value lies in a watched dict, rather than being computed by code or by a tensor."""
    kind = cast("type[Any]", type(holder))
    in_class = next((vars(base)[member] for base in kind.__mro__ if member in vars(base)), MISSING)
    if isinstance(holder, type):
        held = next((vars(base)[member] for base in holder.__mro__ if member in vars(base)), MISSING)
        return not _runs_code(held) and not _runs_code(in_class)
    if kind in _MADE_BY_PYTHON or value is MISSING:
        return True
    if isinstance(holder, torch.Tensor) and member in _PINNED:
        return True
    attributes: Any = getattr(holder, "__dict__", {})
    if value is attributes or value is kind or value is in_class or value is attributes.get(member, MISSING):
        return True
    if isinstance(holder, torch.nn.Module) and any(
        value is attributes.get(part, {}).get(member, MISSING) for part in ("_parameters", "_buffers", "_modules")
    ):
        return True
    return isinstance(in_class, (types.FunctionType, classmethod, staticmethod, *_OF_TYPES_IN_C)) or _is_field(in_class)


_OF_TYPES_IN_C = (types.MethodDescriptorType, types.ClassMethodDescriptorType, types.WrapperDescriptorType)


def _is_field(one: Any) -> bool:
    """Return whether a class attribute is a field of a named tuple."""
    return type(one).__module__ == "collections" and type(one).__name__ == "_tuplegetter"


def _runs_code(one: Any) -> bool:
    """Return whether reading this class attribute runs Python code."""
    kind = cast("type[Any]", type(one))
    return issubclass(kind, property) or (bool(kind.__flags__ & IS_HEAP_TYPE) and hasattr(kind, "__get__"))


def _value(source: Source, holder: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(source, sources.UnspecializedParamBufferSource | sources.AttrSource):
        return getattr(holder, source.member)
    if isinstance(source, sources.DictGetItemSource) and not isinstance(source.index, Source):
        return holder[source.index]
    if getattr(source, "name", "") and type(source).__name__.endswith("NNModuleSource"):
        return holder
    return eval(source.name, {**get_closure_vars(), **scope})  # may raise anything once the model has changed


def _note_all(value: Any, reads: Reads, *, is_deep: bool) -> str:
    """Note an object and, if `is_deep`, the contents of containers in it. Return as `_note` does."""
    why = _note(value, reads)
    if is_deep and not why and isinstance(value, (list, tuple, dict)):
        held = cast("Any", value)
        inner: Iterable[Any] = held.values() if isinstance(value, dict) else held
        return next((why for one in inner if (why := _note_all(one, reads, is_deep=True))), "")
    return why


def _note(given: object, reads: Reads) -> str:
    """Note an object and its own state. Return why it cannot be watched; "" if it can."""
    value = cast("Any", given)  # so that a type check does not narrow it
    if (why := reads.seen.get(id(value))) is None:
        reads.seen[id(value)] = ""
        why = reads.seen[id(value)] = _note_new(value, reads)
    return why


def _note_new(value: Any, reads: Reads) -> str:
    kind = cast("type[Any]", type(value))
    if kind in _UNCHANGING:
        return ""
    if issubclass(kind, torch.Tensor):
        return _note_tensor(value, reads)
    if issubclass(kind, type):
        _note_class(value, reads)
        return ""
    if kind is types.FunctionType:
        return _note_function(value, reads)
    if kind is types.CellType:
        reads.cells[id(value)] = value
        return ""
    if kind is types.MappingProxyType:
        return _note(gc.get_referents(value)[0], reads)
    if issubclass(kind, types.ModuleType):
        return f"all of the module {value.__name__} is read"
    if issubclass(kind, torch.nn.Module):
        return _note_module(value, reads)
    return _note_instance(value, reads)


def _note_tensor(tensor: torch.Tensor, reads: Reads) -> str:
    """Watch the form of a tensor and its attributes. Return as `_note` does."""
    if type(tensor) not in _TENSORS:
        return f"changes of {type_of(tensor)} cannot be seen"
    if tensor.is_inference():  # reading its version counter would abort the process
        return "PyTorch does not count writes to a tensor that was made in inference mode"
    if tensor.is_complex() or tensor.is_neg():
        return "it cannot be seen whether a complex tensor is conjugated"
    reads.tensors[id(tensor)] = tensor
    reads.objects[id(tensor)] = tensor
    return ""


def _note_class(one: type, reads: Reads) -> None:
    """Watch a class, its bases and its metaclass. Classes written in C cannot change."""
    if one in reads.classes:
        return
    if _can_change(one):
        reads.classes[one] = None
    for base in one.__mro__:
        if _can_change(base):
            namespace: Any = gc.get_referents(base.__dict__)[0]
            reads.dicts[id(namespace)] = namespace
    if type(one) is not type:
        reads.objects[id(one)] = one
        _note_class(type(one), reads)


def _can_change(one: type) -> bool:
    return bool(one.__flags__ & IS_HEAP_TYPE) and not one.__flags__ & _IS_IMMUTABLE


IS_HEAP_TYPE, _IS_IMMUTABLE = 1 << 9, 1 << 8
"""Bits of `type.__flags__`: Py_TPFLAGS_HEAPTYPE and Py_TPFLAGS_IMMUTABLETYPE in CPython's object.h."""


def _note_function(function: Any, reads: Reads) -> str:
    reads.functions[id(function)] = function
    cells: tuple[types.CellType, ...] = function.__closure__ or ()
    for cell in cells:
        reads.cells[id(cell)] = cell
    if function.__kwdefaults__:
        reads.dicts[id(function.__kwdefaults__)] = function.__kwdefaults__
    reads.objects[id(function)] = function
    return ""


def _note_module(module: torch.nn.Module, reads: Reads) -> str:
    """Watch a module's attributes, and its own dicts: parameters, buffers, submodules, hooks. Return as `_note` does."""
    attributes: dict[str, Any] = module.__dict__
    for name, value in attributes.items():
        if name.startswith("_") and name not in _FOR_STATE_DICTS and issubclass(type(value), dict):
            if _has_hidden_order(value):
                return f"the order of {name} can change unseen"
            reads.dicts[id(value)] = value
    return _note_instance(module, reads)


_FOR_STATE_DICTS = frozenset({
    "_load_state_dict_post_hooks",
    "_load_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
})  # fmt: skip
"""Dicts of a module that no call reads by itself, a third of its empty ones. If a model reads one, a guard leads to it."""


def _has_hidden_order(value: Any) -> bool:
    """Return whether `move_to_end` could change the order of a dict, which does not change its version tag."""
    return issubclass(type(value), collections.OrderedDict) and len(value) > 1


def _note_instance(value: object, reads: Reads) -> str:
    """Watch an object's class, its attributes, and its items if it is a list or dict. Return as `_note` does."""
    kind: type = type(value)
    if issubclass(kind, threading.local):
        return "it is another one in each thread"
    if kind is functools.partial:  # its state is read-only, except for a dict and for `__setstate__`
        keywords = cast("Any", value).keywords
        reads.dicts[id(keywords)] = keywords
        reads.objects[id(value)] = value
        return ""
    if hidden := next((base for base in kind.__mro__ if _hides_state(base)), None):
        slots = [name for name, one in vars(hidden).items() if isinstance(one, types.MemberDescriptorType)]
        return f"{type_of(value)} stores {slots[0] if slots else 'something'} in a slot, whose changes cannot be seen"
    if _has_hidden_order(value):
        return f"the order of {type_of(value)} can change unseen"
    if issubclass(kind, list):
        reads.lists[id(value)] = cast("Any", value)
    if issubclass(kind, dict):
        reads.dicts[id(value)] = value
    if kind.__flags__ & IS_HEAP_TYPE:
        _note_class(type(value), reads)
    if kind not in _UNCHANGING and kind not in _WITHOUT_ATTRIBUTES:
        reads.objects[id(value)] = value
    return ""


_WITHOUT_ATTRIBUTES = (dict, list, collections.OrderedDict)
"""Types whose objects have no attributes that count and cannot change class. (An OrderedDict may have some: `_take`.)"""


def _hides_state(base: type) -> bool:
    """Return whether a class adds more to its objects than a `__dict__` and a list of weak references."""
    if base in _WATCHABLE or base in _UNCHANGING:
        return False
    parent = base.__base__
    if parent is None:
        return False
    has_dict = parent.__dictoffset__ == 0 != base.__dictoffset__
    has_references = parent.__weakrefoffset__ == 0 != base.__weakrefoffset__
    is_compiled = OWN_SLOT in vars(base)
    n_known = (has_dict and not base.__flags__ & _HAS_MANAGED_DICT) + is_compiled
    n_known += has_references and not base.__flags__ & _HAS_MANAGED_REFERENCES
    known_bytes = n_known * struct.calcsize("P")
    return not base.__flags__ & IS_HEAP_TYPE or base.__basicsize__ - parent.__basicsize__ > known_bytes


_HAS_MANAGED_DICT, _HAS_MANAGED_REFERENCES = 1 << 4, 1 << 3
"""Bits of `type.__flags__`, Py_TPFLAGS_MANAGED_DICT and (CPython 3.12) Py_TPFLAGS_MANAGED_WEAKREF: these lie before the
object and are not in its size."""
_WATCHABLE: frozenset[type] = frozenset({object, dict, list, tuple, collections.OrderedDict, types.SimpleNamespace})
"""Types written in C whose objects hold only attributes and items. (For an OrderedDict's order see `_note_instance`.)"""


def _note_key(names: dict[str, Any], key: str, value: Any, reads: Reads) -> None:
    reads.keyed.setdefault(id(names), (names, {}))[1][key] = value


def _is_namespace(value: Any) -> bool:
    """Return whether a dict is a Python module's namespace, which unrelated code may write to."""
    return type(value) is dict and "__name__" in value and "__spec__" in value


def _is_compared(source: Source) -> bool:
    """Return whether entries compare everything at a source in the inputs: an item, or the size or stride of a tensor."""
    while (base := getattr(source, "base", None)) is not None:
        if isinstance(source, sources.TensorPropertySource):
            if source.prop is sources.TensorProperty.STORAGE_OFFSET:
                return False
        elif not isinstance(source, _INTO_CONTAINERS):
            return False
        source = base
    return True


def root_of(source: Source) -> Source:
    """Return the source at which the walk to `source` begins."""
    while (base := getattr(source, "base", None)) is not None:
        source = base
    return source


def _bound(function: Any) -> tuple[Any, ...]:
    """Return the arguments bound in a `functools.partial`."""
    return (*getattr(function, "args", ()), *getattr(function, "keywords", {}).values())
