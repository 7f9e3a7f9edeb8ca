"""Backward graphs as kernels: gradients of a small language model are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import hub

OPTIONS = {"backends": ("triton",), "tune": "off", "isolate": False, "triton": {"interpret": True}}


class Language(nn.Module):
    """One block with embedding, norms, attention by one of PyTorch's kernels, an MLP and a loss."""

    def __init__(self, kernel: SDPBackend) -> None:
        super().__init__()
        self.kernel = kernel
        self.embedding = nn.Embedding(11, 16)
        self.first, self.second = nn.LayerNorm(16), nn.RMSNorm(16)
        self.mixed, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        batch, length, size = hidden.shape
        parts = self.mixed(self.first(hidden)).view(batch, length, 3, 2, size // 2).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(self.kernel):
            attended = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, size))
        hidden = hidden + self.narrow(F.gelu(self.wide(self.second(hidden))))
        logits = hidden @ self.embedding.weight.t()
        return F.cross_entropy(logits[:, :-1].reshape(-1, 11), tokens[:, 1:].reshape(-1))


@pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")
@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], ids=["flash", "math"])
def test_gradients_are_eagers(kernel: SDPBackend) -> None:
    """Reductions over the batch, gradients of norms and of attention, and rows added up in the embedding's.

    Attention is PyTorch's operator for the CPU with its gradient, or what every device has: products around a softmax.
    """
    torch.manual_seed(3)
    torch._dynamo.reset()
    model = Language(kernel)
    tokens = torch.randint(0, 11, (2, 7))
    wanted = torch.autograd.grad(model(tokens), tuple(model.parameters()))
    compiled: Any = torch.compile(model, backend="hub", options=OPTIONS)
    found = torch.autograd.grad(compiled(tokens), tuple(model.parameters()))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    forward, backward = hub.plans(compiled)
    assert (forward.mode, backward.mode) == ("forward", "backward")
    assert [event for plan in (forward, backward) for event in plan.events if event.kind in ("failed", "fallback")] == []
    assert {cluster.backend for plan in (forward, backward) for cluster in plan.clusters} == {"triton"}
