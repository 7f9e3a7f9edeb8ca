"""Debug folders: what is written for people, and clusters that are run again from them."""

from __future__ import annotations

import pkgutil
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hub.errors import RunError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.single import whole_cluster
from plugin_disc import assembly, recording, stages
from plugin_disc.__main__ import app
from plugin_disc.assembly import hot_loop
from plugin_disc.backend import create
from plugin_disc.replay import replay
from plugin_disc.runtime import CALL_FILE, LIBRARY_FILE, LOG_FILE
from tests.plugin_disc.programs import PROGRAMS, Wrapped, inputs_of

ONE = CompileSettings(threads=1)


@pytest.fixture(scope="module")
def norm() -> tuple[Cluster, Sequence[Any]]:
    """Return a layer with weights of its own, of symbolic size: norm(x) * 2."""
    torch.manual_seed(0)
    layer = torch.nn.LayerNorm(24, elementwise_affine=True)
    torch.nn.init.normal_(layer.weight)
    model = Wrapped(lambda x: layer(x) * 2.0)
    model.layer = layer
    return whole_cluster(model, (torch.randn(5, 24),), dynamic=True)


def dumped(cluster: Cluster, inputs: Sequence[Any] | None, folder: Path) -> Path:
    """Return the debug folder of a cluster, after one call if there are inputs."""
    executable = create().compile(cluster, ONE)
    executable.dump(folder)
    if inputs is not None:
        executable(*inputs)
    return folder


def test_a_dump_shows_every_stage(norm: tuple[Cluster, Sequence[Any]], tmp_path: Path) -> None:
    """torch-mlir's dialects, DISC's own loops, LLVM IR, instructions, the loop that matters, and the log."""
    dumped(*norm, tmp_path)
    words = {
        "torch": "torch.aten.",
        "stablehlo": "stablehlo.multiply",
        "linalg": "linalg.generic",
        "mhlo": "mhlo.multiply",
    }
    for stage, word in words.items():
        assert word in (tmp_path / f"cluster.{stage}.mlir").read_text()
    assert "is not there" not in (tmp_path / LOG_FILE).read_text()
    assert "llvm.func @k0" in (tmp_path / "loops.mlir").read_text()
    assert "define void @k0" in (tmp_path / "cluster.ll").read_text()
    if shutil.which("objdump") is None:
        assert "objdump is not installed" in (tmp_path / "cluster.s").read_text()
        return
    assert "<disc_main>:" in (tmp_path / "cluster.s").read_text()
    assert "mm" in (tmp_path / "hot_loop.s").read_text()


def test_what_torch_mlir_cannot_express_is_in_the_log(tmp_path: Path) -> None:
    """Running totals of symbolic length have no StableHLO: the log says so, and the rest is there."""
    cluster, inputs = whole_cluster(Wrapped(lambda x: x.cumsum(-1)), (torch.randn(5, 24),), dynamic=True)
    dumped(cluster, inputs, tmp_path)
    assert "cluster.stablehlo.mlir is not there: torch-mlir cannot express it" in (tmp_path / LOG_FILE).read_text()
    assert not (tmp_path / "cluster.stablehlo.mlir").exists()
    assert "torch.aten.cumsum" in (tmp_path / "cluster.torch.mlir").read_text()
    assert replay(tmp_path, is_compiled=False).problem == ""


def test_where_torch_mlir_aborts_a_dump_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in a process of its own: the next stage gets another one."""
    (tmp_path / "dying.py").write_text(
        "import os\nfrom hub.workers.channel import serve\n"
        "serve({'write': lambda folder, stage: os.abort() if stage == 'linalg' else None})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    process = stages.Process("dying")
    try:
        assert "killed by SIGABRT" in str(process.write(tmp_path, "linalg"))
        assert process.write(tmp_path, "mhlo") is None
    finally:
        process.close()


def test_without_objdump_a_dump_says_so(
    norm: tuple[Cluster, Sequence[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the folder is written all the same."""
    monkeypatch.setattr(assembly, "DISASSEMBLER", "no-such-objdump")
    dumped(*norm, tmp_path)
    assert (tmp_path / "cluster.s").read_text() == "# no-such-objdump is not installed\n"
    assert not (tmp_path / "hot_loop.s").exists()
    assert replay(tmp_path, is_compiled=False).problem == ""


def test_the_hot_loop_is_innermost() -> None:
    """Of loops without a loop within, the one with the most vector instructions."""
    text = """
0000000000000000 <k0>:
   0:\tmov    %rax,%rbx
   4:\tvaddps %ymm0,%ymm1,%ymm2
   8:\tvmulps %ymm0,%ymm1,%ymm2
   c:\tjne    4 <k0+0x4>
  10:\tadd    $0x1,%rax
  14:\tjmp    10 <k0+0x10>
  18:\tjl     0 <k0>
"""
    assert hot_loop(text).splitlines()[0] == "<k0>:"
    assert [line.split()[0] for line in hot_loop(text).splitlines()[1:]] == ["4:", "8:", "c:"]
    assert hot_loop("0000000000000000 <k0>:\n   0:\tret\n") == ""


