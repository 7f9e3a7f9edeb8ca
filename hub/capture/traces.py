"""State that PyTorch keeps of the last traced program."""

from __future__ import annotations

from hub.torch_private import optional


def forget_last_trace() -> None:
    """Free the last graph that was traced in this process, constants included, which PyTorch keeps until the next one.

    PyTorch uses it only for messages of `torch.export` about leaked fake tensors (2.11 to 2.15).
    """
    if (proxies := optional("fake_tensor_proxies")) is not None:
        proxies.clear()
