"""At the sizes of real models rules choose their largest blocks: these too fit an H100, and no register spills."""

from __future__ import annotations

from typing import Any

import pytest

from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.ahead import fitting
from plugin_triton.choices import Limits
from plugin_triton.machine import Machine
from plugin_triton.source import File, by_rules, file_of
from plugin_triton.targets import Target, compiled
from tests.plugin_disc.programs import Wrapped
from tests.plugin_triton.real import PRODUCTS, QUICK, REAL

H100 = Limits()
MI300 = Machine(Target.parse("hip:gfx942"), Limits(shared=65536, shared_in_all=65536), "an MI300")
SLOW: tuple[Any, ...] = tuple(pytest.param(name, marks=pytest.mark.slow) for name in REAL if name not in QUICK)


def file_for(name: str) -> File:
    """Return a case's file for a GPU, with the blocks that rules choose."""
    function, inputs = REAL[name]
    cluster, _ = whole_cluster(Wrapped(function), inputs)
    return file_of(cluster, lower(cluster), is_interpreted=False)


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_nothing_spills(name: str) -> None:
    """And no program needs more shared memory than it may have."""
    found = compiled(file_for(name), Target.parse("cuda:90"))
    assert {each.needs.kernel: each.needs.spilled for each in found if each.needs.spilled} == {}
    assert all(each.needs.shared <= H100.shared for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_the_other_maker_has_room_for_them(name: str) -> None:
    """With blocks that fit into 64 KB for a program: attention of wide rows gets smaller ones than on an H100."""
    function, inputs = REAL[name]
    cluster, _ = whole_cluster(Wrapped(function), inputs)
    lowered = lower(cluster)
    file = fitting(lambda choose: file_of(cluster, lowered, is_interpreted=False, choose=choose), by_rules, MI300)
    assert all(each.needs.shared <= MI300.limits.shared for each in compiled(file, MI300.target))


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("bfloat16", (128, 128, 64)), ("float32", (128, 64, 16)), ("float64", (64, 64, 16)), ("one row", (16, 128, 64))],
)
def test_the_largest_blocks_are_among_them(name: str, blocks: tuple[int, ...]) -> None:
    """Small cases have smaller ones."""
    assert name in PRODUCTS
    assert tuple(file_for(f"product: {name}").kernels[0].blocks.sizes.values()) == blocks
