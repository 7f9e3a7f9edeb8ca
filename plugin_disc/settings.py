"""DISC's settings, under the hub's names or TorchBlade's. Imports nothing heavy."""

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
    """The text of one of TorchBlade's variables, with the variable's name for messages."""

    __slots__ = ("name",)
    name: str


def _variable(name: str, default: bool | int) -> Callable[[], Any]:
    """Return the default of a field: the variable's value, else `default`."""

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
    """Options for compiling clusters. TorchBlade's own variables are read, too."""

    path_fields = ("log_dir",)
    compiler: str = ""
    """Path or name of BladeDISC's `disc_compiler_main`, which then has to compile every cluster. Empty: only our own."""
    compiler_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    """Timeout of BladeDISC's compiler in seconds."""
    log_dir: str = ""
    """Folder for the logs of failed compilations; empty means the system's folder for temporary files."""
    debug_log: Annotated[bool, BeforeValidator(_truth)] = _switch("TORCH_BLADE_DEBUG_LOG")
    """Whether BladeDISC's compiler logs verbosely."""
    enable_amp: Annotated[bool, BeforeValidator(_truth)] = _switch("TAO_MLIR_ENABLE_AMP")
    """Whether BladeDISC's compiler may use lower precision where it sees fit. Our own cannot."""
    cpu_fast_math_level: Annotated[int, BeforeValidator(_level), Field(ge=0, le=4)] = Field(
        default_factory=_variable("DISC_CPU_FAST_MATH_LEVEL", default=0), validate_default=True
    )
    """0: exact as in IEEE 754 and eager; 1: division by reciprocals; 2: also reassociated additions; 3: also no NaN and no
    signed zeros; 4: also all else that LLVM calls fast."""
    compile_for_multi_cuda_targets: Annotated[bool, BeforeValidator(_truth)] = _switch(
        "DISC_COMPILE_FOR_MULTI_CUDA_TARGETS"
    )
    """Whether BladeDISC's compiler writes code for several kinds of GPU. Our own writes none for GPUs."""

    kept_mb: Annotated[int, Field(ge=0)] = 256
    """Megabytes of large results that all executables together keep for their next calls, once nothing else refers to them:
    the kernel then need not clear fresh memory. 0 keeps nothing."""

    compile_parallelism: Annotated[int, BeforeValidator(_number), Field(ge=0)] = Field(
        default_factory=_variable("COMPILE_PARALLELISM", default=0), validate_default=True, exclude=True
    )
    """Number of clusters compiled at once; 0 means the hub's setting `workers.count`. Not part of cache keys."""

    deny: _Entries = ()
    """Operators that DISC refuses: "aten.add", "aten.add.Tensor", with "@2" the third one in the graph, or "*" for all."""
    allow: _Entries = ()
    """Exceptions to `deny`; if `deny` is "*", these are the only operators that DISC may take."""
    customize_op_black_list: _Entries = ()
    """TorchBlade's name for `deny`; both count."""
    customize_op_white_list: _Entries = ()
    """TorchBlade's name for `allow`; both count. Operators without a rule in DISC stay refused."""

    @property
    def compile_workers(self) -> int | None:
        """The number of compile workers in TorchBlade's variable; None if it is unset or 0."""
        return self.compile_parallelism or None

    def denial(self, node: fx.Node) -> str:
        """Return the setting that denies a node to DISC, as a reason; "" if the node is allowed."""
        entry = entry_for(node, (*self.deny, *self.customize_op_black_list))
        if not entry or entry_for(node, (*self.allow, *self.customize_op_white_list)):
            return ""
        return f"kept from disc by {entry!r} in its setting 'deny'"

    def refusal(self) -> str:
        """Return which setting our own compiler cannot honour, and why; "" if it honours all."""
        if self.compiler:
            return ""
        if self.enable_amp:
            return "enable_amp: DISC's own compiler keeps every dtype as it is in the model; use autocast in the model"
        if self.compile_for_multi_cuda_targets:
            return "compile_for_multi_cuda_targets: DISC's own compiler writes code for this processor only"
        return ""
