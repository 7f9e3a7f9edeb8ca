"""BladeDISC's compiler: the program it gets, its command line, its files, its failures. A stand-in plays it."""

from __future__ import annotations

import os
import re
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hub.cli.backends import print_backends
from hub.discovery import listing
from hub.errors import CompileError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.plugin.table import Support
from hub.testing.single import whole_cluster
from hub.toolkit.arguments import with_weights
from plugin_disc.backend import Disc
from plugin_disc.external import Constant, constants_in
from plugin_disc.hlo.text import as_stablehlo
from plugin_disc.mhlo import program
from plugin_disc.runtime import DiscExecutable, restore
from plugin_disc.settings import Settings
from tests.plugin_disc.programs import FIXED_SIZES, IMAGES, PROGRAMS, Wrapped, inputs_of

ONE = CompileSettings(threads=1)
STAND_IN = Path(__file__).with_name("stand_in.py")
INEXPRESSIBLE = {"swiglu", "group_norm_silu", "column_statistics", "running"}
"""What torch-mlir cannot make StableHLO of with symbolic sizes."""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the stand-in."""
    path = tmp_path_factory.mktemp("bladedisc") / "disc_compiler_main"
    path.write_text(f"#!{sys.executable} -IS\n{STAND_IN.read_text()}")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def layer() -> tuple[Cluster, Sequence[torch.Tensor]]:
    """Return softmax(linear(x)) with its weights."""
    torch.manual_seed(0)
    return whole_cluster(nn.Sequential(nn.Linear(40, 8), nn.Softmax(-1)), (torch.randn(3, 40),))


def parsed(text: str) -> Any:
    """Return the text as a verified StableHLO module."""
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo

    context = ir.Context()
    context.allow_unregistered_dialects = True  # for the attribute of the dialect `tf`
    _stablehlo.register_dialect(context)
    module = ir.Module.parse(as_stablehlo(text), context)
    assert module.operation.verify()
    return module


def interpreted(text: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what StableHLO's own interpreter computes of float32 tensors."""
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo

    module = parsed(text.replace('"arith.constant"', '"stablehlo.constant"'))  # the interpreter knows no other
    with module.context, ir.Location.unknown():  # pyright: ignore
        values = [ir.DenseElementsAttr.get(value.contiguous().numpy()) for value in inputs]
        return [torch.tensor(list(found)).view(*found.type.shape) for found in _stablehlo.eval_module(module, values)]


def is_running(pid: int) -> bool:
    """Return True while a process exists and has not ended; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- The program ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_parse_back(name: str) -> None:
    """What is printed is a program again, with every constant in full."""
    cluster, _ = whole_cluster(Wrapped(PROGRAMS[name]), inputs_of(name, 4, 16))
    text = program(cluster)
    assert "stablehlo" not in text
    assert "dense_resource" not in text
    parsed(text)


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - INEXPRESSIBLE - (set(FIXED_SIZES) - set(IMAGES))))
def test_symbolic_sizes_stay(name: str) -> None:
    """One program serves every size."""
    cluster, _ = whole_cluster(Wrapped(PROGRAMS[name]), inputs_of(name, 4, 16), dynamic=True)
    text = program(cluster)
    assert "tensor<?x" in text
    parsed(text)


def test_numbers_come_in_tensors() -> None:
    """A size that is an input is a tensor for BladeDISC, as every input is."""
    cluster, _ = whole_cluster(Wrapped(PROGRAMS["residual_norm"]), inputs_of("residual_norm", 4, 16), dynamic=True)
    text = program(cluster)
    assert '"tensor.extract"' in text
    assert "tensor<i64>" in text.partition("attributes")[0]


def test_the_program_computes_the_cluster(layer: tuple[Cluster, Sequence[torch.Tensor]]) -> None:
    """StableHLO's interpreter and eager agree; weights are the last arguments."""
    cluster, inputs = layer
    weights = [cluster.constants[name] for name in with_weights(cluster).weights]
    (found,) = interpreted(program(cluster), [*inputs, *weights])
    torch.testing.assert_close(found, cluster.module(*inputs)[0], rtol=1e-5, atol=1e-6)


