"""Rows and columns of unknown length: code for short ones exists next to that for any, and each runs the fitting one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.conformance.sizes import symbols_of, with_sizes
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from plugin_disc.runtime import machine_text
from tests.plugin_disc.programs import PROGRAMS, Wrapped

TWO = CompileSettings(threads=2)
LENGTHS = (0, 1, 15, 16, 17, 32, 33, 48, 63, 64, 65, 100, 128, 129, 500)
"""About every number of registers of 8 and of 16 lanes from which on other code runs."""


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


ROWS: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = {
    "softmax": (lambda x: torch.softmax(x, -1), (drawn(5, 24),)),
    "sums of float64": (lambda x: x.double().sum(-1), (drawn(5, 24),)),
    "sums and extremes of integers": (lambda x: ((x * 9).long().sum(-1), (x * 9).int().sum(-1)), (drawn(5, 24),)),
    "norm": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), (drawn(5, 24),)),
    "two reduced dims": (lambda x: x - x.mean((-2, -1), keepdim=True), (drawn(3, 5, 24),)),
    "a row's value, expensive": (lambda x: functional.silu(x.sum(-1)), (drawn(5, 24),)),
    "columns": (lambda x: (x.sum(0), x.amax(0, keepdim=True) - x), (drawn(7, 24),)),
    "columns of batches": (lambda x: x.mean(1), (drawn(3, 5, 24),)),
    "columns of many batches": (
        lambda x: (x.sum(1), x.amax(1, keepdim=True) + x[:, :1]),
        (drawn(3, 4, 5, 24).flatten(0, 1),),
    ),
    "rows of another": (lambda x, y: x + y.unsqueeze(1), (drawn(3, 5, 24), drawn(3, 24))),
    "turned": (lambda x: x.transpose(1, 2) * 2.0, (drawn(3, 5, 24),)),
    "everything": (lambda x: ((x * x).sum(), x.exp().mean()), (drawn(5, 24),)),
}


def captured(function: Callable[..., object], given: tuple[torch.Tensor, ...]) -> tuple[Cluster, tuple[object, ...]]:
    return whole_cluster(Wrapped(function), given, dynamic=True)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("name", ROWS)
def test_every_length(name: str) -> None:
    """Each symbol alone goes through all lengths while the others are small, and all go together."""
    cluster, values = captured(*ROWS[name])
    executable = create().compile(cluster, TWO)
    symbols = symbols_of(cluster)
    compared = 0
    for length in LENGTHS:
        changes = [*([symbol] for symbol in symbols), symbols if length < 130 else ()]
        for changed in changes:
            given = with_sizes(cluster, values, {symbol: length if symbol in changed else 3 for symbol in symbols})
            try:
                wanted = eager(cluster, given)
            except (IndexError, RuntimeError):  # an extreme of nothing
                continue
            problem = value_problem(executable(*given), wanted, exact(cluster, given))
            assert not problem, f"{length} for {changed}: {problem}"
            compared += 1
    assert compared >= len(symbols) * (len(LENGTHS) - 1)  # but for no elements, of which there may be no extreme


@pytest.mark.parametrize("half", [*range(0, 34), 40, 64, 70])
def test_halves_of_rows(half: int) -> None:
    """Halves of rows, as rotary embeddings turn them, have fewer registers than the row or as many."""
    function = PROGRAMS["rms_rotary"]
    cluster, values = captured(function, tuple(drawn(*shape) for shape in ((2, 3, 24), (24,), (3, 24), (3, 24))))
    executable = create().compile(cluster, TWO)
    symbols = symbols_of(cluster)
    given = with_sizes(cluster, values, {symbol: 2 * half if place == 2 else 3 for place, symbol in enumerate(symbols)})
    assert value_problem(executable(*given), eager(cluster, given), exact(cluster, given)) == ""


@pytest.mark.usefixtures("lanes")
@pytest.mark.parametrize("length", LENGTHS)
def test_quarters_of_rows(length: int) -> None:
    """Parts of rows that are no halves."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        quarter = x.shape[-1] // 4
        return torch.cat((-scaled[..., quarter:], scaled[..., :quarter]), -1) + x

    cluster, values = captured(turned, (drawn(5, 24),))
    executable = create().compile(cluster, TWO)
    rows, columns = symbols_of(cluster)
    given = with_sizes(cluster, values, {rows: 5, columns: length})
    assert value_problem(executable(*given), eager(cluster, given), exact(cluster, given)) == ""


def test_parts_that_are_longer_than_the_row() -> None:
    """A row's value is spread over another length: what fits the row says nothing about that."""

    def pooled(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x / mask.sum(-1, keepdim=True)

    cluster, values = captured(pooled, (drawn(4, 24), drawn(4, 40)))
    executable = create().compile(cluster, TWO)
    rows, *others = symbols_of(cluster)
    assert len(others) == 2
    for lengths in itertools.product((1, 16, 40, 64, 200), repeat=2):
        given = with_sizes(cluster, values, {rows: 3, **dict(zip(others, lengths, strict=True))})
        assert value_problem(executable(*given), eager(cluster, given), exact(cluster, given)) == ""


def test_known_lengths_have_one_version() -> None:
    """Where sizes are known, or nothing tells short from long, a kernel is one function."""
    for dynamic, count in ((False, 1), (True, 7)):
        cluster, _ = whole_cluster(Wrapped(PROGRAMS["masked_softmax"]), (drawn(5, 24), drawn(5, 24) > 0), dynamic=dynamic)
        text = machine_text(cluster, 2, 0)
        assert text.count("llvm.func @k0") - text.count("llvm.func @k0_part") == count
