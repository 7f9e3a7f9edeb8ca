"""Programs that leave less in memory give the same numbers, in the stages that are expected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from hub.errors import InputRefused
from hub.plugin.backend import CompileSettings
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from hub.toolkit.groups import Group, scheduled
from hub.toolkit.reading import in_order
from hub.toolkit.simplify import simplified
from hub.toolkit.sizes import product
from hub.toolkit.tensors import Join
from plugin_disc.backend import create
from tests.plugin_disc.programs import PROGRAMS, Wrapped, inputs_of

ONE = CompileSettings(threads=1)
Function = Callable[[torch.Tensor], torch.Tensor]


def stages_of(function: object, inputs: tuple[torch.Tensor, ...]) -> list[Group]:
    """Return the loop nests of a function, which has nothing else."""
    cluster, _ = whole_cluster(Wrapped(function), inputs)  # pyright: ignore[reportArgumentType]
    outputs = lower(cluster).outputs
    stages = scheduled(simplified(outputs, in_order(outputs))).stages
    assert all(isinstance(stage, Group) for stage in stages)
    return [stage for stage in stages if isinstance(stage, Group)]


def test_halves_of_a_normalised_row_are_one_nest() -> None:
    """RMS norm and rotary embedding: both halves run inside the rows, and only the result is written."""
    (group,) = stages_of(PROGRAMS["rms_rotary"], inputs_of("rms_rotary", 5, 64))
    assert len(group.annexes) == 1
    assert all(isinstance(store.into, Join) for store in group.stores)
    assert sorted(store.offsets[-1] for store in group.stores) == [0, 32]


@pytest.mark.parametrize("name", ["heads", "merged_heads", "cross_entropy_rows", "pixel_shuffled"])
def test_nothing_large_is_in_memory_between(name: str) -> None:
    """Dims joined after a transpose and reads from a softmax leave nothing larger than the result."""
    inputs = inputs_of(name, 6, 64)
    result = PROGRAMS[name](*inputs)
    assert isinstance(result, torch.Tensor)
    *others, last = stages_of(PROGRAMS[name], inputs)
    assert [product(store.into.shape) for store in last.stores] == [result.numel()]
    assert all(product(store.into.shape) <= result.shape[0] for stage in others for store in stage.stores)


def test_results_of_the_same_memory_run_together() -> None:
    """Two functions of one input are one nest, so that it is read once."""
    assert len(stages_of(lambda x: (x.exp(), x * 2), (torch.randn(4, 8),))) == 1


CASES: dict[str, Function] = {
    "cat of cats": lambda x: torch.cat((torch.cat((x, -x), -1), x.exp()), -1) * 2,
    "cats with other seams": lambda x: torch.cat((x, x.abs(), x), 1) + torch.cat((x[:, :7], x, x.relu(), x[:, 7:]), 1),
    "cats along two dims": lambda x: torch.cat((x, -x), 0) * torch.cat((x[:, :10], x[:, 10:]), 1).repeat(2, 1),
    "a slice across a seam": lambda x: torch.cat((x, -x), 1)[:, 5:40].sigmoid(),
    "a slice inside a piece": lambda x: torch.cat((x, -x), 1)[:, 25:40].sigmoid(),
    "a softmax beside itself": lambda x: torch.cat((x.softmax(-1), x), -1) + 1,
    "rows of softmaxes": lambda x: torch.cat((x.softmax(-1), (x + 1).softmax(-1)), 0) * 3,
    "a slice of rows of a softmax": lambda x: x.softmax(-1)[2:5] * 2,
    "halves of a softmax": lambda x: x.softmax(-1)[:, :12] - x.softmax(-1)[:, 12:],
    "padding in front": lambda x: functional.pad(x, (3, 0), value=1.5) * 2,
    "padding around rows": lambda x: functional.pad(x, (0, 0, 1, 2)).cos(),
    "padding around both": lambda x: functional.pad(x, (1, 2, 3, 4)).exp(),
    "windows of a function": lambda x: functional.max_pool1d((x * 2).relu().unsqueeze(0), 3, 2).neg(),
    "windows of an exp": lambda x: functional.avg_pool1d(x.exp().unsqueeze(0), 4, 1),
    "differences": lambda x: (x * x).diff().diff(),
    "joined after a transpose, then a sum": lambda x: (x.view(8, 4, 6) * 2).transpose(0, 1).reshape(4, 48).sum(-1),
    "joined, softmax": lambda x: x.view(8, 4, 6).permute(2, 0, 1).reshape(6, 32).softmax(-1),
    "joined in two ways": lambda x: x.view(8, 4, 6).transpose(1, 2).reshape(8, 24) + x.view(2, 4, 24).mT.reshape(8, 24),
    "cut and joined elsewhere": lambda x: (x.t().reshape(16, 12) * 2).t().reshape(8, 24).exp(),
    "flipped": lambda x: (x * 2).flip(1) + x,
    "every other": lambda x: x.exp()[:, ::2] * x[:, 1::2],
    "a read of a log softmax": lambda x: x.log_softmax(-1).gather(1, torch.arange(8).view(8, 1) * 3),
    "reads of rows": lambda x: (x.exp() + x.sum(-1, keepdim=True)).index_select(0, torch.tensor([3, 0, 3])),
    "a read of a slice": lambda x: (x[:, 4:] * 2).gather(1, torch.arange(16).view(8, 2)),
    "put into joined dims": lambda x: (
        (x.view(8, 4, 6) * 2).transpose(1, 2).reshape(8, 24).scatter(1, torch.arange(16).view(8, 2), x[:, 3:5].exp())
    ),
    "a put that is read": lambda x: (
        torch.cat((x, -x), 1).index_add(0, torch.tensor([1, 1]), (x[:2] * 2).repeat(1, 2)).flip(0)
    ),
    "a read of a repeated row": lambda x: x.sum(-1, keepdim=True).expand(8, 24).gather(1, torch.arange(8).view(8, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    """Whatever moves elements between functions, results are eager's."""
    inputs = (torch.randn(8, 24, generator=torch.Generator().manual_seed(5)),)
    cluster, values = whole_cluster(Wrapped(CASES[name]), inputs)
    assert value_problem(create().compile(cluster, ONE)(*values), eager(cluster, values), exact(cluster, values)) == ""


@pytest.mark.parametrize("place", [-1, 20])
def test_an_index_outside_a_slice_is_noticed(place: int) -> None:
    """A read of a function of a slice is checked against the slice, not against what it is cut from."""
    inputs = (torch.randn(8, 24), torch.full((8, 1), 3))
    cluster, values = whole_cluster(Wrapped(lambda x, at: (x[:, 4:] * 2).gather(1, at)), inputs)
    executable = create().compile(cluster, ONE)
    executable(*values)
    with pytest.raises(InputRefused, match="out of range"):
        executable(values[0], torch.full((8, 1), place))
