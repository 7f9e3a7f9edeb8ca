"""Kernels in Triton's interpreter against eager; and compiled for two GPUs that are not here."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hub.errors import CompileError, InputRefused, OptionError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.conformance.sizes import symbols_of, with_sizes
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.backend import create
from plugin_triton.settings import Settings
from plugin_triton.source import file_of
from plugin_triton.targets import Target, compiled
from tests.plugin_disc.programs import PROGRAMS, Wrapped, inputs_of
from tests.plugin_triton.cases import CASES, HALF, RAGGED, Case, placed

ONE = CompileSettings(threads=1)
BACKEND = create(Settings(interpret=True))
TARGETS = ("cuda:90", "hip:gfx942")


def cluster_of(case: Case, size: int, dtype: torch.dtype | None = None) -> tuple[Cluster, Sequence[Any]]:
    """Return a case as one cluster, all of whose nodes Triton supports."""
    function, inputs = case
    cluster, given = whole_cluster(Wrapped(function), placed(inputs(size), dtype))
    refusals = [BACKEND.supports(node).reason for node in cluster.nodes if "getitem" not in str(node.target)]
    assert [reason for reason in refusals if reason] == []
    return cluster, given


def assert_right(cluster: Cluster, inputs: Sequence[Any]) -> None:
    """Assert that results are as accurate as plugins' must be."""
    found = BACKEND.compile(cluster, ONE)(*inputs)
    assert value_problem(found, eager(cluster, inputs), exact(cluster, inputs)) == ""


@pytest.mark.parametrize("size", RAGGED)
@pytest.mark.parametrize("name", CASES)
def test_every_template_at_ragged_sizes(name: str, size: int) -> None:
    """Masks hold at the edges of blocks."""
    assert_right(*cluster_of(CASES[name], size))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HALF)
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """Computed in float32 and rounded once, infinities beyond the range."""
    assert_right(*cluster_of(HALF[name], 129, dtype))


@pytest.mark.parametrize("name", PROGRAMS)
def test_clusters_of_real_models(name: str) -> None:
    """What DISC's loops are tested on."""
    inputs = inputs_of(name, 6, 24)
    cluster, values = whole_cluster(Wrapped(PROGRAMS[name]), inputs)
    assert_right(cluster, values)


@pytest.mark.parametrize("name", ["masked_softmax", "residual_norm", "gelu_bias", "heads", "running"])
def test_symbolic_sizes(name: str) -> None:
    """One executable gives what eager gives at all sizes."""
    cluster, inputs = whole_cluster(Wrapped(PROGRAMS[name]), inputs_of(name, 6, 24), dynamic=True)
    executable = BACKEND.compile(cluster, ONE)
    for factor in (1, 3, 2):
        sizes = {symbol: 8 * factor * (1 + place) for place, symbol in enumerate(symbols_of(cluster))}
        values = with_sizes(cluster, inputs, sizes)
        assert value_problem(executable(*values), eager(cluster, values), exact(cluster, values)) == ""


def test_symbolic_sizes_of_inputs_in_another_order() -> None:
    """Sizes are those of the dims as the caller has them."""
    cluster, inputs = whole_cluster(Wrapped(lambda x: x.softmax(-1)), (torch.randn(24, 6).t(),), dynamic=True)
    values = with_sizes(cluster, inputs, {symbol: 5 + place for place, symbol in enumerate(symbols_of(cluster))})
    assert_right(cluster, [value.t().contiguous().t() if value.ndim == 2 else value for value in values])


def test_nan_comes_through_extremes() -> None:
    """Triton's own maximum of a row would lose it."""
    cluster, inputs = whole_cluster(
        Wrapped(lambda x: (x.amax(1), x.amin(0))), (torch.tensor([[1.0, float("nan")], [3.0, 2.0]]),)
    )
    found = BACKEND.compile(cluster, ONE)(*inputs)
    assert [value.isnan().tolist() for value in found] == [[True, False], [False, True]]


def test_numbers_are_compared_while_compiling() -> None:
    """The interpreter does not accept a comparison of two numbers next to a tensor's."""
    cluster, inputs = whole_cluster(Wrapped(lambda x: torch.floor_divide(x, 0.3)), (torch.randn(3, 4),))
    assert_right(cluster, inputs)
    cluster, inputs = whole_cluster(Wrapped(lambda x: torch.remainder(x, -2.0)), (torch.randn(3, 4),))
    assert_right(cluster, inputs)


def test_a_comparison_of_single_numbers_beside_one_of_many() -> None:
    """Triton's interpreter would make a block of floats of the single one, which `&` does not take."""
    cluster, inputs = whole_cluster(Wrapped(torch.logical_and), (torch.randn(3, 1), torch.randn(1)))
    assert_right(cluster, inputs)


def test_an_index_out_of_range_is_eagers() -> None:
    """Nothing is read outside of the table."""
    cluster, inputs = cluster_of(CASES["embedding"], 9)
    executable = BACKEND.compile(cluster, ONE)
    index = next(position for position, value in enumerate(inputs) if not value.is_floating_point())
    wrong = [torch.full_like(value, 7) if place == index else value for place, value in enumerate(inputs)]
    with pytest.raises(InputRefused, match="out of range"):
        executable(*wrong)


