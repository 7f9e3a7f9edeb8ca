"""Workers that rest between sessions: taken again where they fit, ended where they do not."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hub.errors import WorkerError
from hub.workers.limits import Limits
from hub.workers.pool import MAX_RESTING, Pool

LIMITS = Limits(compile_s=60.0, memory_bytes=4_000_000_000, output_bytes=1_000_000)


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Return a pool of its own."""
    made = Pool()
    yield made
    made.close()


def test_a_worker_is_lent_again(pool: Pool) -> None:
    """The worker that last did a backend's work does it again; another backend gets another one."""
    first = pool.lend("alpha", LIMITS)
    pool.take_back("alpha", first)
    other = pool.lend("beta", LIMITS)
    again = pool.lend("alpha", LIMITS)
    assert again is first
    assert other is not first
    other.kill()
    again.kill()


def test_other_surroundings_need_another_worker(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was started under another environment is not used."""
    first = pool.lend("alpha", LIMITS)
    pool.take_back("alpha", first)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    second = pool.lend("alpha", LIMITS)
    assert second is not first
    second.kill()


def test_other_surroundings_end_no_worker_that_is_at_work(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is imported in the middle of planning may set a variable: plans that are timed go on."""
    first = pool.lend("alpha", LIMITS)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    second = pool.lend("beta", LIMITS)
    assert first.ask("rest", 60) is None
    assert first.is_alive
    pool.close()
    assert not first.is_alive
    second.kill()


def test_an_answer_that_was_not_waited_for_is_taken_for_no_other_workers(pool: Pool) -> None:
    """A server that forks too slowly for one request is asked for no more; its workers go on, and others are lent."""
    first = pool.lend("alpha", LIMITS)
    assert pool._server is not None
    server = pool._server[1]
    server._limit_s = 0.0
    second = pool.lend("beta", LIMITS)  # is spawned
    third = pool.lend("gamma", LIMITS)  # is forked by another server
    assert pool._server is not None
    assert pool._server[1] is not server
    assert len({first.pid, second.pid, third.pid}) == 3
    assert [worker.ask("rest", 60) for worker in (first, second, third)] == [None] * 3
    for worker in (first, second, third):
        worker.kill()


def test_another_path_or_folder_needs_a_new_worker_but_no_new_server(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the server imported is the same wherever plugins lie; what a resting worker imported may not be."""
    first = pool.lend("alpha", LIMITS)
    server = pool._server
    pool.take_back("alpha", first)
    monkeypatch.syspath_prepend(str(tmp_path))
    second = pool.lend("alpha", LIMITS)
    pool.take_back("alpha", second)
    monkeypatch.chdir(tmp_path)
    third = pool.lend("alpha", LIMITS)
    assert len({first.pid, second.pid, third.pid}) == 3
    assert pool._server is server
    third.kill()


def test_a_worker_that_died_is_not_lent(pool: Pool) -> None:
    """Whatever ended a resting worker, the next session gets a living one."""
    first = pool.lend("alpha", LIMITS)
    pool.take_back("alpha", first)
    first.kill()
    second = pool.lend("alpha", LIMITS)
    assert second.ask("rest", 60) is None
    second.kill()


def test_only_some_rest(pool: Pool) -> None:
    """More than a few workers are not kept: each holds memory."""
    workers = [pool.lend(str(number), LIMITS) for number in range(MAX_RESTING + 1)]
    for number, worker in enumerate(workers):
        pool.take_back(str(number), worker)
    assert [worker.is_alive for worker in workers] == [False, *[True] * MAX_RESTING]
    pool.close()
    assert not any(worker.is_alive for worker in workers)


def test_what_forks_workers_is_ended_where_nobody_needed_it(pool: Pool) -> None:
    """It may still be importing PyTorch, during the user's first calls; once a worker of it was used, it stays."""
    pool.prepare()
    assert pool.is_started
    pool.drop_unused()
    assert not pool.is_started
    worker = pool.lend("alpha", LIMITS)
    pool.drop_unused()
    assert pool.is_started
    worker.kill()


def test_what_forks_workers_can_start_before_pytorch_is_imported() -> None:
    """A process that is about to import PyTorch has it imported there at the same time, and uses that server then."""
    code = """
    import sys
    from hub.workers.pool import POOL

    POOL.prepare()
    server = POOL._server
    is_early = "torch" not in sys.modules
    import hub.planning.aside_tasks
    import torch._inductor.config

    POOL.prepare()
    print(is_early, server is not None and POOL._server is server)
    """
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.parametrize("lacking", ["folder", "descriptors"])
def test_what_no_worker_can_start_without_is_a_workers_error(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """Planning then goes on without workers; nothing stays open."""

    def full(*_given: Any, **_more: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(pool, "_forking", lambda: None)
    monkeypatch.setattr(*(("hub.workers.pool.scratch_folder", full) if lacking == "folder" else (os, "pipe", full)))
    with pytest.raises(WorkerError, match=r"cannot be started: .*Too many open files"):
        pool.lend("a", LIMITS)
