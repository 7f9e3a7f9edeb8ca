"""Conversion between tensors and XLA's arrays: over the same memory, or by copies if memory cannot be shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import to_dlpack  # pyright: ignore[reportPrivateImportUsage] - documented there

from hub.plugin import RunError
from plugin_xla.jax_import import SingleDeviceSharding, jax
from plugin_xla.jax_import import native as _jax

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.uint8, torch.bool),
)
"""Dtypes that are converted in both directions."""


@dataclass(frozen=True)
class Exchange:
    """The conversions for one target."""

    give: Callable[[torch.Tensor, Any], Any]
    """Function that returns XLA's array, on a device, for a tensor."""
    take: Callable[[Any], torch.Tensor]
    """Function that returns the tensor for XLA's array."""


def exchange(target: str) -> Exchange:
    """Return the conversions for a target."""
    return _WAYS[target]


def array(value: torch.Tensor, device: Any) -> Any:
    """Return XLA's array over a tensor's memory, or over a contiguous copy's; XLA copies if the alignment requires it."""
    if not value.is_contiguous() or value.is_neg() or value.device.type != "cpu":
        value = value.cpu().resolve_neg().contiguous()
    return _jax.dlpack_managed_tensor_to_buffer(to_dlpack(value.detach()), device, None)


def tensor(value: Any) -> torch.Tensor:
    """Return a tensor over the memory of XLA's array, which it keeps alive."""
    return torch.from_dlpack(_jax.buffer_to_dlpack_managed_tensor(value))


def on_stream(value: torch.Tensor, device: Any) -> Any:
    """Return XLA's array over the memory of a GPU's tensor. XLA's stream waits for PyTorch's launches so far.

    In turn, PyTorch's later frees and launches wait for the call's results (`off_stream`), so that no memory is written
    while XLA reads it. Raise RunError while a CUDA graph is recorded: XLA launches on streams of its own.
    """
    if torch.cuda.is_current_stream_capturing():
        raise RunError("XLA's calls cannot be part of a CUDA graph")
    if not value.is_contiguous() or value.is_neg():
        value = value.resolve_neg().contiguous()
    stream = device.get_stream_for_external_ready_events()
    return _jax.dlpack_managed_tensor_to_buffer(value.detach().__dlpack__(stream=stream), device, stream)


def off_stream(value: Any) -> torch.Tensor:
    """Return a tensor over the memory of XLA's array; PyTorch's stream waits for it."""
    # 1 is DLPack's number for the stream that CUDA numbers 0.
    stream = torch.cuda.current_stream().cuda_stream or 1
    return torch.from_dlpack(_jax.buffer_to_dlpack_managed_tensor(value, stream=stream))


def sent(value: torch.Tensor, device: Any) -> Any:
    """Return an array that XLA owns: a copy in the device's memory."""
    value = value.detach().cpu().resolve_neg().contiguous()
    is_bfloat16 = value.dtype is torch.bfloat16  # NumPy has no bfloat16
    host = value.view(torch.int16).numpy().view(jax.numpy.bfloat16) if is_bfloat16 else value.numpy()
    return _jax.batched_device_put(
        jax.core.ShapedArray(host.shape, host.dtype),
        SingleDeviceSharding(device),
        [host],
        [device],
        force_copy=True,
        host_buffer_semantics=_jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL,
        enable_x64=True,
    )


def fetched(value: Any) -> torch.Tensor:
    """Return a copy in the CPU's memory."""
    host: Any = np.array(value)
    if host.dtype == jax.numpy.bfloat16:
        return torch.from_numpy(host.view(np.int16)).view(torch.bfloat16)  # pyright: ignore[reportUnknownMemberType] - torch's
    return torch.from_numpy(host)  # pyright: ignore[reportUnknownMemberType] - torch's


_WAYS = {"cpu": Exchange(array, tensor), "cuda": Exchange(on_stream, off_stream), "tpu": Exchange(sent, fetched)}
