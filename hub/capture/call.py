"""Capture the programs of one call of a model, without an effect on other compiled models in the process."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from hub.capture.frames import Frames, captured_for_hub
from hub.torch_private import (
    DeletedGuardManagerWrapper,
    OptimizedModule,
    cached_backends,
    get_cache_entry_list,
    innermost_fn,
)

OWN_SLOT = "_hub_program"
"""Attribute of what `hub.compile` returns that holds the object that runs its calls. Set once."""
BYPASSED = "hub_bypasses"
"""Attribute of a function of the hub's that holds the one of `torch.compile`'s whose place it has taken."""
_NO_LIMIT = 2**31
_SETTINGS: Mapping[str, Any] = {
    "automatic_dynamic_shapes": False,  # use only the sizes of this call, and do not remember them
    "recompile_limit": _NO_LIMIT,
    "accumulated_recompile_limit": _NO_LIMIT,
}
_compile = cast("Any", torch).compile  # its annotations are incomplete
APART: Mapping[str, Any] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(_compile).parameters else {}
)
"""Options of `torch.compile` that keep compiled code separate from that of other callers, from PyTorch 2.13 on."""


def capture_call(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    backend: Callable[..., Any],
    **how: Any,
) -> Frames:
    """Call `model` once, without gradients, and pass each captured program to `backend`. Return the record of its frames.

    Code that PyTorch compiled before is neither used nor dropped, and nothing of this call is kept. `how` is passed to
    `torch.compile`.
    """
    plain = uncompiled(model)

    def call(*inputs: Any, **kwargs: Any) -> Any:
        return plain(*inputs, **kwargs)

    # PyTorch keeps compiled code, and the decision to skip a function, by code object: this one is new with each call.
    call.__code__ = call.__code__.replace()

    programs: list[_Program] = []

    @functools.wraps(backend)
    def own(*args: Any) -> Any:
        programs.append(_Program(backend(*args)))
        return programs[-1].__call__

    frames = Frames()
    captured_for_hub(own, frames=frames, **_SETTINGS)
    try:
        with torch.no_grad():
            _compile(call, backend=own, **APART, **how)(*inputs, **(kwargs or {}))
    finally:
        _forget(frames, own)
        for program in programs:
            program.run = None
    return frames


@dataclass(slots=True)
class _Program:
    """A captured program that can be dropped while PyTorch still holds the code that calls it."""

    run: Callable[..., Any] | None

    def __call__(self, *args: Any) -> Any:
        assert self.run is not None, "PyTorch calls it during the one call only"
        return self.run(*args)


def program_behind(model: Any) -> Any | None:
    """Return the `hub.frontend.direct.program.Program` of what `hub.compile` returned; None for other objects."""
    if not any(OWN_SLOT in vars(kind) for kind in type(model).__mro__):
        return None  # a wrapper that passes on names, or copies attributes, of a compiled model is not compiled itself
    try:
        return object.__getattribute__(model, OWN_SLOT)
    except AttributeError:
        return None


def unbypassed(function: Any) -> Any:
    """Return the function that `torch.compile` made, given what is in its place.

    A function that was wrapped around the hub's has a copy of its attributes, as `functools.wraps` makes it.
    """
    is_own = getattr(function, "_torchdynamo_wrapper_id", None) == id(function)
    return getattr(function, BYPASSED, function) if is_own else function


def uncompiled(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return the original model of what `torch.compile` or `hub.compile` returned; other objects unchanged."""
    if (program := program_behind(model)) is not None:
        return uncompiled(program.function)
    if isinstance(model, OptimizedModule):
        return uncompiled(cast("Any", model)._orig_mod)
    plain: Any = innermost_fn(model)
    if isinstance(plain, nn.Module) and getattr(plain, "_compiled_call_impl", None) is not None:  # by `Module.compile`
        return cast("Any", plain)._call_impl
    return cast("Callable[..., Any]", plain)


def _forget(frames: Frames, backend: Callable[..., Any]) -> None:
    """Drop the code that PyTorch compiled for this backend, as PyTorch does when an object that the code uses is freed.

    An emptied entry still counts toward the limit of its function: if capture stops in its middle, PyTorch 2.11 and 2.12
    compile a function eight times only, and 2.13, which counts this call separately, 256 times.
    """
    for key, wrapper in list(cached_backends.items()):
        if getattr(wrapper, "compiler_fn", None) is backend:
            cached_backends.pop(key, None)
    for reference in frames.codes:
        if (code := reference()) is not None:
            forget_compiled(code, "it was captured once, to be explained", backend)


def forget_compiled(code: types.CodeType, why: str, backend: Callable[..., Any] | None = None) -> None:
    """Drop what PyTorch compiled from a code object, for all backends or for one. PyTorch itself keeps it for good."""
    for entry in get_cache_entry_list(code):
        kept = cast("Any", entry)
        is_own = backend is None or getattr(kept.backend, "compiler_fn", None) is backend
        if is_own and not isinstance(kept.guard_manager, DeletedGuardManagerWrapper):
            kept.guard_manager.extra_state.invalidate(kept, DeletedGuardManagerWrapper(why))
