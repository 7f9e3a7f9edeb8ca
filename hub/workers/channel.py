"""Messages between the hub and its worker processes, over a pair of pipes of their own."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

from hub.cache.artifacts import discard_partial
from hub.errors import CompileError, HubError, LimitExceeded, WorkerDied, WorkerError, WorkerGone, text_of
from hub.process.children import FROM_OUTSIDE, environment_of_children, exit_text, folder_of_children
from hub.process.family import WATCH_S, adopt_orphans
from hub.process.forks import in_forks
from hub.process.priority import place
from hub.process.scratch import nest_in, remove_with_owner, scratch_root
from hub.process.working import now
from hub.workers.forkserver import Child, ForkServer, Spawned
from hub.workers.frames import is_readable, receive, send
from hub.workers.limits import ANSWER_LIMIT_S, Limits, Saving

_ENDING_S = 2.0
_TAIL_LINES = 5
_TAIL_BYTES = 64 * 1024
_FATAL = "Fatal Python error"
"""Start of the message that Python prints, with the stacks of all threads, when a fatal signal ends it."""


_open: weakref.WeakSet[Worker] = weakref.WeakSet()
"""Workers whose pipes are open in this process."""


@in_forks
def _let_go() -> None:
    """Close a fork's copies of the pipes: workers must end when their own parent exits, not when all its forks have."""
    for worker in list(_open):
        worker.let_go()


