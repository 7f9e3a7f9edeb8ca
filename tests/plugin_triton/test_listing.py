"""`hub triton-ir`: a model's kernels with all their stages, what each one needs, and what runs in eager."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from plugin_triton.__main__ import app

MODEL = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 32), nn.LayerNorm(32)

    def forward(self, x):
        return self.norm(torch.nn.functional.gelu(self.linear(x)))

def small(batch=5):
    return Small(), (torch.ones(batch, 16),)

def sorting():
    return nn.Sequential(nn.Tanh(), Sorted()), (torch.ones(3, 7),)

class Sorted(nn.Module):
    def forward(self, x):
        return x.sort(-1).values

def broken():
    raise ValueError("no weights")
"""
STAGES = {
    "cuda:90": ("source", "ttir", "ttgir", "llir", "ptx", "cubin"),
    "hip:gfx942": ("source", "ttir", "ttgir", "llir", "amdgcn", "hsaco"),
}
HEADERS = ["cluster", "kernel", "registers", "spilled", "shared", "warps", "nodes"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the command in a folder with a file of models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    (tmp_path / "models.py").write_text(MODEL)
    return tmp_path


def triton_ir(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("target", STAGES)
def test_kernels_are_listed_and_written_stage_by_stage(target: str, folder: Path) -> None:
    """A row each, with registers, spilled bytes and shared memory; files under the names of cluster and kernel."""
    found = triton_ir("models.py:small", "--target", target, "--out", "made/here")
    assert found.exit_code == 0, found.output
    header, *rows, last = found.stdout.splitlines()
    assert header.split() == HEADERS
    assert [row.split()[:2] for row in rows] == [["c0", f"k{place}"] for place in range(len(rows))]
    assert rows
    for row in rows:
        registers, spilled, shared, warps = map(int, row.split()[2:6])
        assert 0 < registers <= 512
        assert (spilled, shared >= 0, warps in (1, 2, 4, 8, 16)) == (0, True, True)
    assert "linear" in found.stdout
    assert "layer_norm" in found.stdout
    plural = "" if len(rows) == 1 else "s"
    assert last == f"{len(rows)} kernel{plural} in made/here, 0 spilling; 0 nodes in eager"
    wanted = {f"k{place}.{stage}" for place in range(len(rows)) for stage in STAGES[target]}
    assert {path.name for path in (folder / "made/here/c0").iterdir()} == wanted | {"kernels.py"}
    assert all(path.stat().st_size for path in (folder / "made/here/c0").iterdir())
    assert "@triton.jit" in (folder / "made/here/c0/kernels.py").read_text()


def test_nodes_that_triton_does_not_take_are_told() -> None:
    """The listing has the reason, next to kernels for the others."""
    found = triton_ir("models.py:sorting")
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[1].split()[-1] == "tanh"
    assert "1 kernel in triton-ir, 0 spilling; " in lines[2]
    assert not lines[2].endswith("; 0 nodes in eager")
    assert [line for line in lines if line.startswith("not taken: aten.sort.")]


def test_the_batch_reaches_the_model(folder: Path) -> None:
    """As in the hub's other commands."""
    assert triton_ir("models.py:small", "--batch", "3").exit_code == 0
    assert "3" in (folder / "triton-ir/c0/kernels.py").read_text()
    assert "takes no argument `batch`" in triton_ir("models.py:sorting", "--batch", "3").stderr


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (("models.py:small", "--target", "rocm:gfx942"), "'rocm:gfx942' is not a target", 2),
        (("models.py:small", "--target", "cuda:sm_90"), "a compute capability from 70 on (cuda:90)", 2),
        (("models.py:small", "--target", "xpu:pvc"), "the wheel triton-xpu", 2),
        (("models.py:small", "--target", "hip:gfx000"), "k0 cannot be compiled for hip:gfx000", 1),
        (("bret",), "no built-in model is named 'bret'; did you mean 'bert'?", 2),
        (("models.py:smal",), "models.py has no function 'smal'; did you mean 'small'?", 2),
        (
            ("models.py:broken",),
            "the factory of 'models.py:broken' failed (at models.py:24 in broken): ValueError: no weights",
            1,
        ),
        (("absent.py:small",), "there is no file absent.py", 2),
        (("models.py:small", "--out", "models.py"), "models.py cannot be written", 2),
    ],
)
def test_mistakes_are_one_message(arguments: tuple[str, ...], message: str, status: int) -> None:
    """No traceback, and nothing on standard output."""
    found = triton_ir(*arguments)
    assert (found.exit_code, found.stdout) == (status, "")
    assert message in found.stderr
    assert found.stderr.startswith("error: ")


def test_a_wrong_target_is_told_before_a_model_is_made(folder: Path) -> None:
    """Which may take minutes."""
    (folder / "models.py").write_text("raise SystemExit('made')")
    assert "is not a target" in triton_ir("models.py:small", "--target", "cuda").stderr
