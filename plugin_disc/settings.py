"""What the user sets of DISC, under the hub's names or TorchBlade's. Imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from hub.plugin import BackendSettings

from .lists import entries, entry_for

if TYPE_CHECKING:
    from torch import fx

_Entries = Annotated[tuple[str, ...], BeforeValidator(entries)]
_TRUTH = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


class _FromVariable(str):
    """Text of one of TorchBlade's variables, which a message has to name."""

    __slots__ = ("name",)
    name: str


def _variable(name: str, default: bool | int) -> Callable[[], Any]:
    """Return the default of a field: what the variable holds, else `default`."""

    def found() -> Any:
        if not os.environ.get(name):
            return default
        text = _FromVariable(os.environ[name])
        text.name = name
        return text

    return found


def _truth(value: Any) -> Any:
    if not isinstance(value, _FromVariable):
        return value
    if value.lower() not in _TRUTH:
        raise ValueError(f"variable {value.name} holds {str(value)!r}, true or false expected")
    return _TRUTH[value.lower()]


def _level(value: Any) -> Any:
    if not isinstance(value, _FromVariable):
        return value
    if value not in ("0", "1", "2", "3", "4"):
        raise ValueError(f"variable {value.name} holds {str(value)!r}, 0 to 4 expected")
    return int(value)


def _number(value: Any) -> Any:
    if not isinstance(value, _FromVariable):
        return value
    if not value.isdecimal():
        raise ValueError(f"variable {value.name} holds {str(value)!r}, a whole number expected")
    return int(value)


def _switch(variable: str) -> Any:
    return Field(default_factory=_variable(variable, default=False), validate_default=True)


class Settings(BackendSettings):
    """How clusters are to be compiled. What TorchBlade read from its own variables is read from there, too."""

    compiler: str = ""
    """Path or name of BladeDISC's `disc_compiler_main`; every cluster then has to pass it. Empty calls our own alone."""
    compiler_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    """Seconds after which that compiler counts as hanging."""
    log_dir: str = ""
    """Folder for the logs of compilations that failed; empty means the system's folder for temporary files."""
    debug_log: Annotated[bool, BeforeValidator(_truth)] = _switch("TORCH_BLADE_DEBUG_LOG")
    """Has that compiler log what it does."""
    enable_amp: Annotated[bool, BeforeValidator(_truth)] = _switch("TAO_MLIR_ENABLE_AMP")
    """Has BladeDISC's compiler use lower precision where it thinks fit. Our own cannot."""
    cpu_fast_math_level: Annotated[int, BeforeValidator(_level), Field(ge=0, le=4)] = Field(
        default_factory=_variable("DISC_CPU_FAST_MATH_LEVEL", default=0), validate_default=True
    )
    """0: as IEEE and eager have it; 1: division by reciprocals; 2: and other orders of additions; 3: and no NaN or signed
    zeros; 4: and whatever LLVM calls fast."""
    compile_for_multi_cuda_targets: Annotated[bool, BeforeValidator(_truth)] = _switch(
        "DISC_COMPILE_FOR_MULTI_CUDA_TARGETS"
    )
    """Has BladeDISC's compiler write code for several kinds of GPU. Our own has none for any."""

    kept_mb: Annotated[int, Field(ge=0)] = 256
    """Megabytes of large results that all executables together keep for their next calls, once nobody else has them: the
    kernel need not clear fresh memory then. 0 keeps nothing."""

    compile_parallelism: Annotated[int, BeforeValidator(_number), Field(ge=0)] = Field(
        default_factory=_variable("COMPILE_PARALLELISM", default=0), validate_default=True, exclude=True
    )
    """Clusters that are compiled at once; 0 leaves that to the hub's option `compile_workers`. No part of cache keys."""

    deny: _Entries = ()
    """Operators that DISC leaves to others: "aten.add", "aten.add.Tensor", with "@2" the third one of the graph, or "*"."""
    allow: _Entries = ()
    """Operators that it may have though `deny` says otherwise; with `deny` "*", these only."""
    customize_op_black_list: _Entries = ()
    """TorchBlade's name for `deny`; both count."""
    customize_op_white_list: _Entries = ()
    """TorchBlade's name for `allow`; both count. What DISC has no rule for it does not take all the same."""

    @property
    def compile_workers(self) -> int | None:
        """What TorchBlade's variable says, where it says anything."""
        return self.compile_parallelism or None

    def denial(self, node: fx.Node) -> str:
        """Return why the user keeps a node from DISC; "" where it may have it."""
        entry = entry_for(node, (*self.deny, *self.customize_op_black_list))
        if not entry or entry_for(node, (*self.allow, *self.customize_op_white_list)):
            return ""
        return f"kept from disc by {entry!r} in its setting 'deny'"

    def refusal(self) -> str:
        """Return which setting our own compiler cannot honour and why; "" where it honours all."""
        if self.compiler:
            return ""
        if self.enable_amp:
            return "enable_amp: DISC's own compiler keeps every dtype as it is in the model; use autocast in the model"
        if self.compile_for_multi_cuda_targets:
            return "compile_for_multi_cuda_targets: DISC's own compiler writes code for this processor only"
        return ""
