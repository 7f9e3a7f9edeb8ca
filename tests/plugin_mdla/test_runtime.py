"""The binding of the device's library, through a real dlopen of a stand-in."""

from __future__ import annotations

import ctypes
import gc
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hub.errors import CompileError, PluginLoadError, RunError
from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_mdla.backend import Mdla, create
from plugin_mdla.runtime import SIGNATURES, Board, Library
from plugin_mdla.settings import Settings, read_settings

ONE = CompileSettings(threads=1)


@pytest.fixture(autouse=True)
def _no_context_outlives_a_test(stand_in: ctypes.CDLL) -> Iterator[None]:
    yield
    if stand_in.stand_in_live():
        gc.collect()
    assert stand_in.stand_in_live() == 0


@pytest.fixture
def library(stand_in: ctypes.CDLL, library_path: Path) -> Library:
    return Library(str(library_path))


@pytest.fixture
def binary(library: Library, tmp_path: Path) -> Path:
    """Return a compiled program: relu of two by three numbers."""
    model = tmp_path / "model.onnx"
    model.write_bytes(b"Relu")
    board = Board(library)
    board.compile(model, tmp_path / "relu.bin", "2x3")
    board.close()
    return tmp_path / "relu.bin"


VALUES = np.array([[-1.0, 0.3, 2.0], [500.0, -500.0, 1 / 512]], np.float32)
RELU = np.array([[0.0, 77 / 256, 2.0], [32767 / 256, 0.0, 1 / 256]], np.float32)


def loaded(library: Library, binary: Path, timeout_s: float = 60.0) -> Board:
    board = Board(library, timeout_s=timeout_s)
    board.load(binary)
    return board


@pytest.mark.parametrize("function", ["ie_run", "ie_run_sw", "ie_run_thnets"])
def test_a_program_compiles_loads_and_runs(function: str, library: Library, binary: Path) -> None:
    """Shapes come back, inputs of any layout go in, results come out, and the context is freed."""
    board = loaded(library, binary)
    assert board.output_shapes == ((2, 3),)
    assert np.array_equal(board.run([VALUES], function=function)[0], RELU)
    assert np.array_equal(board.run([np.asfortranarray(VALUES)], function=function)[0], RELU)
    board.close()


def test_a_context_is_freed_exactly_once(stand_in: ctypes.CDLL, library: Library) -> None:
    """Closing twice frees once; a board that is let go of is freed by the garbage collector; a closed one says so."""
    board = Board(library)
    board.close()
    board.close()
    assert stand_in.stand_in_freed() == 1
    with pytest.raises(RunError, match="closed"):
        board.info("version")
    del board
    Board(library)
    gc.collect()
    assert (stand_in.stand_in_freed(), stand_in.stand_in_live()) == (2, 0)


@pytest.mark.parametrize(
    ("name", "value"), [("version", "2020.2"), ("isboard", True), ("nclusters", 4), ("memory", 1 << 33), ("clock", 250.0)]
)
def test_information_has_its_type(name: str, value: object, library: Library) -> None:
    """Text, bool, int, int64 and float come back as such; what the library does not know is None."""
    board = Board(library)
    assert board.info(name) == value
    assert type(board.info(name)) is type(value)
    assert board.info("unknown") is None
    board.close()


def test_two_inputs_are_in_flight(library: Library, binary: Path) -> None:
    """A third input would block; results come in order with their numbers, and a stream keeps them apart."""
    board = loaded(library, binary)
    assert [board.put([VALUES + step], step + 1) for step in range(3)] == [True, True, False]
    found = [result for _ in range(8) if (result := board.get()) is not None]
    assert [tag for _, tag in found] == [1, 2]
    results = list(board.stream([VALUES + step] for step in range(7)))
    assert len(results) == 7
    for step, (result,) in enumerate(results):
        assert np.array_equal(result, board.run([VALUES + step])[0])
    board.close()


