"""Makes changes of what each guard of Dynamo's reads, at its place, and what undoes them."""

from __future__ import annotations

import collections
import copy
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._dynamo import guards as dynamo_guards
from torch._dynamo import source as sources
from torch.nn.modules import module as torch_module

from hub.frontend.direct import recorder

IS_HEAP_TYPE = 1 << 9
ON_WHICH = ("BUILTIN_MATCH", "CLASS_MATCH", "DUPLICATE_INPUT", "FUNCTION_MATCH", "ID_MATCH", "MODULE_MATCH")
"""Guards on which object it is, whatever is in it."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True)
class Change:
    """One change of what a program read."""

    name: str
    apply: Callable[[], object]
    undo: Callable[[], object]
    is_noticed_by_graph: bool = False
    """Whether it may be the graph, not the watch, that notices: the values of weights."""


@dataclass(frozen=True)
class Guard:
    """One guard on something other than inputs."""

    kind: str
    source: Any


class Guards:
    """The guards of the programs that are captured while this listens."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found: list[Guard] = []
        inner = recorder.Captures.guarded_by

        def listen(captures: Any, entries: Sequence[Any]) -> Sequence[bool]:
            for entry in entries:
                source = entry.orig_guard.originating_source
                if _root(source).name not in recorder.INPUTS:
                    self.found.append(Guard(entry.guard_type, source))
            return inner(captures, entries)

        patch.setattr(recorder.Captures, "guarded_by", listen)


def changes_of(guards: Sequence[Guard], program: Any) -> Iterator[Change]:
    """Yield changes for all guards, each place and object once."""
    scope: dict[str, Any] = {"L": {"model": program.function}, "G": program._globals}
    done: set[Any] = set()
    for guard in guards:
        for source in _chain(guard.source):
            if isinstance(source, (sources.LocalSource, sources.GlobalSource, sources.GlobalStateSource)):
                continue
            yield from _new(_at_place(source, scope), done)
        if guard.kind not in ON_WHICH and not isinstance(guard.source, sources.TypeDictSource):  # which is a copy
            yield from _new(_in_value(guard.source.name, _found(guard.source, scope)), done)


def _new(changes: Iterator[tuple[Any, Change]], done: set[Any]) -> Iterator[Change]:
    for key, change in changes:
        if key not in done:
            done.add(key)
            yield change


def _root(source: Any) -> Any:
    while (base := getattr(source, "base", None)) is not None:
        source = base
    return source


def _chain(source: Any) -> Iterator[Any]:
    while source is not None:
        yield source
        source = getattr(source, "base", None)


MISSING: Any = object()


def _found(source: Any, scope: dict[str, Any]) -> Any:
    values: dict[Any, Any] = scope.setdefault("values", {})
    if source not in values:
        values[source] = _evaluated(source, scope)
    return values[source]


def _evaluated(source: Any, scope: dict[str, Any]) -> Any:
    try:
        return eval(source.name, {**dynamo_guards._get_closure_vars(), **scope})
    except Exception:  # noqa: BLE001 - what an expression of Dynamo's raises
        return MISSING


def _at_place(source: Any, scope: dict[str, Any]) -> Iterator[tuple[Any, Change]]:
    """Yield changes of what a step leads to: another value, or none."""
    base = getattr(source, "base", None)
    holder = MISSING if base is None else _found(base, scope)
    member, index = getattr(source, "member", None), getattr(source, "index", None)
    value = _found(source, scope)
    if holder is MISSING or value is MISSING or getattr(holder, "__name__", "") == "builtins":
        return  # nothing runs without them, this test neither
    if (isinstance(holder, dict) and holder.get("__name__") == "builtins") or isinstance(value, types.ModuleType):
        return
    if getattr(holder, "__name__", "") == "torch.compiler":  # what answers in the place of Dynamo needs it
        return
    if isinstance(base, sources.TypeDictSource):  # a copy
        holder, member, index = _found(base.base, scope), source.index, None
        if member not in vars(holder) or not holder.__flags__ & IS_HEAP_TYPE:
            return
    if isinstance(holder, types.CellType):
        new = different(value)
        yield (
            (id(holder), "contents"),
            Change(f"{source.name} is another", _set(holder, "cell_contents", new), _set(holder, "cell_contents", value)),
        )
    elif member is not None and member in getattr(holder, "__dict__", {}) and not isinstance(holder, type):
        names = holder.__dict__
        yield (
            (id(names), member, "set"),
            Change(f"{source.name} is another", _put(names, member, different(value)), _put(names, member, value)),
        )
        yield (id(names), member, "deleted"), Change(f"{source.name} is deleted", *_without(names, member))
    elif member is not None and isinstance(holder, type) and member in vars(holder):
        yield (
            (id(holder), member),
            Change(f"{source.name} is another", _set(holder, member, different(value)), _set(holder, member, value)),
        )
    elif isinstance(holder, dict) and not isinstance(index, sources.Source) and index in holder:
        is_shared = "__name__" in holder and "__spec__" in holder
        yield (
            (id(holder), index, "set"),
            Change(f"{source.name} is another", _put(holder, index, different(value)), _put(holder, index, value)),
        )
        if not is_shared:
            yield (id(holder), index, "deleted"), Change(f"{source.name} is deleted", *_without(holder, index))
    elif isinstance(holder, list) and isinstance(index, int):
        yield (
            (id(holder), index, "set"),
            Change(f"{source.name} is another", _put(holder, index, different(value)), _put(holder, index, value)),
        )
        yield (
            (id(holder), "shorter"),
            Change(
                f"{source.name} is taken out",
                holder.pop,
                lambda: holder.append(last),
            )
            if (last := holder[-1]) is not None
            else ((), MISSING),
        )


