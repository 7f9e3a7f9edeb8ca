"""Worker processes that outlive one planning session: starting one takes seconds, mostly for importing PyTorch."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.config.settings import VARIABLES
from hub.errors import PluginError, WorkerError
from hub.process.environment import environment_now
from hub.process.forks import freed_in_forks, in_forks
from hub.process.scratch import scratch_folder
from hub.workers.channel import Worker
from hub.workers.forkserver import ForkServer
from hub.workers.limits import Limits

MODULE = "hub.workers.worker"
MAX_RESTING = 4
"""Maximum number of idle workers kept for later sessions: each holds about 300 MB."""
REST_S = 60.0
"""Seconds without a request after which an idle worker ends by itself."""
_REST_LIMIT_S = 30.0
_CAN_FORK = sys.platform == "linux"
"""Whether workers can be forked. Other systems do not report how many threads a process has, and their libraries do not
survive a fork."""
_READ_AT_START = (
    *("PYTHON", "LD_", "LC_", "LANG", "TZ", "HOME", "PATH", "TMPDIR", "XDG_", "GLIBC_", "MALLOC_", "VIRTUAL_ENV"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "DNNL_", "ONEDNN_", "NPY_"),
    *("TORCH", "PYTORCH_", "CUDA_", "HIP_"),
)
"""Prefixes of environment variables that Python, PyTorch and its libraries read when they start."""
_WRITTEN_BY_PYTORCH = "TORCHINDUCTOR_CACHE_DIR"
"""Variable that Inductor sets at its import, if it is not set, and reads when needed."""


@dataclass(frozen=True, slots=True)
class _Resting:
    home: str
    surroundings: str
    worker: Worker


class Pool:
    """A thread-safe pool of workers, by the name under which they last worked: a backend's library is imported once."""

    def __init__(self, *, is_behind: bool = False) -> None:
        """Create an empty pool. With `is_behind`, its workers run behind the user's own threads."""
        self._is_behind = is_behind
        self._resting: list[_Resting] = []
        self._server: tuple[str, ForkServer] | None = None
        """The fork server for new workers, with the environment that it was started in."""
        self._retired: list[ForkServer] = []
        """Servers whose workers may still be in use. Each ends by itself after it has had none for a while."""
        self._lock = freed_in_forks(threading.Lock())
        self._folder: Path | None = None
        self._started = 0
        self._owner = os.getpid()

    def lend(self, home: str, limits: Limits) -> Worker:
        """Return an idle worker that last worked as `home`, else a new one. Raise WorkerError if none can be started."""
        wanted = home, surroundings()
        while (worker := self._taken(wanted)) is not None:
            if _is_free(worker):  # outside the lock: others need not wait until it has freed what it held
                worker.limits, worker.saving = limits, None
                return worker
            worker.kill()
        with self._lock:
            try:
                log = self._next_log()
            except OSError as error:
                raise WorkerError(f"a worker process cannot be started: {error}") from error
            server = self._forking()
        if server is not None:
            with contextlib.suppress(WorkerError):  # it died, or has threads: workers can be spawned without it
                return Worker(MODULE, log, limits=limits, server=server)
        return Worker(MODULE, log, limits=limits, is_behind=self._is_behind)

    def _taken(self, wanted: tuple[str, str]) -> Worker | None:
        """Return an idle worker with this name and surroundings, which is no longer idle then; None if there is none."""
        with self._lock:
            found = next((item for item in self._resting if (item.home, item.surroundings) == wanted), None)
            if found is not None:
                self._resting.remove(found)
        return None if found is None else found.worker

    @property
    def is_started(self) -> bool:
        """Return whether a worker is available within milliseconds."""
        with self._lock:
            return bool(self._resting) or (self._server is not None and self._server[1].can_fork)

    def drop_unused(self) -> None:
        """End the fork server if it has forked no worker: it may spend more seconds on importing PyTorch."""
        with self._lock:
            if self._server is None or self._server[1].n_forked or os.getpid() != self._owner:
                return
            _, server = self._server
            self._server = None
        server.close()

    def prepare(self) -> None:
        """Start what the first worker will need, without waiting for it. Raise nothing."""
        wanted = surroundings()
        with self._lock:
            if not any(item.surroundings == wanted and item.worker.is_alive for item in self._resting):
                self._forking()

    def take_back(self, home: str, worker: Worker) -> None:
        """Make a worker free what it holds, and keep it idle. The next `lend` waits for that, and notices if it died."""
        try:
            worker.post("rest", idle_s=REST_S)
        except PluginError:
            worker.kill()
            return
        with self._lock:
            self._resting.append(_Resting(home, surroundings(), worker))
            surplus = [self._resting.pop(0) for _ in range(len(self._resting) - MAX_RESTING)]
        for item in surplus:
            item.worker.kill()

    def close(self) -> None:
        """End all idle workers. Do nothing in a fork of the process that started them."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            resting, self._resting = self._resting, []
            folder, self._folder = self._folder, None
            servers = self._take_servers()
        for item in resting:
            item.worker.kill()
        for server in servers:
            server.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def let_go(self) -> None:
        """Forget the workers and the servers of the parent, which end with it. Called in a fork."""
        for server in self._take_servers():
            server.close()
        self._resting, self._folder = [], None
        self._owner = os.getpid()

    def _take_servers(self) -> list[ForkServer]:
        """Return all servers, and keep none of them."""
        servers = [*self._retired, *((self._server[1],) if self._server is not None else ())]
        self._retired, self._server = [], None
        return servers

    def _forking(self) -> ForkServer | None:
        """Return the fork server, started in this environment; None if this system cannot have one.

        A server that is no longer usable is not ended: that would end the workers of every session.
        """
        if not _CAN_FORK:
            return None
        started_in = _read_at_start()
        if self._server is not None and (self._server[0] != started_in or not self._server[1].can_fork):
            servers = self._take_servers()
            self._retired = [server for server in servers if server.is_alive]
            for server in servers:
                if not server.is_alive:
                    server.close()
        if self._server is None:
            try:
                self._server = started_in, ForkServer(MODULE, self._next_log(), is_behind=self._is_behind)
            except (WorkerError, OSError):
                return None
        return self._server[1]

    def _next_log(self) -> Path:
        self._started += 1
        return self._logs() / f"{self._started}.log"

    def _logs(self) -> Path:
        if self._folder is None or not self._folder.exists():
            self._folder = scratch_folder("workers")
        return self._folder


def _is_free(worker: Worker) -> bool:
    """Wait until a worker has freed what it held. Return False if it has died, or cannot."""
    try:
        worker.result(_REST_LIMIT_S)
        os.truncate(worker.log, 0)
    except (PluginError, OSError):
        return False
    return worker.is_alive


def surroundings() -> str:
    """Return, as text, the conditions of a new worker: an idle worker fits only if it was started under the same ones."""
    return _text({"inherited": _inherited(), "path": sys.path, "folder": _folder()})


def _inherited() -> str:
    """Return, as text, what a new process would inherit.

    The hub's own settings are left out, since workers receive them with each request. So are the variables that pytest sets
    for each test.
    """
    variables = environment_now().items()
    inherited = {name: value for name, value in variables if name not in VARIABLES and not name.startswith("PYTEST_")}
    return _text({"environment": inherited, "process": os.getpid()})


def _read_at_start() -> str:
    """Return, as text, the variables that Python, PyTorch and its libraries read when they are imported or started.

    A worker receives all others when it is forked: a program that sets some in a loop must not start a server each time.
    """
    variables = environment_now().items()
    read = {name: value for name, value in variables if name.startswith(_READ_AT_START) and name != _WRITTEN_BY_PYTORCH}
    return _text({"environment": read, "process": os.getpid()})


def _text(parts: Mapping[str, Any]) -> str:
    return json.dumps(parts, sort_keys=True)


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""


POOL = Pool()
"""The workers of this process."""
BEHIND = Pool(is_behind=True)
"""Workers that run behind the user's threads, while the model runs."""
for _pool in (POOL, BEHIND):
    atexit.register(_pool.close)
    in_forks(_pool.let_go)
