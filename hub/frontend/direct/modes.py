"""State of a thread, not of a model, that changes what a call means: gradients, autocast, dispatch, determinism."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from hub.capture.training import is_forward_mode
from hub.frontend.direct.reads import MISSING
from hub.frontend.direct.watch import native
from hub.torch_private import (
    GlobalStateGuard,
    device_context,
    eval_frame,
    forward_ad,
    is_tracing,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    peek_interpreter_stack,
    top_saved_tensors_hooks,
)

if TYPE_CHECKING:
    from hub.frontend.direct.native import Comparison

_PLAIN: tuple[tuple[Callable[..., Any], tuple[Any, ...], object], ...] = (
    (len_torch_function_stack, (), 0),
    (len_torch_dispatch_stack, (), 0),
    (peek_interpreter_stack, (), None),
    (top_saved_tensors_hooks, (True,), None),
    (is_tracing, (), False),
)
"""Functions to call, with their arguments, and the results if nothing intercepts a call's operators. The results are
singletons, so that they can be compared by identity."""


class Modes:
    """The modes of this thread at the time of creation. Only created if `are_plain()`."""

    __slots__ = ("comparison", "hold")

    def __init__(self) -> None:
        rest = GlobalStateGuard().check  # gradients, autocast, threads, default dtype, determinism, precision
        is_inference = torch.is_inference_mode_enabled
        calls = (*_PLAIN, (rest, (), True), (is_inference, (), is_inference()))
        names = ((device_context, "CURRENT_DEVICE"), (forward_ad, "_current_level"), (eval_frame, "_stance"))
        keyed = tuple((vars(module), (name,), (getattr(module, name),)) for module, name in names)
        self.comparison: Comparison = native.Comparison((), keyed, (), (), (), (), (), calls, MISSING)
        self.hold: Callable[[], bool] = self.comparison.holds
        """Return whether the calling thread has the same modes."""


def is_for_eager() -> bool:
    """Return whether a call must run in eager, because a transform, mode or tracer has to see each operator.

    Under a transform such as `vmap`, Dynamo would give up on the code for good.
    """
    has_mode = len_torch_dispatch_stack() > 0 or peek_interpreter_stack() is not None or is_tracing()
    return has_mode or is_forward_mode()


def saves_by_hooks() -> bool:
    """Return whether hooks take what is saved for the backward, as those of checkpoints do: they count it.

    The same part of a model has to save the same tensors in the forward and when it is computed again.
    """
    return top_saved_tensors_hooks(True) is not None


def are_plain() -> bool:
    """Return whether nothing intercepts a call's operators: no mode, transform, hook or tracer of this thread.

    Return False also if the user asked for eager, or for no more captures (`torch.compiler.set_stance`).
    """
    return (
        all(ask(*args) is answer for ask, args, answer in _PLAIN)
        and not is_forward_mode()
        and _is_default(cast("Any", eval_frame)._stance)
    )


def _is_default(stance: Any) -> bool:
    return stance.stance == "default" and stance.backend is None
