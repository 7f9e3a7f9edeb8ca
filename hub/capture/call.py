"""Captures the programs of one call of a model, and leaves every other compiled model in the process as it was."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list  # pyright: ignore[reportPrivateUsage] - no public form
from torch._dynamo.eval_frame import OptimizedModule, cached_backends, innermost_fn
from torch._dynamo.guards import DeletedGuardManagerWrapper

from hub.capture.frames import Frames, captured_for_hub

OWN_SLOT = "_hub_program"
"""Where what `hub.compile` returns keeps what runs its calls: set once."""
_NO_LIMIT = 2**31
_SETTINGS = {
    "automatic_dynamic_shapes": False,  # the sizes of this call, whatever came before, and without being remembered
    "recompile_limit": _NO_LIMIT,
    "accumulated_recompile_limit": _NO_LIMIT,
}
_compile = cast("Any", torch).compile  # its annotations leave much open
_APART: Mapping[str, Any] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(_compile).parameters else {}
)
"""From PyTorch 2.13 on, compiled code can be kept apart from that of other callers."""


def capture_call(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    backend: Callable[..., Any],
    **how: Any,
) -> Frames:
    """Call `model` once, without gradients, and hand each captured program to `backend`; return what became of its frames.

    What PyTorch compiled before is neither used nor dropped, and nothing of this call is kept. `how` is for
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
            _compile(call, backend=own, **_APART, **how)(*inputs, **(kwargs or {}))
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
    """Return what runs the calls of what `hub.compile` returned (`hub.frontend.direct.program`); None for anything else."""
    return getattr(model, OWN_SLOT, None)


def uncompiled(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return what `torch.compile` or `hub.compile` was given, from what it returned; anything else as it is."""
    if (program := program_behind(model)) is not None:
        return uncompiled(program.function)
    if isinstance(model, OptimizedModule):
        return uncompiled(cast("Any", model)._orig_mod)
    plain: Any = innermost_fn(model)
    if isinstance(plain, nn.Module) and getattr(plain, "_compiled_call_impl", None) is not None:  # by `Module.compile`
        return cast("Any", plain)._call_impl
    return cast("Callable[..., Any]", plain)


def _forget(frames: Frames, backend: Callable[..., Any]) -> None:
    """Drop what PyTorch compiled for this backend, as it does itself where an object is gone that the code depends on.

    An emptied entry still counts among those of its function: where capture stops in its middle, PyTorch 2.11 and 2.12
    compile a function eight times only, and 2.13, which counts this call apart, 256 times.
    """
    for key, wrapper in list(cached_backends.items()):
        if getattr(wrapper, "compiler_fn", None) is backend:
            cached_backends.pop(key, None)
    for reference in frames.codes:
        if (code := reference()) is not None:
            forget_compiled(code, "it was captured once, to be explained", backend)


def forget_compiled(code: types.CodeType, why: str, backend: Callable[..., Any] | None = None) -> None:
    """Drop what PyTorch compiled of some code, all of it or that of one backend. PyTorch itself keeps it for good."""
    for entry in _debug_get_cache_entry_list(code):
        kept = cast("Any", entry)
        is_own = backend is None or getattr(kept.backend, "compiler_fn", None) is backend
        if is_own and not isinstance(kept.guard_manager, DeletedGuardManagerWrapper):
            kept.guard_manager.extra_state.invalidate(kept, DeletedGuardManagerWrapper(why))
