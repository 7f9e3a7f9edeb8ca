"""Pins: what only eager can run faithfully, on CUDA's graphs as fake tensors show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from hub.capture.pins import pins

aten = torch.ops.aten


def captured(function: Callable[..., Any], *shapes: tuple[int, ...], device: str = "cuda:0") -> fx.GraphModule:
    """Return a function of tensors on a device as a graph with fake values; no such device is needed."""
    with FakeTensorMode(), torch.no_grad():
        return make_fx(lambda *inputs: pytree.tree_leaves(function(*inputs)))(
            *(torch.empty(shape, device=device) for shape in shapes)
        )


def flash(q: Any) -> Any:
    out, sums, c, d, m, n, seed, offset, _ = aten._scaled_dot_product_flash_attention(q, q, q)
    facts = (out, sums, c, d, m, n, 0.0, False, seed, offset)
    return aten._scaled_dot_product_flash_attention_backward(out, q, q, q, *facts)


def efficient(q: Any) -> Any:
    out, sums, seed, offset = aten._scaled_dot_product_efficient_attention(q, q, q, None, True)
    facts = (out, sums, seed, offset, 0.0, [True, True, True, False])
    return aten._scaled_dot_product_efficient_attention_backward(out, q, q, q, None, *facts)


def of_cudnn(q: Any) -> Any:
    found = aten._scaled_dot_product_cudnn_attention(q, q, q, None, True)
    out, sums, c, d, m, n, seed, offset, _ = found
    facts = (out, sums, seed, offset, None, c, d, m, n, 0.0, False)
    return aten._scaled_dot_product_cudnn_attention_backward(out, q, q, q, *facts)


def norm(x: Any, w: Any) -> Any:
    out, mean, scale, reserve = aten.cudnn_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)
    return aten.cudnn_batch_norm_backward(x, out, w, None, None, mean, scale, 1e-5, reserve)


def recurrent(x: Any, w: Any, hidden: Any) -> Any:
    facts = (2, 8, 0, 1, False, 0.0, True, False, [], None)
    return aten._cudnn_rnn(x, [w, w, w, w], 4, None, hidden, hidden, *facts)


LIBRARIES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "flash attention": (flash, ((2, 4, 8, 16),), 2),
    "attention in little memory": (efficient, ((2, 4, 8, 16),), 2),
    "attention of cuDNN": (of_cudnn, ((2, 4, 8, 16),), 2),
    "batch norm of cuDNN": (norm, ((2, 4, 8, 8), (4,)), 2),
    "LSTM of cuDNN": (recurrent, ((8, 2, 8), (32, 8), (1, 2, 8)), 1),
}
"""By name: a forward and its gradient, the shapes of its inputs, and how many operators are the library's."""


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_cuda_librarys_state_stays_with_eager(name: str) -> None:
    """Forward and gradient are pinned alike: what one hands to the other cannot be compared."""
    function, shapes, n_pinned = LIBRARIES[name]
    module = captured(function, *shapes)
    found = pins(module, n_mutated=0, returned=())
    reasons = [reason for reason in found.values() if "state of a CUDA library" in reason]
    assert len(reasons) == n_pinned


def test_attention_on_cpus_is_anybodys() -> None:
    """Its sums are eager's, and it has no seeds."""
    module = captured(lambda q: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0], (2, 4, 8, 16), device="cpu")
    assert pins(module, n_mutated=0, returned=()) == {}


def test_copies_between_devices_are_eagers() -> None:
    """A cluster's results and its data lie on one device; what moves there moves in eager."""
    module = captured(lambda x: (x + 1).to("cuda:1") * 2 + x.to("cpu").to("cuda:1"), (4,))
    copies = module.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    assert len(copies) == 3
    assert pins(module, n_mutated=0, returned=()) == {node.name: "moves data between devices" for node in copies}


def test_a_number_on_the_cpu_may_be_read_anywhere() -> None:
    """PyTorch's operators take them with tensors of any device, and so may compiled ones."""
    module = captured(lambda x: x * torch.ones((), device="cpu"), (4,))
    assert pins(module, n_mutated=0, returned=()) == {}