class Worker:
    """A child process that answers requests one after the other.

    It is started as a fresh interpreter, never through multiprocessing's spawn, which would run the user's `__main__`
    again. Its standard output and error go to a log file, so that a chatty compiler does not disturb the user. With
    `limits`, a process that exceeds one while it works is ended, and the request fails with the reason. With `server`, that
    process forks the worker, and has imported `module`. Raises WorkerError if the system starts no process.
    """

    def __init__(
        self,
        module: str,
        log: Path,
        *,
        environment: dict[str, str] | None = None,
        limits: Limits | None = None,
        server: ForkServer | None = None,
        is_behind: bool = False,
    ) -> None:
        """Start the process. With `is_behind`, a new interpreter runs behind the user's own threads from the beginning."""
        self.log = log
        self.limits = limits
        self.saving: Saving | None = None
        """The folder that the current task saves to, with its size limit."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            theirs_in, ours_out, ours_in, theirs_out = ends
            if server is not None:
                self._process: Child | Spawned = server.fork(theirs_in, theirs_out, log)
            else:
                self._process = self._started(module, theirs_in, theirs_out, environment or {})
                place(self._process.pid, is_behind=is_behind)
        except (OSError, WorkerError) as error:
            for descriptor in ends:
                os.close(descriptor)
            if isinstance(error, WorkerError):
                raise
            raise WorkerError(f"a worker process cannot be started: {error}") from error
        os.close(theirs_in)
        os.close(theirs_out)
        self._to_worker = ours_out
        self._from_worker = ours_in
        self._is_open = True
        _open.add(self)

    def _started(self, module: str, theirs_in: int, theirs_out: int, environment: dict[str, str]) -> Spawned:
        # -P: a folder named `hub` in the user's working directory must not be imported in place of this package.
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs_in), str(theirs_out), str(scratch_root())],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder_of_children(),
                env={**environment_of_children(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
                start_new_session=True,
            )
        return Spawned(process)

    def post(self, command: str, **arguments: Any) -> None:
        """Send a request without waiting for the answer, which `result` returns. Raise WorkerGone if the worker died."""
        try:
            self._check_open()
            send(self._to_worker, (command, arguments))
        except OSError as error:
            raise WorkerGone(f"the worker process had ended already: {self._ending()}") from error

    def result(self, timeout_s: float) -> Any:
        """Return the answer to the oldest unanswered request.

        Raise what the request raised in the worker. Raise CompileError if the worker died, did not answer in time, exceeded
        its limits, or sent something other than an answer; it is then killed.
        """
        self._watch(timeout_s)
        try:
            self._check_open()
            is_error, value = receive(self._from_worker, ANSWER_LIMIT_S, self.limits.output_bytes if self.limits else None)
        except (EOFError, OSError) as error:
            died = WorkerDied(f"the worker process died: {self._ending()}{self._log_tail()}")
            died.was_ended_from_outside = self.exit_status in FROM_OUTSIDE
            raise died from error
        except CompileError:
            self.kill()
            raise
        if is_error:
            raise value
        return value

    def _watch(self, timeout_s: float) -> None:
        """Wait for an answer. If the worker exceeds its time or its limits, kill it and raise CompileError."""
        end = now() + timeout_s
        while not self.is_ready(max(0.0, min(WATCH_S, end - now()) if self.limits else timeout_s)):
            reason = self.excess()
            if reason or now() >= end:
                self.kill()
                text = reason or f"no answer within {timeout_s:.0f} s"
                raise LimitExceeded(text, hint="raise the limit, or exclude the backend")

    def excess(self) -> str:
        """Return which of its limits the worker exceeds; "" if none."""
        reason = self.limits.excess(self.pid, self.log) if self.limits is not None else ""
        return reason or (self.saving.excess(self.pid) if self.saving is not None else "")

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def is_ready(self, within_s: float = 0.0) -> bool:
        """Return whether an answer, or the worker's end, can be read, now or within some seconds."""
        return not self._is_open or is_readable(self._from_worker, within_s)

    def ask(self, command: str, timeout_s: float, **arguments: Any) -> Any:
        """Send a request and return its answer. Raise as `result` does."""
        self.post(command, **arguments)
        return self.result(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs and was not killed."""
        return self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End the worker and everything that it started."""
        self._process.end()
        if self.saving is not None:
            discard_partial(self.saving.folder, self.pid)
        self.let_go()

    def let_go(self) -> None:
        """Close this process's ends of the pipes. In a fork, the worker, which belongs to the parent, goes on."""
        if self._is_open:
            self._is_open = False
            _open.discard(self)
            os.close(self._to_worker)
            os.close(self._from_worker)

    def _check_open(self) -> None:
        """Raise OSError if the worker was killed: its descriptors may have been reused."""
        if not self._is_open:
            raise BrokenPipeError("the worker was ended")

    def _ending(self) -> str:
        deadline = time.monotonic() + _ENDING_S
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        code = self._process.poll()
        if code is None:
            return "it closed its pipe"
        return exit_text(code)

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = last_words(log.read().decode(errors="replace"))
            return "".join(f"\n  {line}" for line in lines)
        return ""


def last_words(text: str) -> list[str]:
    """Return the lines of a log that explain why its process ended.

    The messages that libraries print before they abort precede Python's stack traces, whose end explains nothing.
    """
    lines = text.splitlines()
    fatal = next((place for place in reversed(range(len(lines))) if lines[place].startswith(_FATAL)), None)
    return lines[-_TAIL_LINES:] if fatal is None else lines[max(0, fatal + 1 - _TAIL_LINES) : fatal + 1]


def serve(handlers: dict[str, Any]) -> None:
    """Run the worker's main loop: answer requests until the other side goes away. The command line names the two pipes.

    The next argument is the folder of temporary files of the process that started this one, which is removed if that
    process is gone. A request with `idle_s` is the last one unless another comes within that many seconds. If a plugin
    forked and let the fork return, the fork exits here. Processes that plugins start stay descendants of this one, so that
    they can be counted, and ended with it.
    """
    adopt_orphans()
    requests, answers, roots = int(sys.argv[1]), int(sys.argv[2]), [Path(root) for root in sys.argv[3:]]
    for root in roots:  # not in a forked worker: there the server does this, and removes them
        nest_in(root)
    own, idle_s = os.getpid(), None
    while is_readable(requests, idle_s):
        try:
            command, arguments = receive(requests, ANSWER_LIMIT_S)
        except (EOFError, OSError):
            for root in roots:
                remove_with_owner(root)
            return
        idle_s = arguments.pop("idle_s", None)
        try:
            answer = (False, handlers[command](**arguments))
        except BaseException as error:  # noqa: BLE001 - a worker is never interrupted: all of these come from the plugin
            answer = (True, _portable(error))
        if os.getpid() != own:
            os._exit(0)  # a fork that returned: the original process answers
        send(answers, _sendable(answer))


def _sendable(answer: tuple[bool, Any]) -> tuple[bool, Any]:
    """Return the answer or, if it cannot be pickled, an error with the reason."""
    try:
        pickle.dumps(answer)
    except Exception as error:  # noqa: BLE001 - a plugin's objects may raise anything
        return True, CompileError(f"the answer cannot leave the worker process: {text_of(error)}")
    return answer


def _portable(error: BaseException) -> HubError:
    """Return an error that the parent can unpickle: the hub's own errors unchanged, others by name and message."""
    if isinstance(error, HubError):
        return error
    return CompileError(text_of(error))
