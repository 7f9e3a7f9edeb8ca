"""One process that has imported PyTorch, and forks workers: a worker is there in milliseconds instead of seconds.

It is started as a fresh interpreter, as workers are where there is none of these, and never runs a plugin: it imports what
workers need, starts no thread, and waits. A worker that it forks is as clean as one that was spawned.

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
from hub.process.children import environment_of_children
from hub.process.family import adopt_orphans, children, end_family, end_session, is_running
from hub.process.forks import freed_in_forks
from hub.process.priority import keep_session_behind, place
from hub.process.scratch import remove_with_owner, scratch_root

START_S = 120.0
"""Seconds that starting it may take: importing PyTorch, on a machine that is busy."""
REST_S = 60.0
"""Seconds after which it ends where it has no workers and nobody asks for any."""
FORK_S = 10.0
"""Seconds that one fork may take, beyond that."""
_ORPHANS_S = 2.0
_MESSAGE_BYTES = 1 << 20
_STATUS_BYTES = 4
_N_DESCRIPTORS = 5
"""That go with each request: both ends of the worker's pipes, its log, the pipe for its exit status, and its folder."""


class Child:
    """A worker that the server forked, as `subprocess.Popen` shows one that was spawned. Any thread may wait for it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._lock = freed_in_forks(threading.Lock())
        """Held while the exit status is read: it can be read once."""
        self._is_abandoned = False
        """True where the server died first: the worker may still run, and nobody but us ends it."""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None and _is_readable(self._status, 0.0):
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for the end, and return the exit status. Where the server died with it, that is unknown: -SIGKILL."""
        with self._lock:
            if self.returncode is None:
                data = os.read(self._status, _STATUS_BYTES)
                self._is_abandoned = not data
                self.returncode = int.from_bytes(data, "little", signed=True) if data else -signal.SIGKILL
                os.close(self._status)
            return self.returncode

    def end(self) -> None:
        """End it and everything it started; once the server has done so, the number may be another process's."""
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
            end_session(self.pid)  # orphans that had left it are the system's by now, and nobody knows them again
        return self._process.poll()

    def end(self) -> None:
        """End it and everything it started."""
        if self._process.returncode is None:
            end_family(self.pid)
        self._process.wait()


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended; it stays to be waited for, and its number its own."""
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


class ForkServer:
    """The parent's side. Starting does not wait; the first fork does. Raises WorkerError where it cannot be started.

    The server ends after `rest_s` seconds in which it has no workers and nobody asks for any. With `is_behind`, it and its
    workers run where the user's own threads leave a core.
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
        """Workers that it was asked for."""
        self._socket = ours
        self._limit_s = START_S
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._is_out_of_step = False
        """True where an answer was not waited for: the next one that comes would be taken for another worker's."""

    @property
    def is_alive(self) -> bool:
        """Return True while it runs, and tells how its workers end."""
        return self._process.poll() is None

    @property
    def can_fork(self) -> bool:
        """Return True while it can be asked for more workers."""
        return self.is_alive and not self._is_out_of_step

    def fork(self, requests: int, answers: int, log: Path) -> Child:
        """Return a new worker that reads and writes these descriptors. Raises WorkerError where the server gives none."""
        status_out, status_in = os.pipe()
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
        socket.send_fds(self._socket, [request.encode()], descriptors)
        self._socket.settimeout(self._limit_s)
        self._is_out_of_step = True
        answer: Mapping[str, Any] = json.loads(self._socket.recv(_MESSAGE_BYTES) or b"{}")
        self._is_out_of_step = False
        self._limit_s = FORK_S
        return answer

    def close(self) -> None:
        """End the server, and with it its workers. A fork of this process only lets go of it."""
        self._socket.close()
        if os.getpid() == self._owner:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def _this_folder() -> Generator[int]:
    """Return the working directory, even where it was removed or cannot be read."""
    folder = os.open(os.curdir, os.O_PATH | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


def _is_readable(descriptor: int, within_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if within_s is None else 1e3 * within_s))