def _in_value(name: str, value: Any) -> Iterator[tuple[Any, Change]]:
    """Yield changes of an object that is read."""
    key = id(value)
    if isinstance(value, torch.Tensor):
        yield from (((key, change.name), change) for change in _of_tensor(name, value))
    elif isinstance(value, torch.nn.Module):
        yield from (((key, change.name), change) for change in _of_module(name, value))
    elif isinstance(value, types.FunctionType):
        if value.__module__ == "torch.compiler":
            return
        yield from (((key, change.name), change) for change in _of_function(name, value))
    elif isinstance(value, type):
        if value.__flags__ & IS_HEAP_TYPE and value.__module__ != "builtins":
            yield (
                (key, "class"),
                Change(
                    f"{name} has another attribute", lambda: setattr(value, "_added", 1), lambda: delattr(value, "_added")
                ),
            )
    elif isinstance(value, dict):
        yield (
            (key, "more"),
            Change(f"{name} has one more key", lambda: value.update(_added=_hook), lambda: value.pop("_added")),
        )
        if value and not isinstance(value, collections.OrderedDict):
            yield (key, "order"), Change(f"{name} has another order", *_reordered(value))
    elif isinstance(value, list):
        yield (key, "longer"), Change(f"{name} is longer", lambda: value.append(1), value.pop)
    elif hasattr(value, "__dict__") and type(value).__flags__ & IS_HEAP_TYPE and not isinstance(value, types.ModuleType):
        yield from (((key, change.name), change) for change in _of_object(name, value))


def _of_object(name: str, value: Any) -> Iterator[Change]:
    kind = type(value)
    other = type(kind)(kind.__name__, (kind,), {}) if not hasattr(kind, "__members__") else None
    names = value.__dict__
    yield Change(f"{name} has another attribute", lambda: names.update(_added=1), lambda: names.pop("_added"))
    if other is not None:
        yield Change(
            f"{name} has another class",
            lambda: object.__setattr__(value, "__class__", other),
            lambda: object.__setattr__(value, "__class__", kind),
        )
        replaced = dict(names)
        yield Change(
            f"{name} has another dict",
            lambda: object.__setattr__(value, "__dict__", replaced),
            lambda: object.__setattr__(value, "__dict__", names),
        )


def _of_module(name: str, value: torch.nn.Module) -> Iterator[Change]:
    yield from _of_object(name, value)
    training = value.training
    yield Change(
        f"{name}.training is another",
        lambda: setattr(value, "training", not training),
        lambda: setattr(value, "training", training),
    )
    for part in HOOKS:
        hooks = getattr(value, part)
        yield Change(
            f"{name}.{part} has a hook", lambda hooks=hooks: hooks.update({-1: _hook}), lambda hooks=hooks: hooks.pop(-1)
        )


def _of_function(name: str, value: types.FunctionType) -> Iterator[Change]:
    code, defaults, keywords = value.__code__, value.__defaults__, value.__kwdefaults__
    if not code.co_freevars:
        yield Change(
            f"{name}.__code__ is another",
            lambda: setattr(value, "__code__", _raise.__code__),
            lambda: setattr(value, "__code__", code),
        )
    yield Change(
        f"{name}.__defaults__ are others",
        lambda: setattr(value, "__defaults__", (7.0,) * code.co_argcount),
        lambda: setattr(value, "__defaults__", defaults),
    )
    if keywords:
        yield Change(
            f"{name}.__kwdefaults__ are others",
            lambda: setattr(value, "__kwdefaults__", dict.fromkeys(keywords, 7.0)),
            lambda: setattr(value, "__kwdefaults__", keywords),
        )