def test_the_entry_is_declared(layer: tuple[Cluster, Sequence[torch.Tensor]]) -> None:
    """`main` names inputs, outputs and where they are."""
    text = program(layer[0])
    assert text.count("func.func @") == 1
    assert (
        'tf.entry_function = {inputs = "arg0,arg1,arg2", outputs = "out0", '
        'input_placements = "cpu,cpu,cpu", output_placements = "cpu"}' in text
    )


def test_what_torch_mlir_cannot_express_is_a_compile_error(capfd: pytest.CaptureFixture[str]) -> None:
    """Its message is passed on, and nothing is printed."""
    cluster, _ = whole_cluster(Wrapped(PROGRAMS["running"]), inputs_of("running", 4, 16), dynamic=True)
    with pytest.raises(CompileError, match="cumsum"):
        program(cluster)
    assert capfd.readouterr() == ("", "")


# --- The command ------------------------------------------------------------------------------------------------------


def test_the_command_line_is_bladediscs(
    compiler: str, layer: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path
) -> None:
    """Flags and variables are as TorchBlade gives them, and the log holds both streams."""
    own = Settings(
        compiler=compiler, enable_amp=True, cpu_fast_math_level=2, compile_for_multi_cuda_targets=True, debug_log=True
    )
    executable = Disc(own).compile(layer[0], ONE)
    executable.dump(tmp_path)
    log = (tmp_path / "external.log").read_text()
    assert "argv --mlir-elide-elementsattrs-if-larger=8 --multi-cc-support\n" in log
    assert "TAO_MLIR_ENABLE_AMP=true DISC_CPU_FAST_MATH_LEVEL=2 TF_CPP_VMODULE=disc_compiler=1\n" in log
    assert "to stderr" in log


