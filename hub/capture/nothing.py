"""Why PyTorch captured nothing of a model, and what to do about it."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from hub.capture.call import uncompiled
from hub.capture.frames import HOW_TO_CAPTURE, IN_TRAINING, Frames
from hub.errors import CaptureError
from hub.torch_private import dynamo_config, eval_frame

_SHOWN = 3
"""Maximum number of places at which capture stopped that a message names."""
_GRAPH_BREAKS = "TORCH_LOGS=graph_breaks shows every place; PyTorch's docs on graph breaks say how to change such code"


class Cause(enum.Enum):
    """The cause why nothing was captured."""

    SWITCHED_OFF = enum.auto()
    """Compilation is off for the whole process."""
    DISABLED = enum.auto()
    """`torch.compiler.disable` excludes the model."""
    RECURRENT = enum.auto()
    """A recurrent module was called while gradients were recorded."""
    STOPPED = enum.auto()
    """Capture stopped at some places, and nothing remained."""
    NO_OPERATORS = enum.auto()
    """The model has no tensor operators to compile."""
    NOT_TRIED = enum.auto()
    """PyTorch did not try: the model was not called, or it had given up on its code before."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """The reason why nothing was captured, with a message and a hint."""

    cause: Cause
    reason: str
    hint: str

    def error(self) -> CaptureError:
        """Return the error that reports it."""
        return CaptureError(f"nothing of the model was captured: {self.reason}", hint=self.hint)


def why_nothing(model: Callable[..., Any], frames: Frames) -> Nothing:
    """Return why no program of `model` was captured, given the record of its frames."""
    plain = uncompiled(model)
    if frames.has_programs:
        return Nothing(Cause.NOT_TRIED, "what was captured was lost when PyTorch was reset", "call it again")
    if switch := _switched_off():
        return Nothing(Cause.SWITCHED_OFF, f"{switch} turns torch.compile off", "unset it")
    if (note := _disabled(plain)) is not None:
        return Nothing(Cause.DISABLED, f"torch.compiler.disable keeps PyTorch from capturing it{note}", "remove it")
    if frames.stops and frames.in_eager:
        return Nothing(Cause.RECURRENT, f"it has an nn.{frames.in_eager}, and {IN_TRAINING}", HOW_TO_CAPTURE)
    if frames.stops:
        return Nothing(Cause.STOPPED, f"PyTorch's capture stopped at {_places(frames)}", _GRAPH_BREAKS)
    if not frames.tried:
        reason = "it has not been called, or PyTorch gave up on its code when it was compiled before"
        return Nothing(Cause.NOT_TRIED, reason, "call it; torch.compiler.reset() lets PyTorch try again")
    return Nothing(Cause.NO_OPERATORS, "it has no tensor operators", "there is nothing to compile")


def _switched_off() -> str:
    """Return the setting that turns torch.compile off in this process; "" if it is on."""
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return "the environment variable TORCHDYNAMO_DISABLE"
    if dynamo_config.disable:
        return "torch._dynamo.config.disable"
    if cast("Any", eval_frame)._stance.stance == "force_eager":
        return "torch.compiler.set_stance('force_eager')"
    return ""


def _disabled(plain: Callable[..., Any]) -> str | None:
    """Return the user's reason in brackets, or "", if `torch.compiler.disable` wraps the model's function; else None."""
    function = plain.forward if isinstance(plain, nn.Module) else plain
    if not getattr(function, "_torchdynamo_disable", False):
        return None
    reason = getattr(function, "_torchdynamo_disable_msg", None)
    return f" ({reason})" if reason else ""


def _places(frames: Frames) -> str:
    shown: Sequence[str] = [f"{stop.place or 'its beginning'}: {stop.reason}" for stop in frames.stops[:_SHOWN]]
    left = len(frames.stops) - len(shown)
    return "; ".join((*shown, *((f"and {left} more",) if left else ())))