FAULTS = {
    "create": (PluginLoadError, "ie_create"),
    "getinfo": (PluginLoadError, "ie_getinfo"),
    "init": (CompileError, "ie_init"),
    "compile": (CompileError, "ie_compile"),
    "compile_vfp": (CompileError, "ie_compile_vfp"),
    "setflag": (CompileError, "ie_setflag"),
    "run": (RunError, "ie_run returned -1"),
    "strange": (RunError, "ie_run returned -7"),
    "short": (RunError, "ie_run wrote 5 elements"),
    "run_sw": (RunError, "ie_run_sw"),
    "run_thnets": (RunError, "ie_run_thnets"),
    "putinput": (RunError, "ie_putinput"),
    "getresult": (RunError, "ie_getresult"),
    "never": (RunError, "ie_getresult returned no result within 0.1 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_failure_names_its_function(
    fault: str, stand_in: ctypes.CDLL, library: Library, binary: Path, tmp_path: Path
) -> None:
    """Each error code becomes the right exception, with the function in its text, and no context is lost."""
    stand_in.stand_in_fault(fault.encode())
    kind, text = FAULTS[fault]

    def everything() -> None:
        board = Board(library, [("varfp", "1")], timeout_s=0.1)
        try:
            board.compile(tmp_path / "model.onnx", tmp_path / "other.bin", "2x3", [VALUES])
            board.compile(tmp_path / "model.onnx", tmp_path / "other.bin", "2x3")
            board.load(binary)
            for function in ("ie_run", "ie_run_sw", "ie_run_thnets"):
                board.run([VALUES], function=function)
            list(board.stream([[VALUES]]))
        finally:
            board.close()

    with pytest.raises(kind, match=text):
        everything()
    assert stand_in.stand_in_live() == 0


def test_a_hanging_board_is_left_alone(stand_in: ctypes.CDLL, library_path: Path, binary: Path) -> None:
    """A call that does not come back is given up in time; later ones fail at once; its context is not freed under it."""
    code = (
        "import ctypes, numpy as np, sys; from plugin_mdla.runtime import *\n"
        f"c.CDLL({str(library_path)!r}).stand_in_fault(b'hang')\n"
        f"board = Board(Library({str(library_path)!r}), timeout_s=0.2)\n"
        f"board.load(Path({str(binary)!r}))\n"
        "for _ in range(2):\n"
        "    try: board.run([np.zeros((2, 3), np.float32)])\n"
        "    except RunError as error: print(error.message)\n"
        "board.close(); sys.stdout.flush(); __import__('os')._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25, check=True)
    assert done.stdout.count("ie_run did not answer within 0.2 s") == 2


def test_a_board_that_answers_too_late_writes_to_living_memory(
    stand_in: ctypes.CDLL, library_path: Path, tmp_path: Path
) -> None:
    """The result of a call that was given up is written when it comes: its memory, a mapping of its own, is there."""
    binary = tmp_path / "large.bin"
    binary.write_text("MDLA x 1024x1024")
    code = (
        "import gc, time, numpy as np; from plugin_mdla.runtime import *\n"
        f"c.CDLL({str(library_path)!r}).stand_in_fault(b'nap')\n"
        f"board = Board(Library({str(library_path)!r}), timeout_s=0.1)\n"
        f"board.load(Path({str(binary)!r}))\n"
        "try: board.run([np.zeros((1024, 1024), np.float32)])\n"
        "except RunError as error: print(error.message)\n"
        "gc.collect(); time.sleep(2); print('alive', flush=True); __import__('os')._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stdout.split("\n")[1:]) == (0, ["alive", ""]), done.stdout + done.stderr


@pytest.mark.parametrize("version", ["2018.9", "new", ""])
def test_another_version_is_refused(version: str, stand_in: ctypes.CDLL, library: Library) -> None:
    """A version that is too old or unreadable raises; the process lives, and the context is freed."""
    stand_in.stand_in_version(version.encode())
    with pytest.raises(PluginLoadError, match=r"of version|2019\.1 or later"):
        Board(library)
    assert stand_in.stand_in_live() == 0


def test_a_library_that_is_missing_or_another_one_is_refused(tmp_path: Path) -> None:
    """The message names the file, and what is lacking."""
    with pytest.raises(PluginLoadError, match="cannot load"):
        Library(str(tmp_path / "none.so"))
    source, other = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("void *ie_create(void) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", other, source], check=True)
    with pytest.raises(PluginLoadError, match=f"lacks {', '.join(list(SIGNATURES)[1:])}"):
        Library(str(other))


def test_wrong_calls_raise_before_the_library_sees_them(library: Library, binary: Path) -> None:
    """Running without a program, with too few inputs or with other sizes is an error and no crash."""
    board = Board(library)
    with pytest.raises(RunError, match="no program"):
        board.run([VALUES])
    board.load(binary)
    for wrong in ([], [VALUES, VALUES], [VALUES[:1]]):
        with pytest.raises(RunError, match="ie_run returned -1"):
            board.run(wrong)
    board.close()


@pytest.mark.slow
def test_ten_thousand_cycles_leave_nothing(stand_in: ctypes.CDLL, library: Library, tmp_path: Path) -> None:
    """Creating, compiling, running and freeing keeps no context and no memory."""
    model = tmp_path / "model.onnx"
    model.write_bytes(b"Relu")

    def cycle() -> None:
        board = Board(library)
        board.compile(model, tmp_path / "again.bin", "2x3")
        board.load(tmp_path / "again.bin")
        board.run([VALUES])
        board.close()

    for _ in range(500):
        cycle()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(9_500):
        cycle()
    assert stand_in.stand_in_live() == 0
    assert stand_in.stand_in_freed() == 10_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB: 0.4 bytes a cycle


# --- The backend on it ------------------------------------------------------------------------------------------------


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


@pytest.mark.parametrize("form", ["auto", "q8.8"])
def test_the_backend_runs_on_the_board(form: str, stand_in: ctypes.CDLL, library_path: Path, tmp_path: Path) -> None:
    """A cluster of two inputs compiles, with the flags set and, where ranges count, calibrated; it is saved and loaded."""
    cluster, inputs = whole_cluster(Sum(), (torch.randn(2, 3), torch.randn(2, 3)))
    settings = Settings(library=str(library_path), format=form, clusters=4, boards=2, flags=(("mvbatch", "1"),))
    backend = Mdla(settings)
    executable = backend.compile(cluster, ONE)
    (result,) = executable(*inputs)
    assert (result - (inputs[0] + inputs[1])).abs().max() <= 3 / 512
    flags = stand_in.stand_in_flags().decode().split()
    assert {"nfpgas=2", "nclusters=4", "mvbatch=1"} <= set(flags)
    assert ("calibrated" in flags) == (form == "auto") == ("varfp=1" in flags)
    executable.save(tmp_path)
    (again,) = backend.load(tmp_path, cluster, ONE)(*inputs)
    assert torch.equal(result, again)
    (tmp_path / "device.bin").unlink()
    with pytest.raises(CompileError, match=r"lacks device\.bin"):
        backend.load(tmp_path, cluster, ONE)


def test_other_shapes_than_lowered_are_refused(stand_in: ctypes.CDLL, library_path: Path) -> None:
    """A board whose program gives other shapes than the cluster has is not used, and its context is freed."""
    stand_in.stand_in_fault(b"shapes")
    cluster, _ = whole_cluster(Sum(), (torch.randn(2, 3), torch.randn(2, 3)))
    with pytest.raises(CompileError, match="expected"):
        Mdla(Settings(library=str(library_path), format="q8.8")).compile(cluster, ONE)
    assert stand_in.stand_in_live() == 0


def test_a_board_that_cannot_compile_is_at_fault_and_not_the_values(stand_in: ctypes.CDLL, library_path: Path) -> None:
    """Where the first call has to show ranges, it also compiles: what fails then ends the board's use."""
    cluster, inputs = whole_cluster(Sum(), (torch.randn(2, 3), torch.randn(2, 3)))
    executable = Mdla(Settings(library=str(library_path))).compile(cluster, ONE)
    stand_in.stand_in_fault(b"compile_vfp")
    with pytest.raises(CompileError, match="ie_compile_vfp failed"):
        executable(*inputs)


def test_the_library_comes_from_the_environment(
    stand_in: ctypes.CDLL, library_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """HUB_MDLA_LIBRARY names it, else the loader's path; a wrong one is an error that names it."""
    monkeypatch.setenv("HUB_MDLA_LIBRARY", str(library_path))
    assert create(read_settings()).probe().accepted
    monkeypatch.setenv("HUB_MDLA_LIBRARY", str(tmp_path / "gone.so"))
    with pytest.raises(PluginLoadError, match="gone"):
        create(read_settings())
    monkeypatch.delenv("HUB_MDLA_LIBRARY")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library_path.parent))
    assert create(read_settings()).probe().accepted
