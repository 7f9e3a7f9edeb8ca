"""Programs with weights as arguments and sizes as numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hub.plugin.graph import TensorSpec
from hub.testing.single import whole_cluster
from hub.toolkit.arguments import _strides, captured_sizes, specialised, with_weights
from hub.toolkit.mlir_text import inlined


def test_weights_become_arguments_behind_the_inputs() -> None:
    """The program computes the same from inputs and weights, and holds no weight itself."""
    cluster, values = whole_cluster(nn.Linear(3, 2), (torch.randn(4, 3),))
    arguments = with_weights(cluster)
    given = [cluster.constants[name] for name in arguments.weights]
    assert len(given) == 2
    assert not arguments.module.graph.find_nodes(op="get_attr")
    assert torch.equal(arguments.module(*values, *given)[0], cluster.module(*values)[0])


class _Scaled(nn.Module):
    def forward(self, x: torch.Tensor, unread: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        return x.reshape(rows * columns) * rows + unread.shape[0]


def test_a_symbolic_program_is_made_for_given_sizes() -> None:
    """Sizes are numbers in the program; inputs whose elements are never read are left out."""
    cluster, values = whole_cluster(_Scaled(), (torch.randn(3, 4), torch.randn(5)), dynamic=True)
    sizes = captured_sizes(cluster)
    assert sizes == tuple(tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in values)
    found = specialised(cluster, sizes, {})
    (fed,) = found.fed
    assert values[fed].shape == (3, 4)
    assert torch.equal(found.module(values[fed])[0], cluster.module(*values)[0])


def test_views_of_a_permuted_input_stay_views() -> None:
    """Memory order is as captured, so a view that only that order allows is made for other sizes, too."""
    x = torch.randn(2, 3, 5).permute(0, 2, 1)
    cluster, _ = whole_cluster(_Merged(), (x,), dynamic=True)
    grown = tuple(_grown(size) for size in captured_sizes(cluster))
    assert specialised(cluster, grown, {}).fed


def _grown(size: Any) -> Any:
    return tuple(map(_grown, size)) if isinstance(size, tuple) else 7 if size == 5 else size


class _Merged(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 1).view(-1) + 1


def test_a_symbolic_stride_stays_symbolic() -> None:
    """A program for one size fixes it for no other, if only a stride depends on it."""
    cluster, _ = whole_cluster(_Scaled(), (torch.randn(3, 4), torch.randn(5)), dynamic=True)
    spec = cluster.inputs[0]
    assert isinstance(spec, TensorSpec)
    rows = spec.shape[0]
    before = str(rows)
    sliced = TensorSpec((2, 2), (rows, 1), spec.dtype, spec.device)
    assert not sliced.is_dynamic
    assert _strides((2, 2), sliced) == (3, 1)
    assert str(rows) == before != "3"


def test_constants_behind_a_program_come_inside() -> None:
    """MLIR prints large constants behind the program, with their alignment in front of the digits."""
    text = 'dense_resource<big> : tensor<2xi8>\n{-#\n  big: "0x040000000102"\n#-}\n'
    assert inlined(text) == 'dense<"0x0102"> : tensor<2xi8>\n'
