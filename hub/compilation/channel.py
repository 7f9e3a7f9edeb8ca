"""Messages between the hub and its worker processes, over a pair of pipes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hub.errors import CompileError


class Worker:
    """A child process that answers requests one after the other.

    Started as a fresh interpreter, never through multiprocessing's spawn, which would run the user's `__main__` again. Its
    standard output and error go to a log file, so that a chatty compiler disturbs nobody.
    """

    def __init__(self, module: str, log: Path, *, environment: dict[str, str] | None = None) -> None:
        self.log = log
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # -P: a folder named `hub` in the user's working directory must not be imported in place of this package.
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs_in), str(theirs_out)],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})},
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._send = Connection(ours_out, readable=False)
        self._receive = Connection(ours_in, writable=False)

    def post(self, command: str, **arguments: Any) -> None:
        """Sends a request without waiting for the answer, which `result` gives. Raises CompileError if the worker died."""
        try:
            self._send.send((command, arguments))
        except (OSError, ValueError) as error:
            raise CompileError(f"the worker process is gone: {self._ending()}") from error

    def result(self, timeout_s: float) -> Any:
        """Gives the answer to the oldest unanswered request.

        Raises what the request raised in the worker, or CompileError if the worker died or did not answer in time; it is
        then killed.
        """
        try:
            if not self._receive.poll(timeout_s):
                self.kill()
                raise CompileError(
                    f"no answer within {timeout_s:.0f} s", hint="raise the time budget, or exclude the backend"
                )
            is_error, value = self._receive.recv()
        except (EOFError, OSError) as error:
            raise CompileError(f"the worker process died: {self._ending()}{self._log_tail()}") from error
        if is_error:
            raise value
        return value

    def is_ready(self, within_s: float = 0.0) -> bool:
        """True where an answer, or the worker's end, can be read, now or within some seconds."""
        try:
            return self._receive.poll(within_s)
        except (EOFError, OSError):
            return True

    def ask(self, command: str, timeout_s: float, **arguments: Any) -> Any:
        """Sends a request and gives its answer; raises as `result` does."""
        self.post(command, **arguments)
        return self.result(timeout_s)

    @property
    def is_alive(self) -> bool:
        """True where the process runs and was not killed."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends the worker and everything it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._send.close()
        self._receive.close()

    def _ending(self) -> str:
        deadline = time.monotonic() + 2.0
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        code = self._process.poll()
        if code is None:
            return "it closed its pipe"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").splitlines()[-5:]
            return "".join(f"\n  {line}" for line in lines)
        return ""


def serve(handlers: dict[str, Any]) -> None:
    """The worker's main loop: answers requests until the other side goes away. Pipe numbers come from the command line."""
    receive = Connection(int(sys.argv[1]), writable=False)
    send = Connection(int(sys.argv[2]), readable=False)
    while True:
        try:
            command, arguments = receive.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (False, handlers[command](**arguments))
        except Exception as error:  # noqa: BLE001 - every failure travels to the parent as a value
            answer = (True, _portable(error))
        send.send(answer)


def _portable(error: Exception) -> Exception:
    """Gives an error that the parent can unpickle: the hub's own with their facts, others by name and text."""
    from hub.errors import HubError

    if isinstance(error, HubError):
        return error
    return CompileError(f"{type(error).__name__}: {error}")
