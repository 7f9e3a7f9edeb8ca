"""`flex_attention` reaches backends in plain operators, and gives eager's output, sums and layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import hub
from hub.partition.group import EAGER

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # Dynamo's own
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]


def heads(batch: int, n_heads: int, tokens: int, width: int = 8) -> torch.Tensor:
    """Return random queries, keys or values [B, H, L, E]."""
    return torch.randn(batch, n_heads, tokens, width)


def seen_by(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Let each position attend to those of its own group; the mask is made inside the program."""
    batch, _, tokens, _ = q.shape
    mask = create_block_mask(lambda b, h, i, j: group[b, i] == group[b, j], batch, None, tokens, tokens, device="cpu")
    return flex_attention(q, k, v, block_mask=mask)


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> Any:
    """Return attention with a learned bias by distance, and the logarithms of the sums."""
    n = k.shape[2]
    mods: Any = lambda s, b, h, i, j: torch.tanh(s / 4) * 4 + table[h][i - j + n]  # noqa: E731
    out, more = flex_attention(q, k, v, score_mod=mods, return_aux=AuxRequest(lse=True))
    return out, more.lse


def shared(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend with four query heads over two key heads, in the layout that projections give."""
    q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in (q, k, v))
    out = flex_attention(q, k, v, enable_gqa=True, scale=0.3)
    return out.transpose(1, 2).view(*out.shape[::2][:1], out.shape[2], -1)


CASES: dict[str, tuple[Callable[..., Any], list[Callable[[], tuple[torch.Tensor, ...]]]]] = {
    "groups": (
        seen_by,
        [
            lambda: (heads(2, 2, 12), heads(2, 2, 12), heads(2, 2, 12), torch.randint(0, 3, (2, 12))),
            lambda: (heads(2, 2, 15), heads(2, 2, 15), heads(2, 2, 15), torch.randint(0, 3, (2, 15))),
        ],
    ),
    "bias": (biased, [lambda: (heads(1, 2, 7), heads(1, 2, 7), heads(1, 2, 7), torch.randn(2, 16))]),
    "shared": (shared, [lambda: (torch.randn(2, 6, 32), torch.randn(2, 6, 16), torch.randn(2, 6, 16))]),
}


@pytest.mark.parametrize("case", CASES)
def test_attention_is_given_to_backends_and_is_eagers(case: str) -> None:
    """Masks and changes of scores become operators; sizes may change between calls."""
    torch.manual_seed(0)
    function, calls = CASES[case]
    compiled = torch.compile(function, backend="hub", options={"backends": ("onnxruntime",), "tune": "off"})
    with torch.no_grad():
        for call in calls:
            inputs = call()
            want, got = function(*inputs), compiled(*inputs)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
            assert [part.stride() for part in _parts(got)] == [part.stride() for part in _parts(want)]
    for plan in hub.plans(compiled):
        operators = [name for cluster in plan.clusters for name in cluster.operators if cluster.backend != EAGER]
        assert any("softmax" in name for name in operators)
        assert not [event for event in plan.events if event.kind in ("failed", "fallback")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_that_see_nothing_are_zero_in_every_dtype(dtype: torch.dtype) -> None:
    """A row whose scores are all hidden gives 0, and minus infinity as its sum, as in eager."""
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i != 2), 2, None, 9, 9, device="cpu")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        out, more = flex_attention(q, k, v, block_mask=mask, return_aux=AuxRequest(lse=True))
        return out, more.lse

    torch.manual_seed(1)
    inputs = [heads(2, 2, 9).to(dtype) for _ in range(3)]
    with torch.no_grad():
        want = attend(*inputs)
        got = torch.compile(attend, backend="hub", options={"backends": ("onnxruntime",), "tune": "off"})(*inputs)
    torch.testing.assert_close(got, want)
    assert not got[0][:, :, 2].any()


def _parts(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