# --- Compiled for GPUs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_template_compiles_for_gpus_without_spilling(name: str, target: str) -> None:
    """All stages come out, down to the binary."""
    cluster, _ = cluster_of(CASES[name], 1000)
    file = file_of(cluster, lower(cluster), is_interpreted=False)
    found = compiled(file, Target.parse(target))
    assert [each.needs.kernel for each in found] == [kernel.name for kernel in file.kernels]
    last = "cubin" if target.startswith("cuda") else "hsaco"
    assert all(each.stages[last] for each in found)
    assert [each.needs.spilled for each in found] == [0] * len(found)
    assert all(0 < each.needs.registers <= 255 for each in found)


@pytest.mark.parametrize(
    "name",
    ["pointwise", "softmax", "product", "layer of a batch", "attention", "wide attention", "rows added", "overflow"],
)
def test_half_precision_compiles(name: str) -> None:
    """Products go to the tensor cores."""
    cluster, _ = cluster_of(HALF[name], 1000, torch.bfloat16)
    file = file_of(cluster, lower(cluster), is_interpreted=False)
    found = compiled(file, Target.parse("cuda:90"))
    assert [each.needs.spilled for each in found] == [0] * len(found)
    if name in ("product", "layer of a batch", "attention", "wide attention"):
        assert "wgmma" in str(found[0].stages["ptx"])


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8], ids=str)
def test_sums_of_small_integers_wrap(dtype: torch.dtype) -> None:
    """Triton's own have 32 bits on a GPU, unlike in its interpreter: what reads them gets as few as in eager."""
    numbers = torch.full((3, 40), 100, dtype=dtype)
    cluster, _ = whole_cluster(Wrapped(lambda x: (x.sum(1, dtype=dtype) * 3).long()), (numbers,))
    (found,) = compiled(file_of(cluster, lower(cluster), is_interpreted=False), Target.parse("cuda:90"))
    after = str(found.stages["ttir"]).rpartition("tt.reduce.return")[2]
    assert re.findall(r"arith.muli .* tensor<.*x(i\d+)>", after) == [f"i{torch.iinfo(dtype).bits}"]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8], ids=str)
def test_running_totals_of_small_integers_compile(dtype: torch.dtype) -> None:
    """The total that one block passes to the next has the dtype that it begins with."""
    numbers = torch.full((3, 40), 100, dtype=dtype)
    cluster, _ = whole_cluster(Wrapped(lambda x: x.cumsum(1, dtype=dtype)), (numbers,))
    assert compiled(file_of(cluster, lower(cluster), is_interpreted=False), Target.parse("cuda:90"))


def test_symbolic_sizes_compile() -> None:
    """Sizes are parameters."""
    cluster, _ = whole_cluster(Wrapped(PROGRAMS["residual_norm"]), inputs_of("residual_norm", 6, 24), dynamic=True)
    file = file_of(cluster, lower(cluster), is_interpreted=False)
    assert compiled(file, Target.parse("cuda:90"))


@pytest.mark.parametrize("text", ["cuda", "cuda:", "cuda:sm_90", "rocm:gfx942", "xpu:pvc", ""])
def test_what_is_no_target_is_refused(text: str) -> None:
    """With how to write one, or which wheel brings it."""
    with pytest.raises(OptionError, match=r"cuda:90|the wheel triton-xpu"):
        Target.parse(text)


def test_a_gpu_that_triton_does_not_know() -> None:
    """The kernel and the target are named."""
    cluster, _ = cluster_of(CASES["pointwise"], 7)
    file = file_of(cluster, lower(cluster), is_interpreted=False)
    with pytest.raises(CompileError, match="k0 cannot be compiled for hip:gfx000"):
        compiled(file, Target.parse("hip:gfx000"))


# --- Files ------------------------------------------------------------------------------------------------------------


def test_saved_kernels_load_and_damaged_ones_do_not(tmp_path: Path) -> None:
    """By their digest."""
    cluster, inputs = cluster_of(CASES["layer norm"], 33)
    executable = BACKEND.compile(cluster, ONE)
    executable.save(tmp_path)
    again = BACKEND.load(tmp_path, cluster, ONE)
    assert torch.equal(again(*inputs)[0], executable(*inputs)[0])
    kernels = tmp_path / "kernels.py"
    kernels.write_text(kernels.read_text().replace("+", "-", 1))
    with pytest.raises(CompileError, match="is not what was saved"):
        BACKEND.load(tmp_path, cluster, ONE)


def test_the_file_needs_nothing_of_the_hub(tmp_path: Path) -> None:
    """It imports torch and triton, and can be handed on."""
    cluster, _ = cluster_of(CASES["product"], 33)
    text = file_of(cluster, lower(cluster), is_interpreted=False).text
    imports = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert all(line.split()[1].partition(".")[0] in ("torch", "triton") for line in imports)
    path = tmp_path / "kernels.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("kernels_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.call)


def test_without_the_setting_the_cpu_is_refused() -> None:
    """With what to set."""
    cluster, _ = cluster_of(CASES["pointwise"], 7)
    verdict = create(Settings()).supports(cluster.nodes[0])
    assert not verdict.accepted
    assert "HUB_TRITON_INTERPRET=1" in verdict.reason
