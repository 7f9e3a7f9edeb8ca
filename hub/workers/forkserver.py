"""A process that has imported PyTorch and forks workers, so that a worker starts in milliseconds instead of seconds.

It is started as a fresh interpreter, like workers without a fork server, and never runs a plugin: it imports what workers
need, starts no thread, and waits. A worker that it forks is as clean as one that was spawned.

`python -m hub.workers.forkserver FD` is that process; FD is its end of a socket.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hub.errors import WorkerError
from hub.process.children import environment_of_children, folder_of_children
from hub.process.family import adopt_orphans, children, end_family, end_session, is_running
from hub.process.forks import freed_in_forks
from hub.process.priority import keep_session_behind, place
from hub.process.scratch import nest_in, remove_with_owner, scratch_root
from hub.workers.frames import is_readable

START_S = 120.0
"""Seconds that its start may take: importing PyTorch, on a busy machine."""
REST_S = 60.0
"""Seconds without workers and requests after which it ends."""
FORK_S = 10.0
"""Seconds that one fork may take once the server has started."""
_ORPHANS_S = 2.0
_MESSAGE_BYTES = 1 << 20
_STATUS_BYTES = 4
_N_DESCRIPTORS = 5
"""Number of descriptors in a request: the worker's ends of two pipes, its log, the exit status pipe, and its folder."""


class Child:
    """A worker that the server forked, with an interface like `subprocess.Popen`. Any thread may wait for it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._lock = freed_in_forks(threading.Lock())
        """Held while the exit status is read, which is possible only once."""
        self._is_abandoned = False
        """True if the server died first: the worker may still run, and only this process can end it."""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None and is_readable(self._status, 0.0):
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for the end, and return the exit status. If the server died, too, the status is unknown: return -SIGKILL."""
        with self._lock:
            if self.returncode is None:
                data = os.read(self._status, _STATUS_BYTES)
                self._is_abandoned = not data
                self.returncode = int.from_bytes(data, "little", signed=True) if data else -signal.SIGKILL
                os.close(self._status)
            return self.returncode

    def end(self) -> None:
        """End it and everything that it started. Do nothing once the server has reaped it: the PID may have been reused."""
        if self.poll() is None or self._is_abandoned:
            end_family(self.pid)
        self.wait()


class Spawned:
    """A worker that was started as a fresh interpreter."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self._process.returncode is None and _has_ended(self.pid):
            end_session(self.pid)  # orphans outside its session belong to init already and cannot be found
        return self._process.poll()

    def end(self) -> None:
        """End it and everything that it started."""
        if self._process.returncode is None:
            end_family(self.pid)
        self._process.wait()


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, without reaping it, so that its PID is not reused."""
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


