"""What belongs to a thread, not to a model, and changes what a call means: gradients, autocast, dispatch, determinism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch._C._dynamo.guards import GlobalStateGuard
from torch._dynamo import eval_frame
from torch.autograd import forward_ad
from torch.utils import _device

_C = cast("Any", torch)._C
_n_function_modes: Callable[[], int] = _C._len_torch_function_stack
_n_dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack
_function_transforms: Callable[[], Any] = _C._functorch.peek_interpreter_stack
_saved_tensors_hooks: Callable[[bool], Any] = _C._autograd._top_saved_tensors_default_hooks
_is_traced: Callable[[], bool] = _C._is_tracing
_is_inference = torch.is_inference_mode_enabled


class Modes:
    """The modes of this thread when this was made. Only made where `are_plain()`."""

    __slots__ = ("_device", "_is_inference", "_rest")

    def __init__(self) -> None:
        self._rest = GlobalStateGuard().check  # gradients, autocast, threads, default dtype, determinism, precision
        self._is_inference = _is_inference()
        self._device = cast("Any", _device).CURRENT_DEVICE

    def hold(self) -> bool:
        """Return whether the calling thread is in the same modes."""
        return (
            self._rest()
            and _is_inference() is self._is_inference
            and cast("Any", _device).CURRENT_DEVICE is self._device
            and are_plain()
        )


def is_for_eager() -> bool:
    """Return whether a call is one for PyTorch alone: transforms, modes and tracers of others have to see each operator.

    Under a transform, `vmap` say, Dynamo would give up on the code for good.
    """
    return _n_dispatch_modes() > 0 or _function_transforms() is not None or _is_traced()


def are_plain() -> bool:
    """Return whether nothing stands between a call and its operators: no mode, transform, hook or tracer of this thread.

    Nor may the user have asked for eager, or for no more captures (`torch.compiler.set_stance`).
    """
    return (
        _n_function_modes() == 0
        and _n_dispatch_modes() == 0
        and _function_transforms() is None
        and _saved_tensors_hooks(True) is None
        and not _is_traced()
        and cast("Any", forward_ad)._current_level < 0
        and _is_default(cast("Any", eval_frame)._stance)
    )


def _is_default(stance: Any) -> bool:
    return stance.stance == "default" and stance.backend is None
