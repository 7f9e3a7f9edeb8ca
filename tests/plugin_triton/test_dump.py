"""What the debug folder gets of a cluster: kernels, the program before and after fusion, and every stage for a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import hub
from hub.config.settings import Setting
from hub.errors import OptionError
from hub.plugin.backend import CompileSettings
from hub.plugin.settings import checked_settings
from hub.testing.single import whole_cluster
from plugin_triton.backend import create
from plugin_triton.launch import Launcher
from plugin_triton.settings import Settings
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)
TEXTS = ("source", "ttir", "ttgir", "llir")


def norm_and_product() -> Any:
    """Return two kernels, the second of which fuses a group."""
    return whole_cluster(
        Wrapped(lambda x, w: F.relu(F.layer_norm(x, (64,)) @ w)), (torch.randn(32, 64), torch.randn(64, 48))
    )


def dumped(folder: Path, **settings: Any) -> set[str]:
    """Dump a cluster, and return the paths of what was written."""
    cluster, _ = norm_and_product()
    folder.mkdir()
    create(Settings(interpret=True, **settings)).compile(cluster, ONE).dump(folder)
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_stage_is_written(tmp_path: Path) -> None:
    """For cuda:90 where nothing else is said and this machine has no GPU."""
    found = dumped(tmp_path / "dump")
    assert found >= {"kernels.py", "kernels.json", "ir_pre_fusion.txt", "ir_post_fusion.txt", "cuda-90/kernels.py"}
    assert found >= {f"cuda-90/{kernel}.{stage}" for kernel in ("k0", "k1") for stage in (*TEXTS, "ptx", "cubin")}
    assert (tmp_path / "dump/cuda-90/k0.cubin").read_bytes()[:4] == b"\x7fELF"


def test_a_setting_names_other_gpus(tmp_path: Path) -> None:
    """As many as are wanted."""
    found = dumped(tmp_path / "dump", targets="hip:gfx942")
    assert found >= {f"hip-gfx942/k1.{stage}" for stage in (*TEXTS, "amdgcn", "hsaco")}
    assert not any(path.startswith("cuda") for path in found)


def test_what_is_no_gpu_is_refused() -> None:
    """With the setting's name."""
    with pytest.raises(OptionError, match=r"triton\.targets"):
        checked_settings("triton", Settings, {"targets": Setting("cuda", "options")})


def test_the_program_before_and_after_fusion(tmp_path: Path) -> None:
    """Tensors by line with their nodes; then kernels with their loops, and what they leave in memory."""
    dumped(tmp_path / "dump")
    before, after = ((tmp_path / "dump" / f"ir_{when}_fusion.txt").read_text() for when in ("pre", "post"))
    assert "i0: f32[32, 64]\n" in before
    assert "= sum(" in before
    assert "  # layer_norm" in before
    assert before.splitlines()[-1].startswith("return %")
    first, second = after.strip().split("\n\n")
    assert first.startswith("k0: loops over [32], reducing [64]\n")
    assert "rsqrt(" in first or "sqrt(" in first
    assert second.startswith("k1: product\n")
    assert "on the way out" in second
    assert "store " in second


def test_on_a_gpu_the_stages_are_those_that_were_launched(tmp_path: Path) -> None:
    """Each kind of arguments has a kernel of its own; nothing is compiled for it again."""
    cluster, inputs = norm_and_product()
    executable = create(Settings(interpret=True)).compile(cluster, ONE)
    made = [
        SimpleNamespace(
            metadata=SimpleNamespace(target=SimpleNamespace(backend="cuda", arch=80)),
            asm={"ptx": f"kind {kind}", "cubin": b"x"},
        )
        for kind in range(2)
    ]
    launcher = Launcher(None)
    launcher._handles = {(place,): (handle, ()) for place, handle in enumerate(made)}
    executable._module.k0 = launcher  # pyright: ignore[reportAttributeAccessIssue] - an executable of this plugin
    executable.dump(tmp_path)
    assert (tmp_path / "cuda-80/k0.ptx").read_text() == "kind 0"
    assert (tmp_path / "cuda-80/k0_1.ptx").read_text() == "kind 1"
    assert (tmp_path / "cuda-80/k0.cubin").read_bytes() == b"x"
    assert not (tmp_path / "cuda-90").exists()
    assert inputs


def test_the_debug_folder_of_a_model(tmp_path: Path) -> None:
    """Has all of it in the cluster's folder."""
    options = {
        "backends": ("triton",),
        "tune": "off",
        "isolate": False,
        "triton": {"interpret": True},
        "debug_dir": str(tmp_path),
    }
    compiled: Any = torch.compile(torch.nn.LayerNorm(16), backend="hub", options=options)
    with torch.no_grad():
        compiled(torch.randn(4, 16))
    assert [plan.clusters[0].backend for plan in hub.plans(compiled)] == ["triton"]
    assert list(tmp_path.rglob("cuda-90/k0.cubin"))
    assert list(tmp_path.rglob("ir_post_fusion.txt"))