def _of_tensor(name: str, value: torch.Tensor) -> Iterator[Change]:
    data = value.detach()
    kept = data.clone()

    def put(new: torch.Tensor) -> Callable[[], object]:
        return lambda: setattr(value, "data", new)

    def write(new: Any) -> None:
        with torch.no_grad():
            value.copy_(new)

    if data.is_floating_point():
        yield Change(f"{name} is written in place", lambda: write(kept + 1), lambda: write(kept), is_noticed_by_graph=True)
        yield Change(f"{name}.data is another of its form", put(kept + 1), put(data), is_noticed_by_graph=True)
        yield Change(f"{name}.data is of another dtype", put(data.double()), put(data))
        needs = value.requires_grad
        if value.is_leaf:
            yield Change(
                f"{name}.requires_grad is another",
                lambda: value.requires_grad_(not needs),
                lambda: value.requires_grad_(needs),
                is_noticed_by_graph=True,
            )
    if data.dim() >= 2 and data.shape[0] > 1:
        yield Change(
            f"{name}.data is transposed",
            put(data.transpose(0, 1)),
            put(data),
            is_noticed_by_graph=data.shape[0] == data.shape[1] == 1,
        )
    if data.dim() >= 1:
        yield Change(f"{name}.data is larger", put(torch.cat([kept, kept])), put(data))
        yield Change(
            f"{name}.data has strides",
            put(torch.stack([kept, kept], -1)[..., 0]),
            put(data),
            is_noticed_by_graph=data.numel() <= 1,
        )
    yield (
        Change(f"{name}.data is on meta", put(data.to("meta")), put(data))
        if False
        else Change(f"{name} has an attribute", lambda: setattr(value, "_added", 1), lambda: delattr(value, "_added"))
    )


def settings() -> Iterator[Change]:
    """Yield changes of what belongs to the thread or process."""
    from torch.autograd import forward_ad
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    contexts: dict[str, Callable[[], Any]] = {
        "gradients": torch.enable_grad,
        "inference mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "a function mode": Functions,
        "a dispatch mode": Dispatches,
        "hooks on saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
        "forward-mode gradients": forward_ad.dual_level,
        "a default device": lambda: torch.device("cpu"),
        "no torch function": torch._C.DisableTorchFunctionSubclass,
    }
    for name, make in contexts.items():
        yield _entered(name, make)
    threads = torch.get_num_threads()
    yield Change("threads", lambda: torch.set_num_threads(threads + 1), lambda: torch.set_num_threads(threads))
    yield Change(
        "default dtype", lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)
    )
    yield Change(
        "determinism", lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)
    )
    yield Change(
        "determinism, warned of",
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.use_deterministic_algorithms(False),
    )
    yield Change("stance", lambda: torch.compiler.set_stance("force_eager"), lambda: torch.compiler.set_stance("default"))
    for part in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        hooks = getattr(torch_module, part)
        yield Change(f"{part} has a hook", lambda hooks=hooks: hooks.update({-1: _hook}), lambda hooks=hooks: hooks.pop(-1))


def _entered(name: str, make: Callable[[], Any]) -> Change:
    made: list[Any] = []

    def enter() -> None:
        made.append(make())
        made[-1].__enter__()

    return Change(name, enter, lambda: made.pop().__exit__(None, None, None))


def _hook(*_: Any) -> None:
    return None


def _raise(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError


def different(value: Any) -> Any:
    """Return a value that differs from this one, of the same type if that is easy."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(value.detach() + 1, requires_grad=value.requires_grad)
    if isinstance(value, torch.Tensor):
        return value + 1
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value)
    if isinstance(value, types.FunctionType):
        return _raise
    if isinstance(value, (list, tuple, dict)):
        return copy.copy(value) if isinstance(value, (list, dict)) else ()
    return object()


def _set(holder: Any, name: str, value: Any) -> Callable[[], object]:
    return lambda: setattr(holder, name, value)


def _put(holder: Any, key: Any, value: Any) -> Callable[[], object]:
    def put() -> None:
        holder[key] = value

    return put


def _without(holder: dict[Any, Any], key: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    items = dict(holder)

    def undo() -> None:
        holder.clear()
        holder.update(items)

    return lambda: holder.pop(key), undo


def _reordered(holder: dict[Any, Any]) -> tuple[Callable[[], object], Callable[[], object]]:
    items = dict(holder)

    def turn() -> None:
        first = next(iter(holder))
        holder[first] = holder.pop(first)

    def undo() -> None:
        holder.clear()
        holder.update(items)

    return turn, undo
