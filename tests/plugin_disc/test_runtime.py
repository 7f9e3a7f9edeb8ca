"""Calls, files and failures of compiled clusters."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from hub.cache.artifacts import save_artifact
from hub.errors import CompileError, InputRefused, RunError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.single import whole_cluster
from hub.toolkit.rules import RULES
from plugin_disc import compiler, runtime
from plugin_disc.backend import create
from plugin_disc.runtime import CALL_FILE, LIBRARY_FILE, LOG_FILE, DiscExecutable, build, restore
from plugin_disc.settings import Settings
from plugin_disc.support import OPERATORS
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)


@pytest.fixture(scope="module")
def scaled() -> tuple[Cluster, Sequence[object]]:
    """Return x * weight + 1 over 40 elements."""
    layer = torch.nn.Linear(40, 1)
    model = Wrapped(lambda x: x * layer.weight + 1.0)
    model.layer = layer
    return whole_cluster(model, (torch.randn(3, 40),))


def test_every_row_has_a_rule_and_every_rule_a_row() -> None:
    """What is declared can be lowered, and what can be lowered is declared."""
    assert set(OPERATORS.rows) == set(RULES)


def test_the_probe_passes() -> None:
    """The backend works on this machine."""
    assert create().probe().accepted


def test_an_index_out_of_range_is_refused() -> None:
    """No memory outside the table is read; eager may then raise its own error."""
    table = torch.randn(4, 20)
    cluster, inputs = whole_cluster(Wrapped(lambda at, table: table[at] * 2.0), (torch.tensor([0, 3]), table))
    executable = create().compile(cluster, ONE)

    def call(*places: int) -> torch.Tensor:
        at = torch.tensor(places)
        return executable(*(at if value.dtype is torch.int64 else table for value in inputs))[0]

    assert torch.equal(call(-4, 3), table[[0, 3]] * 2.0)
    for places in ((0, 4), (-5, 0)):
        with pytest.raises(InputRefused, match="out of range"):
            call(*places)
    assert torch.equal(call(1, 2), table[[1, 2]] * 2.0)


def test_an_index_into_nothing_is_refused() -> None:
    """A table that turns out to be empty at the call is not read."""
    model = Wrapped(lambda table, at: torch.nn.functional.embedding(at, table) + 1.0)
    cluster, inputs = whole_cluster(model, (torch.randn(6, 40), torch.tensor([1, 2, 3])), dynamic=True)
    executable = create().compile(cluster, ONE)
    table = next(place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.dim() == 2)
    empty = [
        torch.empty(0, 40) if place == table else 0 if isinstance(value, int) and value == 6 else value
        for place, value in enumerate(inputs)
    ]
    with pytest.raises(InputRefused, match="out of range"):
        executable(*empty)


def test_another_shape_or_dtype_is_an_error(scaled: tuple[Cluster, Sequence[torch.Tensor]]) -> None:
    """Memory is never read by sizes that it does not have."""
    cluster, _ = scaled
    executable = create().compile(cluster, ONE)
    for wrong in (torch.randn(3, 41), torch.randn(3, 40, dtype=torch.float64)):
        with pytest.raises(RunError, match="was compiled"):
            executable(wrong)


def test_a_saved_cluster_loads(scaled: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path) -> None:
    """Saved machine code gives the same bits, with the weights of the cluster that it is loaded for."""
    cluster, inputs = scaled
    executable = build(cluster, ONE)
    executable.save(tmp_path)
    assert torch.equal(restore(tmp_path, cluster)(*inputs)[0], executable(*inputs)[0])


@pytest.mark.parametrize("damage", ["no library", "no facts", "another byte", "other registers"])
def test_damaged_files_are_refused(
    damage: str, scaled: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code is loaded only if every byte is as it was saved, on a processor with the same registers."""
    cluster, _ = scaled
    build(cluster, ONE).save(tmp_path)
    if damage == "no library":
        (tmp_path / LIBRARY_FILE).unlink()
    elif damage == "no facts":
        (tmp_path / CALL_FILE).write_text("{")
    elif damage == "another byte":
        content = bytearray((tmp_path / LIBRARY_FILE).read_bytes())
        content[-1] ^= 1
        (tmp_path / LIBRARY_FILE).write_bytes(content)
    else:
        monkeypatch.setattr(runtime, "lanes", lambda: 4)
    with pytest.raises(CompileError):
        restore(tmp_path, cluster)


