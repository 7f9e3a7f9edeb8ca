"""State that PyTorch keeps of the last traced program."""

from __future__ import annotations

from torch.fx.experimental import proxy_tensor


def forget_last_trace() -> None:
    """Free the last graph that was traced in this process, constants included, which PyTorch keeps until the next one.

    PyTorch uses it only for messages of `torch.export` about leaked fake tensors (2.11 to 2.13).
    """
    getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {}).clear()
