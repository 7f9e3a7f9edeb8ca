"""Workers: whatever happens in one, the asking process gets an answer or a named error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub.errors import LONGEST_TEXT, AccuracyError, CompileError
from hub.workers.channel import Worker

SOURCE = """
import ctypes, faulthandler, os, time
from hub.workers.channel import serve
from hub.errors import AccuracyError

def echo(value): return value
def crash(): ctypes.string_at(0)
def leave(): os._exit(3)
def abort():
    faulthandler.enable()
    os.write(2, b"LLVM ERROR: no room\\n")
    os.abort()
def hang(): time.sleep(1000)
def chatter():
    print("x" * 1_000_000)
    return "done"
def odd(): raise ZeroDivisionError("odd")
def lengthy(): raise ZeroDivisionError("x" * 50_000_000 + "the end")
def ours(): raise AccuracyError("off", backend="b", cluster="c0", node="n", hint="h")

if __name__ == "__main__":
    serve({f.__name__: f for f in (echo, crash, leave, abort, hang, chatter, odd, lengthy, ours)})
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    (tmp_path / "hub_test_worker.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Worker("hub_test_worker", tmp_path / "log")
    yield made
    made.kill()


def test_answers_come_in_order(worker: Worker) -> None:
    """Requests are answered one after the other."""
    worker.post("echo", value=1)
    worker.post("echo", value=[2, "two"])
    assert worker.result(20) == 1
    assert worker.result(20) == [2, "two"]


@pytest.mark.parametrize(("command", "message"), [("crash", "SIGSEGV"), ("leave", "exit status 3")])
def test_a_worker_that_dies_is_named(worker: Worker, command: str, message: str) -> None:
    """A crash costs the request, and says how the process ended."""
    with pytest.raises(CompileError, match=message):
        worker.ask(command, 20)
    with pytest.raises(CompileError):
        worker.ask("echo", 20, value=1)


def test_what_a_library_said_before_it_aborted_is_told(worker: Worker) -> None:
    """Not the list of threads that Python writes behind it."""
    with pytest.raises(CompileError, match="SIGABRT") as raised:
        worker.ask("abort", 20)
    assert raised.value.message.splitlines()[1:] == ["  LLVM ERROR: no room", "  Fatal Python error: Aborted"]


def test_a_hang_ends_at_the_limit(worker: Worker) -> None:
    """A request that takes too long ends the worker and raises."""
    assert worker.ask("echo", 20, value=1) == 1
    with pytest.raises(CompileError, match="no answer within 0 s"):
        worker.ask("hang", 0.2)


def test_output_goes_to_the_log(worker: Worker) -> None:
    """A chatty compiler disturbs neither the terminal nor the messages."""
    assert worker.ask("chatter", 20) == "done"
    assert len(worker.log.read_text()) > 1_000_000


def test_foreign_errors_travel_by_name(worker: Worker) -> None:
    """An error that the parent may not be able to import arrives as text in a CompileError."""
    with pytest.raises(CompileError, match="ZeroDivisionError: odd"):
        worker.ask("odd", 20)


def test_long_errors_travel_without_their_middle(worker: Worker) -> None:
    """What a plugin's exception says goes into plans and the database: some kilobytes of it."""
    with pytest.raises(CompileError, match=r"ZeroDivisionError: x+ \[\.\.\. \d+ characters \.\.\.\] x+the end") as caught:
        worker.ask("lengthy", 20)
    assert len(caught.value.message) <= LONGEST_TEXT


def test_the_hubs_errors_travel_whole(worker: Worker) -> None:
    """An error of the hub's arrives with its type and facts."""
    with pytest.raises(AccuracyError) as caught:
        worker.ask("ours", 20)
    assert (caught.value.backend, caught.value.cluster, caught.value.node, caught.value.hint) == ("b", "c0", "n", "h")


def test_a_script_without_main_guard_is_not_run_again(tmp_path: Path) -> None:
    """Workers do not import the user's main module."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib, sys\n"
        "print('ran')\n"
        "from hub.workers.channel import Worker\n"
        "worker = Worker('hub.workers.worker', pathlib.Path(sys.argv[1]))\n"
        "try:\n    worker.ask('time_plan', 60, at_least_s=0)\nexcept Exception as error:\n    print(type(error).__name__)\n"
        "worker.kill()\n"
    )
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "log")], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ran", "CompileError"]
    assert (tmp_path / "log").exists()
