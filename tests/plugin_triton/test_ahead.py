"""Kernels are compiled before their first launch, with blocks that fit a GPU; or the cluster goes elsewhere."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from hub.errors import CompileError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton import ahead, runtime
from plugin_triton.ahead import fitting
from plugin_triton.backend import create
from plugin_triton.blocks import Blocks
from plugin_triton.choices import Limits, Tile, Tiling, smaller_than
from plugin_triton.interpreter import loaded
from plugin_triton.machine import Machine, machine_of
from plugin_triton.settings import Settings
from plugin_triton.source import Choose, File, by_rules, file_of
from plugin_triton.targets import Target, compiled
from tests.plugin_disc.programs import Wrapped
from tests.plugin_triton.real import BRAIN, linear, of
from tests.plugin_triton.test_launch import Driver

H100 = Machine(Target.parse("cuda:90"), Limits(), "a stand-in")
PRODUCT = Tiling(
    {"BM": 4096, "BN": 4096}, {"BK": 4096}, (Tile(("BM", "BN"), 4),), (Tile(("BM", "BK"), 2), Tile(("BK", "BN"), 2)), 16
)
DEFAULT = Blocks({"BM": 128, "BN": 128, "BK": 64}, warps=8)


def with_shared(shared: int) -> Machine:
    """Return an H100 whose programs have less shared memory."""
    return replace(H100, limits=replace(H100.limits, shared=shared))


def product() -> Cluster:
    """Return a product in float16, whose tiles lie in shared memory."""
    shape = (2048, 2048)
    return whole_cluster(Wrapped(linear), (of(*shape, dtype=BRAIN), of(*shape, dtype=BRAIN), of(2048, dtype=BRAIN)))[0]


def fitted(cluster: Cluster, machine: Machine, choose: Choose = by_rules) -> File:
    """Return the file that fits a machine."""
    lowered = lower(cluster)
    return fitting(lambda chosen: file_of(cluster, lowered, is_interpreted=False, choose=chosen), choose, machine)


def test_blocks_that_fit_stay_as_they_are() -> None:
    """This holds for any way of choosing them."""
    cluster = product()
    assert fitted(cluster, H100).kernels[0].blocks == DEFAULT
    chosen = replace(DEFAULT, stages=2)
    assert fitted(cluster, H100, lambda *_: chosen).kernels[0].blocks == chosen


@pytest.mark.parametrize("shared", [pytest.param(81920, marks=pytest.mark.slow), 65536])
def test_a_gpu_with_less_shared_memory_gets_smaller_blocks(shared: int) -> None:
    """As GPUs for games, and AMD's; the kernel needs no more than it may have."""
    machine = with_shared(shared)
    assert compiled(fitted(product(), H100), H100.target)[0].needs.shared > 65536
    file = fitted(product(), machine)
    (found,) = compiled(file, machine.target)
    assert found.needs.shared <= shared
    assert file.kernels[0].blocks != DEFAULT


def test_where_no_blocks_fit_the_error_gives_both_numbers() -> None:
    """What is needed with the smallest ones, and what is allowed."""
    with pytest.raises(
        CompileError, match=r"k0 \(.*linear.*\) needs [\d,]+ bytes .* 512 are allowed on a stand-in"
    ) as caught:
        fitted(product(), with_shared(512))
    needed = re.search(r"needs ([\d,]+) bytes", caught.value.message)
    assert needed is not None
    assert 512 < int(needed[1].replace(",", "")) <= 16384


def test_the_next_choice_is_the_largest_that_should_fit() -> None:
    """Or the smallest, where none should: the step after it is smaller still. Warps stay."""
    following = smaller_than(DEFAULT, PRODUCT, Limits(shared=65536), 98304)
    assert following == replace(DEFAULT, stages=2)
    least = smaller_than(DEFAULT, PRODUCT, Limits(shared=1024), 98304)
    assert least == Blocks({"BM": 64, "BN": 64, "BK": 32}, warps=8, stages=2)
    sixteen = Blocks(dict.fromkeys(("BM", "BN", "BK"), 16), stages=2)
    assert smaller_than(sixteen, PRODUCT, Limits(shared=1024), 98304) is None


def test_a_kernel_that_triton_refuses_names_the_place_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Triton's last lines; the file stays where it is."""

    def broken(file: File, target: Target) -> Any:
        text = file.text.replace("tl.dot(left, right", "tl.dot(left, left_out")
        return compiled(replace(file, text=text), target)

    monkeypatch.setattr(ahead, "compiled", broken)
    with pytest.raises(CompileError, match="left_out is not defined") as caught:
        fitted(product(), H100)
    assert "k0 cannot be compiled for cuda:90" in caught.value.message
    path = Path(caught.value.message.rpartition("The kernels are in ")[2])
    assert "tl.dot(left, right" in path.read_text()
    path.unlink()
    path.parent.rmdir()


# --- Through the backend, before a GPU that is not there ----------------------------------------------------------------


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Substitute a GPU with 512 bytes of shared memory for a program."""
    machine = with_shared(512)
    monkeypatch.setattr(runtime, "machine_of", lambda _: machine)
    yield machine


def on_gpu(cluster: Cluster) -> Cluster:
    """Return a cluster as if it lay on a GPU."""
    device = torch.device("cuda:0")
    specs: Sequence[Any] = [replace(spec, device=device) for spec in (*cluster.inputs, *cluster.outputs)]
    count = len(cluster.inputs)
    return replace(cluster, inputs=tuple(specs[:count]), outputs=tuple(specs[count:]))


def test_compiling_refuses_what_does_not_fit(small_gpu: Machine) -> None:
    """Before anything is launched: the cluster goes elsewhere."""
    with pytest.raises(CompileError, match=f"512 are allowed on {small_gpu.name}") as caught:
        create(Settings()).compile(on_gpu(product()), CompileSettings(threads=1))
    assert (caught.value.backend, caught.value.cluster) == ("triton", "c0")


def test_the_limits_are_those_by_which_triton_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the GPU that the cluster lies on, whichever is the current one."""
    entered: list[torch.device] = []
    facts = SimpleNamespace(
        shared_memory_per_block_optin=1,
        shared_memory_per_block=1,
        shared_memory_per_multiprocessor=167936,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=1536,
    )
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(Target.parse("cuda:86")))
    monkeypatch.setattr(torch.cuda, "device", lambda device: (entered.append(device), contextlib.nullcontext())[1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU for games")
    found = machine_of(torch.device("cuda:1"))
    assert found == Machine(Target("cuda", "86"), Limits(232448, 167936, 65536, 1536), "a GPU for games")
    assert entered == [torch.device("cuda:1")]


def test_what_was_compiled_ahead_is_what_the_first_launch_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's own cache: nothing is compiled twice."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    hits: list[bool] = []
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda *, cache_hit, **_: hits.append(cache_hit))
    cluster, inputs = whole_cluster(Wrapped(lambda x: x.softmax(-1)), (torch.randn(4, 64),))
    file = fitted(cluster, H100)
    assert hits == [False]
    stand_in = Driver(H100.target)
    monkeypatch.setattr(triton.runtime.driver, "_active", stand_in)
    path = tmp_path / "kernels.py"
    path.write_text(file.text)
    loaded(path, is_interpreted=False).call(*inputs, torch.device("cpu"))
    assert len(stand_in.launches) == 1
    assert hits == [False, True]