class ForkServer:
    """The parent's side. Starting does not wait; the first fork does. Raises WorkerError if it cannot be started.

    The server ends after `rest_s` seconds without workers and requests. With `is_behind`, it and its workers run behind the
    user's own threads.
    """

    def __init__(self, module: str, log: Path, *, rest_s: float = REST_S, is_behind: bool = False) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with log.open("ab") as output:
                # -P: a folder named `hub` in the user's working directory must not be imported in place of this package.
                facts = map(str, (theirs.fileno(), module, rest_s, scratch_root()))
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "hub.workers.forkserver", *facts],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=folder_of_children(),
                    env={**environment_of_children(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise WorkerError(f"a worker process cannot be started: {error}") from error
        finally:
            theirs.close()
        place(self._process.pid, is_behind=is_behind)
        self.n_forked = 0
        """Number of workers requested."""
        self._socket = ours
        self._limit_s = START_S
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._is_out_of_step = False
        """True if the wait for an answer was aborted: the next answer would be taken for another worker's."""

    @property
    def is_alive(self) -> bool:
        """Return whether it runs, and so reports how its workers end."""
        return self._process.poll() is None

    @property
    def can_fork(self) -> bool:
        """Return whether it can fork more workers."""
        return self.is_alive and not self._is_out_of_step

    def fork(self, requests: int, answers: int, log: Path) -> Child:
        """Return a new worker that reads and writes these descriptors. Raise WorkerError if the server forks none."""
        try:
            status_out, status_in = os.pipe()
        except OSError as error:
            raise WorkerError(f"no worker could be forked: {error}") from error
        self.n_forked += 1
        try:
            with self._lock, log.open("ab") as output, _this_folder() as folder:
                answer = self._ask((requests, answers, output.fileno(), status_in, folder))
        except (OSError, ValueError) as error:
            answer: Mapping[str, Any] = {"problem": str(error)}
        finally:
            os.close(status_in)
        if "pid" not in answer:
            os.close(status_out)
            raise WorkerError(f"no worker could be forked: {answer.get('problem', 'the server of workers ended')}")
        return Child(answer["pid"], status_out)

    def _ask(self, descriptors: Sequence[int]) -> Mapping[str, Any]:
        request = json.dumps({"environment": environment_of_children(), "path": [*filter(None, sys.path)]})
        self._socket.settimeout(self._limit_s)
        try:
            socket.send_fds(self._socket, [request.encode()], descriptors)
            answer: Mapping[str, Any] = json.loads(self._socket.recv(_MESSAGE_BYTES) or b"{}")
        except BaseException:
            self._is_out_of_step = True
            raise
        self._limit_s = FORK_S
        return answer

    def close(self) -> None:
        """End the server and its workers. In a fork of this process, only close the socket."""
        self._socket.close()
        if os.getpid() == self._owner:
            if self._process.poll() is None:
                end_family(self._process.pid)
            self._process.wait()


@contextlib.contextmanager
def _this_folder() -> Generator[int]:
    """Open the working directory as a descriptor, even if it cannot be read; the root folder if it was removed."""
    folder = os.open(folder_of_children() or os.curdir, os.O_PATH | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


# --- In the server ----------------------------------------------------------------------------------------------------


class _Server:
    def __init__(self, connection: socket.socket, module: str, rest_s: float) -> None:
        self.connection = connection
        self.rest_s = rest_s
        self.module: Any = importlib.import_module(module)
        self.statuses: dict[int, int] = {}
        """The descriptor to which the exit status of each worker is written, by PID."""

    def run(self) -> bool:
        """Fork on request, and report how workers ended, until the other side is gone or has been idle for long.

        If it is gone, end its workers: what they compile has no use. Return whether the other side may still exist.
        """
        try:
            return self._serve()
        finally:
            for pid in self.statuses:
                end_family(pid)
            self.end_orphans()

    def _serve(self) -> bool:
        adopt_orphans()  # those of workers that have ended; while a worker lives, it adopts its own
        wake_out, wake_in = os.pipe()
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _do_nothing)  # an ignored signal would not wake the poll
        _end_pools()
        gc.collect()
        gc.freeze()  # keep memory pages shared between all workers
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        poll.register(wake_out, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(1e3 * self.rest_s)}
            if wake_out in ready:
                os.read(wake_out, 4096)
                self.reap()
            if self.connection.fileno() in ready and not self.answer((wake_out, wake_in)):
                return False
            if not ready and not self.statuses:
                return True

    def answer(self, own: Sequence[int]) -> bool:
        """Fork a worker for one request. Return False if there will be no more requests."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.connection, _MESSAGE_BYTES, _N_DESCRIPTORS)
        except OSError:
            return False
        if not data:
            return False
        requests, answers, log, status, folder = descriptors
        if (n_threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208 - allocate no Path objects in the server
            self.say({"problem": f"the server of workers has {n_threads} threads"})
            _close(descriptors)
            return True
        pid = os.fork()
        if pid == 0:
            os.setsid()  # before its PID is known, so that one signal always ends everything that the worker starts
            self.say({"pid": os.getpid()})
            self.become_worker(json.loads(data), requests, answers, log, folder, (*own, status))
        self.statuses[pid] = status
        _close((requests, answers, log, folder))
        return True

    def become_worker(
        self, request: Mapping[str, Any], requests: int, answers: int, log: int, folder: int, others: Sequence[int]
    ) -> None:
        """Make a fork equivalent to a spawned worker, run it, and exit with it."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.connection.close()
            _close((*others, *self.statuses.values()))
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.fchdir(folder)
            _close((log, folder))
            os.environ.clear()
            os.environ.update(request["environment"])
            sys.path[:] = request["path"]  # plugins may be in folders that this server does not search
            importlib.invalidate_caches()
            sys.argv = [self.module.__name__, str(requests), str(answers)]
            keep_session_behind()
            self.module.main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException as error:  # noqa: BLE001 - the process ends here on any error
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def reap(self) -> None:
        """Report the exit status of all workers that have ended."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            end_session(ended.si_pid)  # processes that it left behind, while its PID is still its own
            if ended.si_pid in self.statuses:
                self.end_orphans()
            pid, status = os.waitpid(ended.si_pid, 0)
            if (descriptor := self.statuses.pop(pid, None)) is not None:
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):
                    os.write(descriptor, code.to_bytes(_STATUS_BYTES, "little", signed=True))
                os.close(descriptor)

    def end_orphans(self) -> None:
        """End the processes that ended workers left behind, which are now children of this process."""
        end_s = time.monotonic() + _ORPHANS_S
        while (found := [pid for pid in children(os.getpid()) if self._is_orphan(pid)]) and time.monotonic() < end_s:
            for pid in found:
                end_family(pid)

    def _is_orphan(self, pid: int) -> bool:
        return pid not in self.statuses and is_running(pid)

    def say(self, answer: Mapping[str, Any]) -> None:
        """Answer one request. If the other side is gone, the next read reports it."""
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps(answer).encode())


def _end_pools() -> None:
    """Make libraries with fork handlers end their threads, as they do before each fork: OpenBLAS starts some at import."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _do_nothing(_number: int, _frame: object) -> None:
    pass


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def main() -> None:
    """Serve the socket whose descriptor is on the command line.

    The next arguments are the module, the idle seconds, and the folder of temporary files of the process that started this
    one, which is removed if that process is gone.
    """
    connection, root = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[4])
    nest_in(root)
    is_wanted = _Server(connection, sys.argv[2], float(sys.argv[3])).run()
    if not is_wanted:
        remove_with_owner(root)


if __name__ == "__main__":
    main()
