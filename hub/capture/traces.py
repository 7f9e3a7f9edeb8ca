"""What PyTorch keeps of the last program that was traced."""

from __future__ import annotations

from torch.fx.experimental import proxy_tensor


def forget_last_trace() -> None:
    """Let go of the last graph that was traced in this process, constants included, which PyTorch keeps until the next one.

    Only messages of `torch.export` about leaked fake tensors are made from it (2.11 to 2.13).
    """
    getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {}).clear()
