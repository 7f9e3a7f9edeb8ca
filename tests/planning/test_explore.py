"""Exploring: only prices that could change the decision are worth measuring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from hub.partition.group import Group
from hub.planning.explore import Wanted, worth_measuring
from hub.planning.mixes import Mixer

X = torch.ones(64, 64)


def layers(n_small: int, n_large: int) -> nn.Module:
    """Return equal small blocks, then equal large ones: 64 to 64, and 64 to 512 to 64 features."""
    small = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(n_small)]
    large = [nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64), nn.GELU()) for _ in range(n_large)]
    return nn.Sequential(*small, *large).eval()


def wanted(stage: Any, known_s: Mapping[str, float] | None = None) -> tuple[Wanted, ...]:
    """Return what is worth measuring on a stage."""
    sections = Mixer(stage.context, stage.book, trusts_estimates=False).sections(stage.verdicts)
    return worth_measuring(sections, stage.book, stage.settings, known_s or {})


def structures(stage: Any) -> list[str]:
    """Return the regions' structures in order."""
    sections = Mixer(stage.context, stage.book, trusts_estimates=False).sections(stage.verdicts)
    return [section.region.structure for section in sections]


def test_equal_regions_are_one_piece(set_stage: Callable[..., Any]) -> None:
    """However many equal layers a model has, one piece for each backend is worth measuring."""
    stage = set_stage(layers(5, 0), (X,), {"one": "", "two": ""})
    assert len(structures(stage)) == 5
    assert sorted(item.piece.backend for item in wanted(stage)) == ["one", "two"]


def test_most_promising_first(set_stage: Callable[..., Any]) -> None:
    """The pieces that take most of a call come first."""
    stage = set_stage(layers(1, 2), (X,), {"one": ""})
    found = wanted(stage)
    assert [item.could_save_s for item in found] == sorted((item.could_save_s for item in found), reverse=True)
    assert set(found[-1].piece.nodes) <= {node.name for node in stage.context.graph.nodes[:2]}


def test_repeats_add_up(set_stage: Callable[..., Any]) -> None:
    """What a piece could save counts once for every region that it represents."""
    once = wanted(set_stage(layers(1, 0), (X,), {"one": ""}))[0].could_save_s
    thrice = wanted(set_stage(layers(3, 0), (X,), {"one": ""}))[0].could_save_s
    assert abs(thrice / once - 3) < 0.5


def test_bound_above_the_best_known_is_pruned(set_stage: Callable[..., Any]) -> None:
    """A piece that could not beat the best known price even at the machine's peaks is not measured."""
    stage = set_stage(layers(2, 0), (X,), {"one": ""})
    region = structures(stage)[0]
    at_peak_s = stage.book.least_s(wanted(stage)[0].piece, stage.settings)
    assert at_peak_s > 0
    assert wanted(stage, {region: 10 * at_peak_s})
    assert not wanted(stage, {region: 0.9 * at_peak_s})
    assert not wanted(stage, {region: 1.01 * at_peak_s})


def test_measured_pieces_are_not_wanted(set_stage: Callable[..., Any]) -> None:
    """A piece with a price, from this process or an earlier one, is not measured again."""
    stage = set_stage(layers(3, 0), (X,), {"one": "", "two": ""})
    first = wanted(stage)[0].piece
    stage.price(first.backend, first.nodes, 1e-3)
    assert [item.piece.backend for item in wanted(stage)] == [name for name in ("one", "two") if name != first.backend]
    assert [item.piece for item in wanted(stage.again())] == [item.piece for item in wanted(stage)]


def test_failed_pieces_are_never_wanted_again(set_stage: Callable[..., Any]) -> None:
    """A piece that failed is not tried again, wherever its structure occurs."""
    stage = set_stage(layers(3, 0), (X,), {"one": ""})
    last = structures(stage)
    assert len(set(last)) == 1
    nodes = Mixer(stage.context, stage.book, trusts_estimates=False).sections(stage.verdicts)[-1].region.nodes
    stage.book.fail(Group("one", nodes), "broken")
    assert not wanted(stage)


def test_same_question_same_answer(set_stage: Callable[..., Any]) -> None:
    """What is worth measuring depends only on the graph and on what is known."""
    stage = set_stage(layers(2, 2), (X,), {"one": "", "two": ""})
    assert wanted(stage) == wanted(stage.again())
