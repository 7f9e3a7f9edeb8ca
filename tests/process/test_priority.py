"""Processes behind the user's threads: their policy, their session, what they start; and the time that they wait."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hub.process import priority
from hub.process.priority import NICE, keep_session_behind, step_behind
from hub.process.working import Worked

AUTOGROUP = "autogroup"
SPIN = "while True: pass"


@contextmanager
def process(code: str, *, is_apart: bool = True) -> Iterator[int]:
    """Run some Python, in a session of its own."""
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=is_apart)
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


def group_niceness(pid: int) -> int | None:
    """Return the niceness of a process's session; None if it is in no such group.

    Linux keeps the first session of all in no group; its file is empty.
    """
    group = Path("/proc") / str(pid) / AUTOGROUP
    words = group.read_text().split() if group.exists() else []
    return int(words[-1]) if words else None


def is_idle(pid: int) -> bool:
    """Return whether a process is scheduled only on otherwise idle cores."""
    return os.sched_getscheduler(pid) == os.SCHED_IDLE


def test_a_process_steps_behind_with_its_session() -> None:
    """Its niceness is its session's, too, and only where sessions share the cores does it wait for idle ones."""
    with process(SPIN) as pid:
        step_behind(pid)
        assert os.getpriority(os.PRIO_PROCESS, pid) == NICE
        assert group_niceness(pid) in (NICE, None)
        assert is_idle(pid) == priority._groups_share(Path("/proc") / str(pid))


def test_all_threads_step_behind() -> None:
    """A worker may have a pool already; each thread has a priority of its own."""
    start = "[threading.Thread(target=threading.Event().wait).start() for _ in range(3)]"
    code = f"import threading; {start}; print(1, flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        step_behind(child.pid)
        threads = priority._threads(Path("/proc") / str(child.pid))
        assert len(threads) >= 4
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {NICE}
        child.kill()


def test_nothing_but_that_process_changes() -> None:
    """This process, its session and another child are as they were."""
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), group_niceness(os.getpid())
    with process(SPIN) as pid, process(SPIN) as other:
        step_behind(pid)
        keep_session_behind(other)
        assert os.getpriority(os.PRIO_PROCESS, other) == before[0]
        assert group_niceness(other) in (0, None)
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), group_niceness(os.getpid())) == before


@pytest.mark.parametrize(
    ("has_groups", "cgroup", "files", "is_shared"),
    [
        (True, "0::/\n", (), True),
        (True, "0::/user.slice/one.scope\n", (), True),
        (True, "0::/user.slice/one.scope\n", ("user.slice/cpu.weight",), False),
        (True, "0::/\n", ("cpu.weight",), False),
        (True, "1:cpu:/\n0::/\n", ("cpu/release_agent",), True),
        (True, "1:cpu,cpuacct:/\n0::/\n", (), False),
        (True, "1:cpu:/docker/one\n0::/\n", ("cpu/release_agent",), False),
        (False, "0::/\n", (), False),
    ],
)
def test_containers_have_groups_of_their_own(
    *,
    has_groups: bool,
    cgroup: str,
    files: tuple[str, ...],
    is_shared: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a control group for processors sessions count for nothing: an idle policy would stop planning there."""
    for name in files:
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).touch()
    (tmp_path / "cgroup").write_text(cgroup)
    monkeypatch.setattr(priority, "_CGROUPS", tmp_path / "fs")
    monkeypatch.setattr(priority, "_has_groups", lambda: has_groups)
    assert priority._groups_share(tmp_path) == is_shared


def test_workers_of_a_process_that_stepped_behind_are_behind(tmp_path: Path) -> None:
    """Those that are forked and those that are spawned, each in a session of its own."""
    code = f"""
    import os
    from pathlib import Path
    from hub.process.priority import step_behind
    from hub.workers.channel import Worker
    from hub.workers.limits import Limits
    from hub.workers.pool import MODULE, POOL

    step_behind()
    limits = Limits(compile_s=60.0, memory_bytes=4_000_000_000, output_bytes=1_000_000)
    workers = [POOL.lend("one", limits), Worker(MODULE, Path({str(tmp_path / "log")!r}))]
    for worker in workers:
        worker.ask("rest", 60)
        group = Path("/proc") / str(worker.pid) / "autogroup"
        words = (group.read_text().split() if group.exists() else []) or ["{NICE}"]
        is_as_here = os.sched_getscheduler(worker.pid) == os.sched_getscheduler(0)
        print(os.getpriority(os.PRIO_PROCESS, worker.pid), words[-1], is_as_here)
        worker.kill()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, start_new_session=True
    )
    assert done.stdout.splitlines() == [f"{NICE} {NICE} True"] * 2


def test_waiting_for_a_core_is_not_working() -> None:
    """Two processes on one core wait for half of the time, and one that sleeps does not."""
    core = {min(os.sched_getaffinity(0))}
    with process(SPIN) as one, process(SPIN) as other, process("import time; time.sleep(60)") as asleep:
        for pid in (one, other):
            os.sched_setaffinity(pid, core)
        watched = {pid: Worked(pid) for pid in (one, other, asleep)}
        waited = dict.fromkeys(watched, 0.0)
        start = time.monotonic()
        for _ in range(10):
            time.sleep(0.1)
            for pid, worked in watched.items():
                waited[pid] += worked.tick()
        passed = time.monotonic() - start
    assert waited[one] + waited[other] > 0.5 * passed
    assert waited[asleep] < 0.5 * passed