def test_both_files_are_kept_and_our_code_runs(
    compiler: str, layer: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path
) -> None:
    """The pair is read, survives saving, and is in the debug folder; calls run DISC's own code."""
    cluster, inputs = layer
    executable = Disc(Settings(compiler=compiler)).compile(cluster, ONE)
    assert isinstance(executable, DiscExecutable)
    torch.testing.assert_close(executable(*inputs)[0], cluster.module(*inputs)[0])
    assert executable.origin.foreign is not None
    assert executable.origin.foreign.constants == (Constant("weight", is_host=True, data=struct.pack("<2f", 1.0, 2.0)),)
    assert "argv --mlir-elide-elementsattrs-if-larger=8\nTAO_MLIR_ENABLE_AMP=false" in executable.origin.foreign.log
    saved, dumped = tmp_path / "saved", tmp_path / "dumped"
    saved.mkdir()
    dumped.mkdir()
    executable.save(saved)
    restore(saved, cluster).dump(dumped)
    assert (dumped / "external.so").read_bytes().startswith(b"\x7fELF")
    assert constants_in((dumped / "external.so.pbtxt").read_bytes()) == executable.origin.foreign.constants
    assert (dumped / "cluster.mhlo.mlir").read_text() == program(cluster)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fails", "ended with status 3"),
        ("no library", "wrote no out.so"),
        ("no metadata", "wrote no out.so.pbtxt"),
        ("garbage library", "not a shared library"),
        ("cut off library", "cut off at byte 64"),
        ("garbage metadata", "magic number"),
        ("wrong count", "holds 1 constants and says 2"),
        ("cut off", "cannot be read"),
    ],
)
def test_failures_are_compile_errors(
    fault: str,
    message: str,
    compiler: str,
    layer: tuple[Cluster, Sequence[torch.Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message says what went wrong and where the log is, with its end; nothing else is left on disk."""
    logs, scratch = tmp_path / "logs", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("STAND_IN", fault)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with pytest.raises(CompileError, match=re.escape(message)) as failure:
        Disc(Settings(compiler=compiler, log_dir=str(logs))).compile(layer[0], ONE)
    (log,) = logs.iterdir()
    assert str(log) in failure.value.message
    assert "to stderr" in failure.value.message
    assert "argv" in log.read_text()
    assert failure.value.cluster == layer[0].name
    assert list(scratch.iterdir()) == []


def test_a_full_disk_hides_no_failure(
    compiler: str, layer: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is no space for the log, the message still says what failed and how the log ends; no part is left."""
    half = tmp_path / "half"
    half.touch()
    monkeypatch.setenv("STAND_IN", "fails")
    monkeypatch.setattr(tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), str(half)))
    with pytest.raises(CompileError, match=r"ended with status 3; the log is not kept \(.*No space left") as failure:
        Disc(Settings(compiler=compiler, log_dir=str(tmp_path))).compile(layer[0], ONE)
    assert "no lowering for mhlo.sort" in failure.value.message
    assert not half.exists()


def test_a_compiler_that_hangs_is_ended(
    compiler: str, layer: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit is a setting; what a script in its place has started ends with it."""
    monkeypatch.setenv("STAND_IN", "hangs")
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\n{compiler} "$@"\necho ended\n')
    script.chmod(0o755)
    with pytest.raises(CompileError, match=r"did not end within 3 s(.|\n)*to stderr") as failure:
        Disc(Settings(compiler=str(script), compiler_timeout_s=3.0, log_dir=str(tmp_path))).compile(layer[0], ONE)
    (process,) = re.findall(r"process (\d+)", failure.value.message)
    deadline = time.monotonic() + 30.0
    while is_running(int(process)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(int(process))


@pytest.mark.parametrize("content", [None, "no program"])
def test_a_compiler_that_cannot_be_run_is_named(
    content: str | None, layer: tuple[Cluster, Sequence[torch.Tensor]], tmp_path: Path
) -> None:
    """A missing program, and a file that the system refuses to run."""
    path = tmp_path / "compiler"
    if content is not None:
        path.write_text(content)
        path.chmod(0o755)
    with pytest.raises(CompileError, match=re.escape(str(path))):
        Disc(Settings(compiler=str(path))).compile(layer[0], ONE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "magic"),
        (struct.pack("<QQ", 0x1234567890ABCDEF, 1), "says 1"),
        (struct.pack("<QBQQ", 0x1234567890ABCDEF, 1, 1 << 63, 1), "expected"),
        (struct.pack("<QBQ", 0x1234567890ABCDEF, 7, 0), "a bool expected"),
        (
            struct.pack("<Q", 0x1234567890ABCDEF) + 2 * struct.pack("<BQcQ", 0, 1, b"k", 0) + struct.pack("<Q", 2),
            "same key",
        ),
    ],
)
def test_damaged_metadata_is_refused(data: bytes, message: str) -> None:
    """No length is believed that goes beyond the file."""
    with pytest.raises(ValueError, match=message):
        constants_in(data)


def test_metadata_without_constants() -> None:
    """A program may have none."""
    assert constants_in(struct.pack("<QQ", 0x1234567890ABCDEF, 0)) == ()


# --- What is said of it -----------------------------------------------------------------------------------------------


def test_the_probe_says_what_runs(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the user names the compiler, or has it on PATH, a message says that DISC's own code runs, and why."""
    verdict = Disc(Settings(compiler=compiler)).probe()
    assert verdict.accepted
    assert "DISC's own code" in verdict.reason
    assert "RAL" in verdict.reason
    monkeypatch.setenv("PATH", str(Path(compiler).parent), prepend=":")
    assert "is not called" in Disc(Settings()).probe().reason


def test_the_probe_refuses_a_compiler_that_fails(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cluster would fail with it."""
    monkeypatch.setenv("STAND_IN", "fails")
    verdict = Disc(Settings(compiler=compiler)).probe()
    assert not verdict.accepted
    assert "ended with status 3" in verdict.reason


def test_listings_show_what_a_probe_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`hub list-backends --probe` prints notes below its table."""

    def noted(name: str) -> listing.Probed:
        return listing.Probed(Support(accepted=True, reason=f"a note of {name}"))

    monkeypatch.setattr(listing, "probe", noted)
    print_backends(as_json=False, probe=True)
    assert "disc: a note of disc" in capsys.readouterr().out