# --- In the server ----------------------------------------------------------------------------------------------------


class _Server:
    def __init__(self, connection: socket.socket, module: str, rest_s: float) -> None:
        self.connection = connection
        self.rest_s = rest_s
        self.module: Any = importlib.import_module(module)
        self.statuses: dict[int, int] = {}
        """Where the exit status of each worker goes."""

    def run(self) -> bool:
        """Fork on request, and tell how workers ended, until the other side is gone or has asked nothing for long.

        Where it is gone, its workers are ended: nobody wants what they compile. Returns whether it may still be there.
        """
        try:
            return self._serve()
        finally:
            for pid in self.statuses:
                end_family(pid)
            self.end_orphans()

    def _serve(self) -> bool:
        adopt_orphans()  # of workers that end by themselves; while they live, they adopt their own
        wake_out, wake_in = os.pipe()
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _do_nothing)  # what is ignored wakes nobody
        _end_pools()
        gc.collect()
        gc.freeze()  # what all workers share stays shared
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
        """Fork a worker for one request; False where there will be no more."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.connection, _MESSAGE_BYTES, _N_DESCRIPTORS)
        except OSError:
            return False
        if not data:
            return False
        requests, answers, log, status, folder = descriptors
        if (n_threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208 - no Path objects between forks
            self.say({"problem": f"the server of workers has {n_threads} threads"})
            _close(descriptors)
            return True
        pid = os.fork()
        if pid == 0:
            os.setsid()  # first, so that one signal ends whatever the worker starts, from the moment that somebody knows it
            self.say({"pid": os.getpid()})
            self.become_worker(json.loads(data), requests, answers, log, folder, (*own, status))
        self.statuses[pid] = status
        _close((requests, answers, log, folder))
        return True

    def become_worker(
        self, request: Mapping[str, Any], requests: int, answers: int, log: int, folder: int, others: Sequence[int]
    ) -> None:
        """Turn a fork into what a spawned worker is, run it, and end with it."""
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
            sys.path[:] = request["path"]  # plugins may lie where this server did not look
            importlib.invalidate_caches()
            sys.argv = [self.module.__name__, str(requests), str(answers)]
            keep_session_behind()
            self.module.main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException as error:  # noqa: BLE001 - a process ends here, whatever it was
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def reap(self) -> None:
        """Tell how workers ended, as far as some have."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            end_session(ended.si_pid)  # what it left behind, while its number is still its own
            if ended.si_pid in self.statuses:
                self.end_orphans()
            pid, status = os.waitpid(ended.si_pid, 0)
            if (descriptor := self.statuses.pop(pid, None)) is not None:
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):
                    os.write(descriptor, code.to_bytes(_STATUS_BYTES, "little", signed=True))
                os.close(descriptor)

    def end_orphans(self) -> None:
        """End what workers that are gone left behind: it has become this process's."""
        end_s = time.monotonic() + _ORPHANS_S
        while (found := [pid for pid in children(os.getpid()) if self._is_orphan(pid)]) and time.monotonic() < end_s:
            for pid in found:
                end_family(pid)

    def _is_orphan(self, pid: int) -> bool:
        return pid not in self.statuses and is_running(pid)

    def say(self, answer: Mapping[str, Any]) -> None:
        """Answer one request; where nobody listens any more, the next read says so."""
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps(answer).encode())


def _end_pools() -> None:
    """Make libraries that expect forks end their threads, as they do before each: OpenBLAS starts some when imported."""
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
    """Serve the socket whose number is on the command line.

    Behind it are the module, the seconds of rest, and the folder of temporary files of the process that started this one,
    which is removed if that is gone.
    """
    connection = socket.socket(fileno=int(sys.argv[1]))
    is_wanted = _Server(connection, sys.argv[2], float(sys.argv[3])).run()
    if not is_wanted:
        remove_with_owner(Path(sys.argv[4]))


if __name__ == "__main__":
    main()
