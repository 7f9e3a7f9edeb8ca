"""Forked workers behave like spawned ones, and their server causes no trouble."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hub.errors import CompileError, WorkerError
from hub.process.scratch import scratch_root
from hub.workers.channel import Worker
from hub.workers.forkserver import Child, ForkServer
from hub.workers.limits import Limits
from hub.workers.pool import MODULE

SOURCE = """
import os, random, signal, sys, threading, time
from hub.workers.channel import serve
from hub.process.leftovers import leftovers, more
from hub.process.scratch import scratch_folder

def facts():
    return {
        "pid": os.getpid(), "session": os.getsid(0), "environment": os.environ.get("HUB_TEST_WORD"),
        "descriptors": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
        "child_signal": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL, "folder": os.getcwd(), "path": sys.path,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
def say(text): print(text, flush=True)
def scratch(): return str(scratch_folder("compiled"))
def leave(code): os._exit(code)
def sleep(): time.sleep(60)
def leave_child():
    global child
    child = __import__("subprocess").Popen(["sleep", "60"])
    return child.pid
def daemonize():
    told, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(tell, str(os.getpid()).encode())
            os.execvp("sleep", ["sleep", "60"])
        os._exit(0)
    os.wait()
    daemon = int(os.read(told, 20))
    os.close(told)
    os.close(tell)
    return daemon
def left_by_a_daemon():
    before = leftovers()
    daemonize()
    return more(before)
def die(by=signal.SIGSEGV): os.kill(os.getpid(), by)
def run_child(): return __import__("subprocess").run(["true"]).returncode

def main():
    tasks = facts, say, scratch, leave, die, run_child, sleep, leave_child, daemonize, left_by_a_daemon
    serve({f.__name__: f for f in tasks})

if __name__ == "__main__":
    main()
"""
MODULE_UNDER_TEST = "hub_forked_worker"
LIMITS = Limits(compile_s=60.0, memory_bytes=2_000_000_000, output_bytes=1_000_000)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """Start a server of small workers."""
    (tmp_path / "hub_forked_worker.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = ForkServer(MODULE_UNDER_TEST, tmp_path / "server.log")
    yield made
    made.close()


def forked(server: ForkServer, tmp_path: Path, name: str = "worker") -> Worker:
    """Fork a worker of the server."""
    return Worker(MODULE_UNDER_TEST, tmp_path / f"{name}.log", limits=LIMITS, server=server)


def test_each_worker_is_a_process_of_its_own(server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a session, a log, today's environment, path and folder, and none of the server's or its siblings' files."""
    first = forked(server, tmp_path, "first")
    monkeypatch.setenv("HUB_TEST_WORD", "new")
    monkeypatch.syspath_prepend(str(tmp_path / "new"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    second = forked(server, tmp_path, "second")
    one, other = (worker.ask("facts", 30) for worker in (first, second))
    assert one["pid"] == one["session"] != other["pid"] == other["session"]
    assert (one["environment"], other["environment"]) == (None, "new")
    assert other["folder"] == str(tmp_path / "elsewhere") != one["folder"]
    assert other["path"] == [*filter(None, sys.path)] == [str(tmp_path / "new"), *one["path"]]
    assert one["descriptors"] == other["descriptors"]
    assert other["threads"] == 1
    assert other["child_signal"]
    second.ask("say", 30, text="mine")
    assert (tmp_path / "second.log").read_text() == "mine\n"
    assert (tmp_path / "first.log").read_text() == ""
    assert second.ask("run_child", 30) == 0
    for worker in (first, second):
        worker.kill()


@pytest.mark.parametrize("is_forked", [True, False])
def test_what_a_killed_worker_leaves_is_this_processs(server: ForkServer, tmp_path: Path, *, is_forked: bool) -> None:
    """Its temporary files lie in this process's folder, which is removed at the end; nothing is left beside it."""
    worker = Worker(MODULE_UNDER_TEST, tmp_path / "killed.log", limits=LIMITS, server=server if is_forked else None)
    left = Path(worker.ask("scratch", 30))
    worker.kill()
    assert left.is_dir()
    assert left.is_relative_to(scratch_root())


@pytest.mark.parametrize(
    ("command", "facts", "said"),
    [("leave", {"code": 3}, "exit status 3"), ("die", {}, "killed by SIGSEGV"), ("die", {"by": 35}, "killed by signal 35")],
)
def test_how_a_worker_ended_is_known(
    server: ForkServer, tmp_path: Path, command: str, facts: dict[str, int], said: str
) -> None:
    """As with a spawned one; the server and other workers go on."""
    worker, other = forked(server, tmp_path), forked(server, tmp_path, "other")
    with pytest.raises(CompileError, match=said):
        worker.ask(command, 30, **facts)
    assert not worker.is_alive
    assert other.ask("facts", 30)["pid"]
    other.kill()
    assert not other.is_alive
    assert forked(server, tmp_path).ask("facts", 30)["pid"]


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_thread_without_signals_learns_how_a_worker_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_ignored: bool
) -> None:
    """Processes inherit what the thread that starts them blocks, and what is ignored: servers block all for `sigwait`."""
    (tmp_path / "hub_forked_worker.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN) if is_ignored else signal.getsignal(signal.SIGCHLD)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        server = ForkServer(MODULE_UNDER_TEST, tmp_path / "server.log")
        worker = forked(server, tmp_path)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGCHLD, handler)
    try:
        facts = worker.ask("facts", 30)
        assert (facts["blocked"], facts["child_signal"]) == ([], True)
        worker.post("leave", code=3)
        end_s = time.monotonic() + 10
        while worker.is_alive and time.monotonic() < end_s:
            time.sleep(0.01)
        assert worker.exit_status == 3
    finally:
        server.close()


@pytest.mark.parametrize("is_forked", [True, False])
def test_what_a_dead_worker_started_ends(server: ForkServer, tmp_path: Path, is_forked: bool) -> None:
    """And it is ended once: later the number of the worker's session may be another process's."""
    worker = forked(server, tmp_path) if is_forked else Worker(MODULE_UNDER_TEST, tmp_path / "spawned.log", limits=LIMITS)
    child = worker.ask("leave_child", 30)
    assert _runs(child)
    with pytest.raises(CompileError, match="exit status 3"):
        worker.ask("leave", 30, code=3)
    assert not worker.is_alive
    deadline = time.monotonic() + 30
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(child)
    ended: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "killpg", lambda pid, _signal: ended.append(pid))
        worker.kill()
    assert ended == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has processes that adopt orphans")
@pytest.mark.parametrize("is_forked", [True, False])
def test_a_daemon_ends_with_its_worker(server: ForkServer, tmp_path: Path, is_forked: bool) -> None:
    """One that left the session, and whose parent ended, is a descendant still: counted, and ended."""
    worker = forked(server, tmp_path) if is_forked else Worker(MODULE_UNDER_TEST, tmp_path / "spawned.log", limits=LIMITS)
    assert worker.ask("left_by_a_daemon", 30) == "1 process"
    daemon = worker.ask("daemonize", 30)
    assert _runs(daemon)
    worker.kill()
    assert not _runs(daemon)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has processes that adopt orphans")
def test_a_daemon_ends_with_a_worker_that_dies(server: ForkServer, tmp_path: Path) -> None:
    """Its server has it then, and ends it; those of workers that live are left alone."""
    worker, other = forked(server, tmp_path), forked(server, tmp_path, "other")
    daemon, kept = worker.ask("daemonize", 30), other.ask("daemonize", 30)
    with pytest.raises(CompileError, match="killed by SIGSEGV"):
        worker.ask("die", 30)
    assert not _runs(daemon)
    assert _runs(kept)
    other.kill()
    assert not _runs(kept)


def test_many_threads_may_wait_for_one_end() -> None:
    """Each thread learns how a worker ended: Ctrl-C kills workers for whose end other threads wait already."""
    told, tell = os.pipe()
    child = Child(os.getpid(), told)  # only its exit status is asked for
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(child.wait) for _ in range(8)]
        os.write(tell, (-signal.SIGKILL).to_bytes(4, "little", signed=True))
        os.close(tell)
        assert {one.result() for one in waiting} == {-signal.SIGKILL}
    assert child.poll() == -signal.SIGKILL