def test_without_cc_the_code_stays_in_the_process(
    scaled: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no cc, a cluster runs all the same, and says that it cannot be saved."""
    cluster, inputs = scaled
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    executable = build(cluster, ONE)
    assert torch.equal(executable(*inputs)[0], cluster.module(*inputs)[0])
    with pytest.raises(CompileError, match="no cc"):
        executable.save(tmp_path)


@pytest.mark.parametrize("linker", ["/bin/false", "/dev/null"])
def test_a_failing_cc_is_a_compile_error(
    linker: str, scaled: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linker that fails, or cannot be run, is named."""
    cluster, _ = scaled
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(compiler.shutil, "which", lambda name: linker)
    with pytest.raises(CompileError, match=linker):
        create().compile(cluster, ONE)


def test_what_cc_says_is_kept_and_shown(
    scaled: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message ends with the end of the log, of both streams, and names the file that holds all of it."""
    script = tmp_path / "cc"
    script.write_text("#!/bin/sh\necho linking\necho 'final link failed: No space left on device' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    with pytest.raises(CompileError, match="ended with status 1") as failure:
        create(Settings(log_dir=str(tmp_path / "logs"))).compile(scaled[0], ONE)
    (log,) = (tmp_path / "logs").iterdir()
    assert str(log) in failure.value.message
    assert "linking\nfinal link failed: No space left on device\nstatus 1" in failure.value.message
    assert "passes: builtin.module(" in log.read_text()


def test_text_that_is_no_program_is_a_compile_error(tmp_path: Path) -> None:
    """MLIR's own message is passed on, and is in the log."""
    with pytest.raises(CompileError, match="MLIR refused"):
        compiler.compile_text("llvm.func @k0(", str(tmp_path))
    (log,) = tmp_path.iterdir()
    assert "MLIRError" in log.read_text()


def test_a_disk_without_room_for_scratch_is_a_compile_error(
    scaled: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the object file nor a log can be written: the message says both."""

    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", lambda *_: full())
    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(CompileError, match=r"no temporary folder(.|\n)*not kept \(.*No space left on device"):
        create(Settings(log_dir=str(tmp_path))).compile(scaled[0], ONE)


def test_a_disk_without_room_for_an_executable_leaves_nothing_in_the_cache(
    scaled: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path
) -> None:
    """The problem is reported, and the cache is unchanged."""
    executable = create().compile(scaled[0], ONE)

    def write(partial: Path) -> None:
        (partial / LIBRARY_FILE).symlink_to("/dev/full")
        executable.save(partial)

    saved = save_artifact(tmp_path / "root" / "artifacts" / "disc" / "key", write)
    assert not saved.is_done
    assert "No space left on device" in saved.problem
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file()] == []


def test_dumps_show_the_call_and_the_loops(scaled: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path) -> None:
    """A debug folder holds what was generated."""
    cluster, _ = scaled
    executable = create().compile(cluster, ONE)
    assert isinstance(executable, DiscExecutable)
    executable.dump(tmp_path)
    assert "def run(i0)" in (tmp_path / "run.py").read_text()
    assert "llvm.func @k0" in (tmp_path / "loops.mlir").read_text()
    assert (tmp_path / LIBRARY_FILE).stat().st_size
    assert "cc -shared" in (tmp_path / LOG_FILE).read_text()
    assert "status 0" in (tmp_path / LOG_FILE).read_text()
