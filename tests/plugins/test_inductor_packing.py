"""Which library multiplies by weights in Inductor's programs on the CPU."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
from plugin_inductor import packing
from plugin_inductor.backend import create
from plugin_inductor.runtime import InductorExecutable
from torch import nn

from hub.testing.single import SETTINGS, whole_cluster

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),
    pytest.mark.skipif(
        not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()),
        reason="one library at most is there",
    ),
]
LIBRARIES = {True: "mkldnn", False: "mkl"}


class Mixed(nn.Module):
    """A product with a bias, an activation and a residual, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(24, 96), nn.Linear(96, 24, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [rows, 24] to [rows, 24]."""
        return x + self.narrow(nn.functional.gelu(self.wide(x)))


def packed_by(program: object) -> set[str]:
    """Return the namespaces of the operators that made the constants of a program."""
    return {recipe.operator.partition("::")[0].partition(".")[0] for recipe in program.recipes.values()}  # pyright: ignore


@pytest.mark.parametrize("is_onednn", LIBRARIES)
def test_the_faster_library_packs_and_multiplies(is_onednn: bool, tmp_path: Path) -> None:
    model, x = Mixed().eval(), torch.randn(16, 24)
    cluster = whole_cluster(model, (x,))[0]
    with mock.patch.object(packing, "is_onednn_faster", lambda *_: is_onednn):
        executable = create().compile(cluster, SETTINGS)
    assert isinstance(executable, InductorExecutable)
    assert packed_by(executable._program) >= {LIBRARIES[is_onednn]}
    assert packed_by(executable._program).isdisjoint({LIBRARIES[not is_onednn]})
    executable.save(tmp_path)
    stored = create().load(tmp_path, cluster, SETTINGS)
    for one in (executable, stored):
        torch.testing.assert_close(one(x)[0], model(x), rtol=1e-5, atol=1e-6)


def test_each_size_has_its_library() -> None:
    model, x = Mixed().eval(), torch.randn(16, 24)
    with mock.patch.object(packing, "is_onednn_faster", lambda rows, inner, columns, threads: inner < columns):
        executable = create().compile(whole_cluster(model, (x,))[0], SETTINGS)
    assert isinstance(executable, InductorExecutable)
    assert packed_by(executable._program) >= {"mkl", "mkldnn"}
    torch.testing.assert_close(executable(x)[0], model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("onednn_s", "mkl_s", "wanted"), [(1.0, 2.0, True), (1.05, 1.0, True), (2.0, 1.0, False)])
@pytest.mark.parametrize("limit_s", [0.0, 60.0])
def test_times_decide(onednn_s: float, mkl_s: float, wanted: bool, limit_s: float) -> None:
    """However little time there is, each library is timed once."""
    packing.is_onednn_faster.cache_clear()
    found = packing.calls(1, 2, 3)
    times = dict(zip(found, (onednn_s, mkl_s), strict=True))
    with (
        mock.patch.object(packing, "calls", lambda *_: found),
        mock.patch.object(packing, "seconds", times.__getitem__),
        mock.patch.object(packing, "MAX_TIMING_S", limit_s),
    ):
        assert packing.is_onednn_faster(1, 2, 3, 1) is wanted
    packing.is_onednn_faster.cache_clear()


def test_both_libraries_multiply() -> None:
    onednn, mkl = packing.calls(5, 7, 3)
    torch.testing.assert_close(onednn(), torch.full((5, 3), 7 * 0.5 * 0.25))
    torch.testing.assert_close(mkl(), onednn())


def test_numbers_at_random_and_later_compilations_notice_nothing() -> None:
    packing.is_onednn_faster.cache_clear()
    model, x = Mixed().eval(), torch.randn(16, 24)
    cluster = whole_cluster(model, (x,))[0]
    before, device_op_of = torch.get_rng_state(), packing.mkldnn_fusion._get_mkldnn_device_op
    create().compile(cluster, SETTINGS)
    assert torch.equal(torch.get_rng_state(), before)
    assert packing.mkldnn_fusion._get_mkldnn_device_op is device_op_of