def test_only_the_next_call_is_recorded(norm: tuple[Cluster, Sequence[Any]], tmp_path: Path) -> None:
    """What a later call gets is not written; the recorded values are those of the call."""
    cluster, inputs = norm
    executable = create().compile(cluster, ONE)
    executable.dump(tmp_path)
    assert recording.read_inputs(tmp_path) is None
    executable(*inputs)
    executable(*(torch.zeros_like(value) if isinstance(value, torch.Tensor) else value for value in inputs))
    recorded = recording.read_inputs(tmp_path)
    assert recorded is not None
    for value, wanted in zip(recorded, inputs, strict=True):
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(wanted))


def test_a_recording_that_fails_costs_nothing(
    norm: tuple[Cluster, Sequence[Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The call runs; the reason is logged."""
    cluster, inputs = norm
    executable = create().compile(cluster, ONE)
    folder = tmp_path / "gone"
    folder.mkdir()
    executable.dump(folder)
    shutil.rmtree(folder)
    torch.testing.assert_close(executable(*inputs)[0], cluster.module(*inputs)[0])
    assert "not recorded" in caplog.text


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_cluster_runs_again(is_compiled: bool, norm: tuple[Cluster, Sequence[Any]], tmp_path: Path) -> None:
    """From its folder alone: weights, symbolic sizes and inputs; by the saved code or compiled anew."""
    found = replay(dumped(*norm, tmp_path), is_compiled=is_compiled)
    assert found.problem == ""
    assert ("newly compiled code" if is_compiled else "saved machine code") in found.lines[0]
    assert "recorded inputs" in found.lines[0]
    assert "float32[5, 24]" in found.lines[1]


@pytest.mark.parametrize("name", ["embedding_norm", "masked_softmax", "heads"])
def test_inputs_are_made_up_where_none_were_recorded(name: str, tmp_path: Path) -> None:
    """A folder of a cluster that was never called can be replayed, and the output says so."""
    cluster, _ = whole_cluster(Wrapped(PROGRAMS[name]), inputs_of(name, 5, 16))
    found = replay(dumped(cluster, None, tmp_path), is_compiled=False)
    assert found.problem == ""
    assert "made-up inputs" in found.lines[0]


def test_wrong_code_is_noticed(tmp_path: Path) -> None:
    """Replaying compares: machine code of another program differs, and the difference is printed."""
    value = torch.ones(5, 24)
    doubled, tripled = (whole_cluster(Wrapped(lambda x, by=by: x * by), (value,))[0] for by in (2.0, 3.0))
    recording.write_cluster(tmp_path, tripled)
    recording.write_inputs(tmp_path, (value,))
    create().compile(doubled, ONE).save(tmp_path)
    found = CliRunner().invoke(app, ["replay", str(tmp_path)])
    assert found.exit_code == 1
    assert "120 of 120 differ, by at most 1, 0.33 of the largest" in found.stdout


@pytest.mark.parametrize("content", [None, b"garbage"])
def test_a_folder_without_recording_is_an_error(content: bytes | None, tmp_path: Path) -> None:
    """It says what folder is expected."""
    if content is not None:
        (tmp_path / recording.CLUSTER_FILE).write_bytes(content)
    with pytest.raises(RunError, match="holds no recorded cluster") as failure:
        replay(tmp_path, is_compiled=False)
    assert failure.value.hint is not None


def test_commands_are_declared() -> None:
    """`disc-replay` is a program and `hub disc` a command of the hub."""
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    commands = (declared["scripts"]["disc-replay"], declared["entry-points"]["hub.commands"]["disc"])
    assert [callable(pkgutil.resolve_name(command)) for command in commands] == [True, True]


def test_debug_folders_of_the_hub_can_be_replayed(tmp_path: Path) -> None:
    """`debug_dir` records real calls of a model; another process replays them by `disc-replay`."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Softmax(-1)).eval()
    options = {"backends": ["disc"], "tune": "off", "debug_dir": str(tmp_path)}
    compiled = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.randn(6, 32))
    (folder,) = {path.parent for path in tmp_path.rglob(recording.CLUSTER_FILE)}
    assert (folder / LIBRARY_FILE).is_file()
    assert (folder / CALL_FILE).is_file()
    command = [sys.executable, "-c", "from plugin_disc.__main__ import alone; alone()", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "recorded inputs" in done.stdout
    assert "as exact as eager" in done.stdout
