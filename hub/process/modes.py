"""PyTorch's process-wide settings that change eager's numbers or times: read here, and set in every worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from hub.process.threads import is_told, tell, untell
from hub.torch_private import get_fp32_precision, get_sdp_priority_order, set_fp32_precision, set_sdp_priority_order

_BACKENDS: Any = torch.backends

_PLACES = (
    ("generic", "all"),
    *((library, operators) for library in ("cuda", "mkldnn") for operators in ("all", "matmul", "conv", "rnn")),
)
"""Places of PyTorch's float32 precision settings, from general to specific: a library, and kinds of operators in it."""
_MIXED = "mixed"
_KERNELS = ("flash", "mem_efficient", "math", "cudnn")
"""PyTorch's implementations of attention, by the names of their switches."""


@dataclass(frozen=True, slots=True)
class Modes:
    """The settings at one moment, as plain values. Those of CUDA exist in every build of PyTorch."""

    default_dtype: str
    deterministic: int
    """0 to 2: off; warn if no deterministic algorithm is available; raise an error."""
    matmul_precision: str
    """"highest", "high" or "medium"; "mixed" if PyTorch's older and newer interfaces were set and do not agree."""
    float32_precision: tuple[str, ...]
    """Effective precision at each of `_PLACES`: "ieee", "tf32", "bf16" or, if none has been set, "none"."""
    reduced_sums: tuple[tuple[bool, bool], tuple[bool, bool], bool]
    """Whether products of float16 and of bfloat16 may accumulate in them, each with split sums; whether float16 always
    may."""
    cudnn: tuple[bool, bool, bool]
    """Whether cuDNN is enabled, benchmarks its algorithms, and uses only deterministic ones."""
    mkldnn: tuple[bool, bool]
    """Whether oneDNN is enabled, and uses only deterministic algorithms."""
    attention: tuple[bool, ...]
    """Which of `_KERNELS` are enabled."""
    attention_order: tuple[int, ...]
    """Order in which they are tried."""
    attention_sums: bool
    """Whether the math implementation of attention may accumulate in half precision."""

    is_mkl_told: bool = field(compare=False)
    """Whether MKL was told a thread count, which changes no number. With the count, it is state of its own."""

    @property
    def parts(self) -> dict[str, Any]:
        """The settings by name, for keys of what was measured."""
        return asdict(self)

    @property
    def numeric_parts(self) -> dict[str, Any]:
        """The settings that change numbers, by name, for keys of executables."""
        return {name: value for name, value in self.parts.items() if name != "is_mkl_told"}


def modes() -> Modes:
    """Return this process's settings. Initializes no device."""
    products, cudnn, mkldnn = _BACKENDS.cuda.matmul, _BACKENDS.cudnn, _BACKENDS.mkldnn
    return Modes(
        default_dtype=str(torch.get_default_dtype()),
        deterministic=torch.get_deterministic_debug_mode(),
        matmul_precision=_matmul_precision(),
        float32_precision=tuple(get_fp32_precision(*place) for place in _PLACES),
        reduced_sums=(
            (
                products.allow_fp16_reduced_precision_reduction,
                products.allow_fp16_reduced_precision_reduction_split_k,
            ),
            (
                products.allow_bf16_reduced_precision_reduction,
                products.allow_bf16_reduced_precision_reduction_split_k,
            ),
            products.allow_fp16_accumulation,
        ),
        cudnn=(cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        mkldnn=(mkldnn.enabled, mkldnn.deterministic),
        attention=tuple(getattr(_BACKENDS.cuda, f"{name}_sdp_enabled")() for name in _KERNELS),
        attention_order=tuple(get_sdp_priority_order()),
        attention_sums=_BACKENDS.cuda.fp16_bf16_reduction_math_sdp_allowed(),
        is_mkl_told=is_told(),
    )


def set_modes(wanted: Modes) -> None:
    """Set this process's settings to those of another process. Initializes no device."""
    # PyTorch's own exception to `torch.backends.disable_global_flags()`, with which its tests forbid changes.
    with getattr(_BACKENDS, "__allow_nonbracketed_mutation")():
        torch.set_default_dtype(getattr(torch, wanted.default_dtype.removeprefix("torch.")))
        torch.set_deterministic_debug_mode(wanted.deterministic)
        _set_precisions(wanted)
        products, cudnn, mkldnn = _BACKENDS.cuda.matmul, _BACKENDS.cudnn, _BACKENDS.mkldnn
        halves, bfloats, products.allow_fp16_accumulation = wanted.reduced_sums
        products.allow_fp16_reduced_precision_reduction, products.allow_bf16_reduced_precision_reduction = halves, bfloats
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = wanted.cudnn
        mkldnn.enabled, mkldnn.deterministic = wanted.mkldnn
        for name, is_on in zip(_KERNELS, wanted.attention, strict=True):
            getattr(_BACKENDS.cuda, f"enable_{name}_sdp")(is_on)
        set_sdp_priority_order(list(wanted.attention_order))
        _BACKENDS.cuda.allow_fp16_bf16_reduction_math_sdp(wanted.attention_sums)
    if is_told() != wanted.is_mkl_told:
        (tell if wanted.is_mkl_told else untell)()


def _set_precisions(wanted: Modes) -> None:
    """Set the older interface first, since it writes to the newer one, which takes effect."""
    precision_at = dict(zip(_PLACES, wanted.float32_precision, strict=True))
    torch.set_float32_matmul_precision("highest" if wanted.matmul_precision == _MIXED else wanted.matmul_precision)
    _BACKENDS.cudnn.allow_tf32 = precision_at["cuda", "conv"] == "tf32"
    for place, precision in precision_at.items():
        set_fp32_precision(*place, precision)


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return _MIXED
