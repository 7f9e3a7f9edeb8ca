"""Limits of workers: what a process takes beyond them ends it, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hub.errors import CompileError
from hub.process.family import memory_bytes
from hub.workers.channel import Worker
from hub.workers.limits import Limits, Saving, default_memory_bytes

SOURCE = """
import os, subprocess, sys, time
from pathlib import Path
from hub.cache.artifacts import _private_folder
from hub.workers.channel import serve

held = []

def echo(value): return value
def take(megabytes):
    held.append(bytearray(os.urandom(1 << 20)) * megabytes)
    time.sleep(30)
def take_in_a_child(megabytes):
    subprocess.run([sys.executable, "-c", f"x = bytearray(b'1' * (1 << 20)) * {megabytes}; import time; time.sleep(30)"])
def take_in_a_daemon(megabytes):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            take(megabytes)
        os._exit(0)
    time.sleep(30)
def chatter():
    while True:
        os.write(1, b"x" * 100_000)
def fork_and_return(): return os.fork() and "parent"
def garbage():
    os.write(int(sys.argv[2]), b"not a frame at all, but long enough")
    time.sleep(30)
def lost_answer(): return lambda: None
def answer_much(): return "x" * 2_000_000
def save(folder, size):
    with _private_folder(Path(folder)).joinpath("file").open("wb") as file:
        while file.tell() < size:
            file.write(b"x" * 100_000)
            file.flush()
    time.sleep(30)

HANDLERS = (echo, take, take_in_a_child, take_in_a_daemon, chatter, fork_and_return, garbage)
HANDLERS = (*HANDLERS, lost_answer, answer_much, save)
if __name__ == "__main__":
    serve({f.__name__: f for f in HANDLERS})
"""

Start = Callable[[Limits], Worker]
ROOMY = Limits(compile_s=60.0, memory_bytes=2_000_000_000, output_bytes=1_000_000)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts workers with limits."""
    (tmp_path / "hub_limited_worker.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[Worker] = []

    def begin(limits: Limits) -> Worker:
        made.append(Worker("hub_limited_worker", tmp_path / f"{len(made)}.log", limits=limits))
        return made[-1]

    yield begin
    for worker in made:
        worker.kill()


@pytest.mark.parametrize("command", ["take", "take_in_a_child", "take_in_a_daemon"])
def test_too_much_memory_ends_the_worker(start: Start, command: str) -> None:
    """A worker, or a process that it starts, that takes more memory than allowed is ended, and the message says so."""
    worker = start(Limits(compile_s=60.0, memory_bytes=300_000_000, output_bytes=1_000_000))
    assert worker.ask("echo", 20, value=1) == 1
    with pytest.raises(CompileError, match=r"MB of memory, 300 MB allowed \(`workers.memory_limit_gb`\)"):
        worker.ask(command, 25, megabytes=400)
    assert not worker.is_alive


def test_too_much_output_ends_the_worker(start: Start) -> None:
    """A worker that prints without end is ended before it fills the disk."""
    worker = start(ROOMY)
    with pytest.raises(CompileError, match=r"it printed .* 1 MB allowed \(`workers.output_limit_mb`\)"):
        worker.ask("chatter", 25)


def test_an_answer_that_is_too_long_ends_the_worker(start: Start) -> None:
    """It is refused as announced, before a byte of it is read."""
    worker = start(ROOMY)
    with pytest.raises(CompileError, match=r"an answer of 2 MB, 1 MB allowed \(`workers.output_limit_mb`\)"):
        worker.ask("answer_much", 25)
    assert not worker.is_alive


def test_too_much_that_is_saved_ends_the_worker(start: Start, tmp_path: Path) -> None:
    """A worker that fills the disk is ended, and what it wrote is removed."""
    worker = start(ROOMY)
    folder = tmp_path / "backend" / "key"
    folder.parent.mkdir()
    worker.saving = Saving(folder, 1_000_000)
    with pytest.raises(
        CompileError, match=r"it saved 2 MB, 1 MB allowed \(`workers.output_limit_mb`, and room for the weights\)"
    ):
        worker.ask("save", 25, folder=str(folder), size=2_000_000)
    assert not worker.is_alive
    assert list(folder.parent.iterdir()) == []


def test_garbage_in_the_pipe_is_noticed(start: Start) -> None:
    """What a plugin writes into the hub's pipe is no answer, and nothing waits for the rest of it."""
    worker = start(ROOMY)
    with pytest.raises(CompileError, match="unexpected data"):
        worker.ask("garbage", 25)
    assert not worker.is_alive


def test_a_fork_that_returns_ends(start: Start) -> None:
    """A plugin that forks and lets the child return gets one answer, the parent's, and the worker goes on."""
    worker = start(ROOMY)
    assert worker.ask("fork_and_return", 25) == "parent"
    assert worker.ask("echo", 20, value=2) == 2


def test_an_answer_that_cannot_be_sent_is_named(start: Start) -> None:
    """An answer that cannot be pickled fails its request only."""
    worker = start(ROOMY)
    with pytest.raises(CompileError, match="cannot leave the worker"):
        worker.ask("lost_answer", 25)
    assert worker.ask("echo", 20, value=3) == 3


def test_memory_is_what_a_process_holds() -> None:
    """This process holds some megabytes, and less than the machine may give to a worker."""
    assert 10_000_000 < memory_bytes(os.getpid()) < default_memory_bytes()
    assert memory_bytes(0) == 0
