"""Block sizes are timed, kept and found again; whichever wins, results are eager's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hub.cache.measurements import Measurements
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.backend import create
from plugin_triton.blocks import Blocks
from plugin_triton.choices import CHOICES, Limits, Tile, Tiling, choices_of
from plugin_triton.chosen import chosen_by, gpu_of, key_of
from plugin_triton.machine import limits_of
from plugin_triton.runtime import build
from plugin_triton.settings import Settings
from plugin_triton.source import File, file_of
from plugin_triton.targets import Target, compiled
from plugin_triton.tuning import Tuner
from tests.plugin_disc.programs import Wrapped
from tests.plugin_triton.cases import CASES, HALF, Case, placed

H100 = Limits()
PRODUCT = Tiling(
    {"BM": 4096, "BN": 4096}, {"BK": 4096}, (Tile(("BM", "BN"), 4),), (Tile(("BM", "BK"), 2), Tile(("BK", "BN"), 2)), 16
)
DEFAULT = Blocks({"BM": 128, "BN": 128, "BK": 64}, warps=8)
HERE = gpu_of(torch.device("cpu"))


def cluster_of(case: Case, size: int, dtype: torch.dtype | None = None) -> tuple[Cluster, tuple[Any, ...]]:
    function, inputs = case
    return whole_cluster(Wrapped(function), placed(inputs(size), dtype))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Measurements]:
    found, note = Measurements.open(tmp_path)
    assert note == ""
    yield found
    found.close()


# --- Which sizes are timed ----------------------------------------------------------------------------------------------


def test_the_default_comes_first_and_all_others_fit() -> None:
    """Into shared memory and registers, in steps of two; none twice."""
    found = choices_of(DEFAULT, PRODUCT, H100)
    assert found[0] == DEFAULT
    assert len(found) == len({each.to_json() for each in found}) == CHOICES
    for each in found:
        assert sum(tile.nbytes(each.sizes) for tile in PRODUCT.staged) * each.stages <= H100.shared
        assert each.sizes["BM"] * each.sizes["BN"] * 4 <= 512 * 32 * each.warps
        assert all(size >= 16 and size & (size - 1) == 0 for size in each.sizes.values())


def test_sizes_that_move_much_more_are_left_out() -> None:
    """Tiles of half the rows and half the columns read everything twice as often."""
    assert all(each.sizes["BM"] + each.sizes["BN"] >= 192 for each in choices_of(DEFAULT, PRODUCT, H100))


def test_less_shared_memory_leaves_smaller_choices() -> None:
    """As on GPUs for games."""
    small = replace(H100, shared=49152, shared_in_all=65536)
    others = choices_of(DEFAULT, PRODUCT, small)[1:]
    assert others
    assert all(sum(tile.nbytes(each.sizes) for tile in PRODUCT.staged) * each.stages <= 49152 for each in others)


@pytest.mark.parametrize(("more", "shared"), [({"shared_memory_per_block_optin": 232448}, 232448), ({}, 49152)])
def test_limits_are_those_of_the_gpu(more: Mapping[str, int], shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch tells of AMD's GPUs no memory that a program may have on demand."""
    properties = SimpleNamespace(
        shared_memory_per_block=49152,
        shared_memory_per_multiprocessor=65536,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        **more,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert limits_of(torch.device("cuda:0")) == Limits(shared, 65536, 65536, 2048)


def test_what_decides_no_block_keeps_its_size() -> None:
    """A row that is held whole has the block that it needs."""
    found = choices_of(Blocks({"XBLOCK": 2, "RBLOCK": 1024}), Tiling({"XBLOCK": 64}), H100)
    assert {each.sizes["RBLOCK"] for each in found} == {1024}
    assert {each.sizes["XBLOCK"] for each in found} == {1, 2, 4}


def test_blocks_end_with_what_there_is() -> None:
    """Three rows need no block of eight."""
    found = choices_of(Blocks({"XBLOCK": 4}), Tiling({"XBLOCK": 3}), H100)
    assert {each.sizes["XBLOCK"] for each in found} == {2, 4}


def every_choice(case: Case, dtype: torch.dtype | None, *, is_interpreted: bool) -> Iterator[tuple[Any, Any, Any]]:
    """Yield a cluster and its inputs with each kernel's choices in turn."""
    cluster, given = cluster_of(case, 129, dtype)
    lowered = lower(cluster)
    kernels = file_of(cluster, lowered, is_interpreted=is_interpreted).kernels
    choices = {kernel.name: choices_of(kernel.blocks, kernel.tiling, H100) for kernel in kernels}
    for place in range(max(map(len, choices.values()))):
        chosen = {name: found[min(place, len(found) - 1)] for name, found in choices.items()}
        yield cluster, given, lambda kernel, _, chosen=chosen: chosen[kernel.name]


@pytest.mark.parametrize("name", ["softmax", "columns", "product", "attention", "running", "scatter add", "transposed"])
def test_every_choice_is_right(name: str) -> None:
    """Blocks decide how fast a kernel is and nothing else."""
    for cluster, given, choose in every_choice(CASES[name], None, is_interpreted=True):
        assert value_problem(build(cluster, choose)(*given), eager(cluster, given), exact(cluster, given)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", HALF)
def test_every_choice_compiles(name: str) -> None:
    """For an H100, within its shared memory."""
    for cluster, _, choose in every_choice(HALF[name], torch.bfloat16, is_interpreted=False):
        file = file_of(cluster, lower(cluster), is_interpreted=False, choose=choose)
        assert all(each.needs.shared <= H100.shared for each in compiled(file, Target.parse("cuda:90")))


def kernels_of(cluster: Cluster) -> File:
    return file_of(cluster, lower(cluster), is_interpreted=True)


# --- Timing -----------------------------------------------------------------------------------------------------------


def preferring(wanted: Mapping[str, int], asked: list[int]) -> Callable[[Callable[[], Any]], float]:
    """Return a clock for launches that is fastest at some sizes, and counts its calls."""

    def bench(launch: Callable[[], Any]) -> float:
        asked.append(1)
        cells = launch.__closure__ or ()
        named = next(cell.cell_contents for cell in cells if isinstance(cell.cell_contents, dict))
        launch()
        return 1e-5 * (1 + sum(abs(named[name] - size) for name, size in wanted.items() if name in named))

    return bench


def test_the_fastest_is_kept_and_used(kept: Measurements) -> None:
    """By the next compilation, whose results are eager's; and nothing is timed twice."""
    cluster, given = cluster_of(CASES["softmax"], 129)
    asked: list[int] = []
    told: list[str] = []
    tuner = Tuner(kept, H100, told.append, end_s=float("inf"), bench=preferring({"num_warps": 2}, asked))
    tuner.tune(cluster)
    assert (len(tuner.gains), len(told)) == (1, 1)
    assert tuner.gains[0] > 1
    executable = build(cluster, chosen_by(kept, HERE))
    assert "num_warps=2" in executable.text
    assert value_problem(executable(*given), eager(cluster, given), exact(cluster, given)) == ""
    n_asked = len(asked)
    again = Tuner(kept, H100, told.append, end_s=float("inf"), bench=preferring({"num_warps": 8}, asked))
    again.tune(cluster)
    assert len(asked) == n_asked
    assert again.summary() == "no kernel was new"
    assert build(cluster, chosen_by(kept, HERE)).text == executable.text


def test_blocks_that_do_not_run_are_no_choice(kept: Measurements) -> None:
    """A GPU may have less than the model says."""
    cluster, _ = cluster_of(CASES["pointwise"], 1000)

    def bench(launch: Callable[[], Any]) -> float:
        named = next(cell.cell_contents for cell in launch.__closure__ or () if isinstance(cell.cell_contents, dict))
        if named["num_warps"] != 4:
            raise RuntimeError("out of resource: registers")
        return 1e-5 / named["XBLOCK"]

    tuner = Tuner(kept, H100, lambda _: None, end_s=float("inf"), bench=bench)
    tuner.tune(cluster)
    assert tuner.gains
    assert set(re.findall(r"num_warps=\d+", build(cluster, chosen_by(kept, HERE)).text)) == {"num_warps=4"}


def test_no_time_is_left(kept: Measurements) -> None:
    """What was found is kept, and the summary says how many kernels wait."""
    cluster, _ = cluster_of(CASES["softmax"], 129)
    tuner = Tuner(kept, H100, lambda _: None, end_s=0.0, clock=lambda: 1.0)
    tuner.tune(cluster)
    assert tuner.summary() == "no kernel was new; no time was left for 1 kernel"


def test_equal_kernels_of_different_models_share_what_was_found() -> None:
    """Names of nodes, inputs and kernels do not count; sizes, dtypes and the GPU do."""

    def keys(function: Callable[..., Any], *inputs: torch.Tensor, gpu: str = HERE) -> list[str]:
        cluster, _ = whole_cluster(Wrapped(function), inputs)
        file = kernels_of(cluster)
        return [key_of(kernel, file.dtypes, gpu) for kernel in file.kernels]

    (alone,) = keys(lambda x: x.softmax(-1), torch.randn(4, 40))
    second = keys(lambda y, x: (y @ y, x.softmax(-1)), torch.randn(32, 32), torch.randn(4, 40))
    assert alone in second
    assert keys(lambda x: x.softmax(-1), torch.randn(4, 41)) != [alone]
    assert keys(lambda x: x.softmax(-1), torch.randn(4, 40).bfloat16()) != [alone]
    assert keys(lambda x: x.softmax(-1), torch.randn(4, 40), gpu="another") != [alone]


def test_a_choice_that_cannot_be_read_is_left_to_rules(kept: Measurements) -> None:
    """As one of another version of the plugin."""
    cluster, _ = cluster_of(CASES["softmax"], 129)
    Tuner(kept, H100, lambda _: None, end_s=float("inf"), bench=lambda _: 1.0).tune(cluster)
    (kernel,) = kernels_of(cluster).kernels
    key = key_of(kernel, kernels_of(cluster).dtypes, HERE)
    (found,) = kept.find_choices([key]).values()
    for text in ("{}", "[]", "no JSON", '{"sizes": {"BM": 4}, "warps": 4, "stages": 3}'):
        kept.keep_choice(replace(found, choice=text))
        assert chosen_by(kept, HERE)(kernel, kernels_of(cluster).dtypes) is None, text


def test_tuning_shows_in_cache_keys(kept: Measurements, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled before is compiled again."""
    monkeypatch.setenv("HUB_CACHE_DIR", str(tmp_path))
    before = Settings().state
    cluster, _ = cluster_of(CASES["softmax"], 129)
    Tuner(kept, H100, lambda _: None, end_s=float("inf"), bench=lambda _: 1.0).tune(cluster)
    assert before == ""
    assert Settings().state != ""


def test_without_a_gpu_nothing_is_timed() -> None:
    """The interpreter's own time says nothing of any GPU, and `hub tune` says so."""
    cluster, _ = cluster_of(CASES["softmax"], 129)
    backend = create(Settings(interpret=True))
    assert "not a GPU" in backend.tune([cluster], CompileSettings(threads=1), 1.0, lambda _: None)