def test_a_server_that_died_forks_no_more(server: ForkServer, tmp_path: Path) -> None:
    """A request raises an error, and the caller can spawn instead."""
    worker = forked(server, tmp_path)
    server._process.kill()
    server._process.wait()
    assert not server.is_alive
    with pytest.raises(WorkerError):
        forked(server, tmp_path)
    assert worker.ask("facts", 30)["pid"], "its workers go on"
    worker.kill()


def test_a_server_without_work_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds memory, and is started again where it is needed."""
    (tmp_path / "hub_forked_worker.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    server = ForkServer(MODULE_UNDER_TEST, tmp_path / "server.log", rest_s=0.2)
    deadline = time.monotonic() + 30
    while server.is_alive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not server.is_alive
    server.close()


def test_nothing_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    """Killed without a chance to tidy up, it leaves neither server nor workers."""
    (tmp_path / "hub_forked_worker.py").write_text(SOURCE)
    code = (
        "import sys, time, pathlib\n"
        "from hub.workers.channel import Worker\n"
        "from hub.workers.forkserver import ForkServer\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "server = ForkServer('hub_forked_worker', folder / 'server.log')\n"
        "worker = Worker('hub_forked_worker', folder / 'log', server=server)\n"
        "pid = worker.ask('facts', 30)['pid']\n"
        "worker.post('sleep')  # busy, as with a compilation\n"
        "print(pid, server._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    process.stdout.close()
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while any(map(_runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_a_server_with_threads_forks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork copies one thread only: locks of others would never open."""
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n"
    (tmp_path / "hub_threaded_worker.py").write_text(threads)
    monkeypatch.syspath_prepend(str(tmp_path))
    server = ForkServer("hub_threaded_worker", tmp_path / "server.log")
    with pytest.raises(WorkerError, match="2 threads"):
        Worker("hub_threaded_worker", tmp_path / "log", server=server)
    server.close()


def test_what_workers_need_starts_no_threads(tmp_path: Path) -> None:
    """Importing PyTorch and the hub's tasks leaves one thread, or no worker could ever be forked."""
    server = ForkServer("hub.workers.worker", tmp_path / "server.log")
    worker = Worker("hub.workers.worker", tmp_path / "log", server=server)
    assert worker.ask("rest", 60) is None
    worker.kill()
    server.close()


def test_what_workers_import_leaves_no_threads(tmp_path: Path) -> None:
    """The module of real workers can be forked: NumPy's threads, which come with it, end before."""
    server = ForkServer(MODULE, tmp_path / "server.log")
    try:
        worker = Worker(MODULE, tmp_path / "worker.log", limits=LIMITS, server=server)
        assert worker.ask("rest", 60) is None
        worker.kill()
    finally:
        server.close()
