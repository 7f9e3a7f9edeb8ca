"""The thread count: set for a while or for good, without telling MKL what it was not told before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from hub.process.modes import modes, set_modes
from hub.process.threads import is_told, set_threads, tell, untell, using_threads

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch has no MKL")


@pytest.fixture(autouse=True)
def untold() -> Iterator[None]:
    """Begin with an MKL that was told nothing, and restore what was."""
    before = modes()
    count = torch.get_num_threads()
    untell()
    yield
    set_modes(before)
    set_threads(count)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_count_is_set_without_telling(count: int) -> None:
    """PyTorch has it, in this thread, and MKL still follows OpenMP."""
    set_threads(count)
    assert torch.get_num_threads() == count
    assert not is_told()


@pytest.mark.parametrize("is_already_told", [False, True])
def test_a_count_for_a_while(is_already_told: bool) -> None:
    """Afterwards all is as it was, whether or not MKL had been told."""
    set_threads(2)
    if is_already_told:
        tell()
    with using_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    assert is_told() == is_already_told


def test_workers_are_told_what_this_process_was() -> None:
    """The settings that go to workers include it: products take longer, so timings must know."""
    without = modes()
    tell()
    told = modes()
    assert is_told()
    set_modes(without)
    assert not is_told()
    set_modes(told)
    assert is_told()
    assert without.parts != told.parts
    assert without.numeric_parts == told.numeric_parts


SCRIPT = """
import threading
import torch
import hub
from hub.process.threads import is_told
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1)).eval()
x = torch.randn(4, 8)
for threads in (1, 2):
    torch.compiler.reset()
    options = {"tune": "fast", "backends": ("inductor",), "start": "wait", "isolate": ISOLATE, "threads": threads}
    run = torch.compile(model, backend="hub", options=options)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
    hub.wait(run)
thread = threading.Thread(target=lambda: model(x))  # a thread's first use of PyTorch repeats what was set for good
thread.start()
thread.join()
print("told" if is_told() else "untold")
"""


@pytest.mark.parametrize("isolate", [True, False])
def test_planning_tells_nothing(isolate: bool) -> None:
    """Measuring the machine, compiling and calling with another thread count leave the user's process as it was."""
    script = SCRIPT.replace("ISOLATE", str(isolate))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["untold"]
