"""Worker processes that outlive one planning session: starting one takes seconds, most of them for importing PyTorch."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from hub.cache.keys import digest_of
from hub.compilation.channel import Worker
from hub.compilation.limits import Limits
from hub.errors import PluginError
from hub.settings import KEYS

MODULE = "hub.compilation.worker"
MOST_RESTING = 4
"""Workers that are kept for later sessions: each holds some 300 MB."""
REST_S = 60.0
"""Seconds after which a worker that nobody asks for anything ends by itself."""
_REST_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Resting:
    home: str
    surroundings: str
    worker: Worker


class Pool:
    """Lends workers by what they did before, so that a backend's library is imported once. Any thread may ask."""

    def __init__(self) -> None:
        self._resting: list[_Resting] = []
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._started = 0
        self._owner = os.getpid()

    def lend(self, home: str, limits: Limits) -> Worker:
        """Gives a worker that last was `home`, else a new one. Raises WorkerError where none can be started."""
        surroundings = _surroundings()
        with self._lock:
            fitting = [item for item in self._resting if (item.home, item.surroundings) == (home, surroundings)]
            for item in fitting:
                self._resting.remove(item)
                if item.worker.is_alive:
                    item.worker.limits = limits
                    return item.worker
                item.worker.kill()
            self._started += 1
            log = self._logs() / f"{self._started}.log"
        return Worker(MODULE, log, limits=limits)

    def take_back(self, home: str, worker: Worker) -> None:
        """Lets a worker rest, after it has freed what it held; one that cannot is ended."""
        try:
            worker.ask("rest", _REST_LIMIT_S, idle_s=REST_S)
            os.truncate(worker.log, 0)
        except (PluginError, OSError):
            worker.kill()
            return
        with self._lock:
            self._resting.append(_Resting(home, _surroundings(), worker))
            surplus = [self._resting.pop(0) for _ in range(len(self._resting) - MOST_RESTING)]
        for item in surplus:
            item.worker.kill()

    def close(self) -> None:
        """Ends all resting workers. In a fork of the process that started them it does nothing."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            resting, self._resting = self._resting, []
            folder, self._folder = self._folder, None
        for item in resting:
            item.worker.kill()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _logs(self) -> Path:
        if self._folder is None or not self._folder.exists():
            self._folder = Path(tempfile.mkdtemp(prefix="hub-workers-"))
        return self._folder


def _surroundings() -> str:
    """Gives a digest of what a new process would inherit: a resting one was started under other conditions otherwise.

    The hub's own settings reach workers with each request, and so do not count; nor does what pytest writes for each test.
    """
    own = {f"HUB_{key.upper()}" for key in KEYS}
    inherited = {name: value for name, value in os.environ.items() if name not in own and not name.startswith("PYTEST_")}
    return digest_of({"environment": inherited, "path": sys.path, "folder": _folder(), "process": os.getpid()})


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""


POOL = Pool()
"""The workers of this process."""
atexit.register(POOL.close)
