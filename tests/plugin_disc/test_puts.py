"""Elements put in at places that other tensors give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hub.errors import InputRefused
from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)
Function = Callable[..., torch.Tensor]

PUTS: dict[str, Function] = {
    "scatter": lambda x, at, y: torch.relu(x.scatter(1, at, y) + 1.0),
    "scatter_add": lambda x, at, y: x.scatter_add(1, at, y * 2.0) * x,
    "scatter_reduce": lambda x, at, y: x.scatter_reduce(1, at, y, "amax"),
    "index_put": lambda x, at, y: torch.index_put(x.T, (at[0],), y[:2].T),
    "index_put that adds": lambda x, at, y: torch.ops.aten.index_put(x, [None, at[0]], y, True),
    "index_add": lambda x, at, y: x.T.index_add(0, at[0], y.T, alpha=-2.0),
    "index_fill": lambda x, at, y: x.index_fill(1, at[0, :1], 7.0),
    "slice_scatter": lambda x, at, y: x.slice_scatter(y[:, :2] * 3.0, 1, 2, 4),
    "select_scatter": lambda x, at, y: x.select_scatter(y[0, :1].expand(6), 0, 1),
}


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Return [2, 6] with indices in [2, 3], some of them twice, and values for them."""
    torch.manual_seed(0)
    at = torch.tensor([[0, 5, 5], [3, 1, 1]])
    return torch.randn(2, 6).mul(9).to(dtype), at, torch.randn(2, 3).mul(9).to(dtype)


@pytest.mark.parametrize("name", PUTS)
def test_values_are_put_in_as_in_eager(name: str) -> None:
    """Where several have one place, all are added up, and the last one stays."""
    cluster, values = whole_cluster(Wrapped(PUTS[name]), inputs())
    before = [value.clone() for value in values]
    (found,) = create().compile(cluster, ONE)(*values)
    torch.testing.assert_close(found, PUTS[name](*inputs()), rtol=1e-6, atol=1e-6)
    assert all(map(torch.equal, values, before)), "an input was written to"


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16], ids=str)
def test_every_width_adds_up(dtype: torch.dtype) -> None:
    """Half precision is rounded at every step, and bytes wrap."""
    cluster, values = whole_cluster(Wrapped(lambda x, at, y: x.scatter_add(1, at, y)), inputs(dtype))
    (found,) = create().compile(cluster, ONE)(*values)
    x, at, y = inputs(dtype)
    assert torch.equal(found, x.scatter_add(1, at, y))


@pytest.mark.parametrize("shape", [(0,), (2, 0)], ids=str)
def test_nothing_put_in_changes_nothing(shape: tuple[int, ...]) -> None:
    """Places of which there are none may have any number of dims."""
    given = (torch.randn(5), torch.zeros(shape, dtype=torch.int64), torch.randn(shape))
    cluster, values = whole_cluster(Wrapped(lambda x, at, y: x.scatter_add(0, at, y)), given)
    (found,) = create().compile(cluster, ONE)(*values)
    assert torch.equal(found, given[0])


def test_places_out_of_range_are_refused() -> None:
    """Nothing outside is written; eager may then raise its own error."""
    x, _, y = inputs()
    right = torch.tensor([[0, 1, 1], [-6, 0, -2]])
    model = Wrapped(lambda x, at, y: x.index_put((at[:, :2], at[:, 1:3]), y[:, :2]))
    cluster, values = whole_cluster(model, (x.T, right, y))
    executable = create().compile(cluster, ONE)
    wrong = torch.tensor([[0, 1, 1], [6, 0, 1]])

    def call(places: torch.Tensor) -> torch.Tensor:
        return executable(*(places if value.dtype is torch.int64 else value for value in values))[0]

    assert torch.equal(call(right), x.T.index_put((right[:, :2], right[:, 1:3]), y[:, :2]))
    with pytest.raises(InputRefused, match="out of range"):
        call(wrong)


def test_one_compilation_serves_every_size() -> None:
    """Counts of rows, places and values are read at the call."""
    model = Wrapped(lambda x, at, y: x.index_add(0, at, y))
    cluster, values = whole_cluster(model, (torch.zeros(5, 4), torch.tensor([0, 3, 3]), torch.ones(3, 4)), dynamic=True)
    executable = create().compile(cluster, ONE)
    assert torch.equal(executable(*values)[0].sum(1), torch.tensor([4.0, 0.0, 0.0, 8.0, 0.0]))
