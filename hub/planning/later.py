"""Verification after the first answer, in a worker process, of what there was no time for before.

The worker runs at lower priority than the user's threads, and pauses while another graph is planned, because its candidates
are timed. It ends with the model and with this process. One runs at a time.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.config.options import Options
from hub.dispatch.check_new_sizes import N_TRUSTED
from hub.errors import AccuracyError, CompileError, ContractError, RunError, WorkerError
from hub.planning.chore import Chore
from hub.planning.failures import reason_of
from hub.process.children import FROM_OUTSIDE
from hub.process.family import end_family
from hub.process.forks import freed_in_forks, in_forks
from hub.process.modes import Modes
from hub.process.working import Worked
from hub.verification.endurance import MIN_CALLS
from hub.verification.inputs import DRAWN_SIZES
from hub.verification.standing import Standing
from hub.workers.candidate import Candidate
from hub.workers.limits import Limits
from hub.workers.pool import BEHIND, POOL

LIMIT_S = 120.0
"""Seconds that one step may work, or wait, before it counts as hanging. Waiting for a core does not count."""
_LOAD_LIMIT_S = 600.0
MAX_REFUSED = 4
"""Number of drawn size combinations that may all be unusable before the planner stops drawing."""
_LOOK_S = 0.25
"""Polling interval of the worker in seconds."""
_VERDICTS = (AccuracyError, ContractError, RunError)
_HOME = "later"

_planning = 0
_planning_lock = freed_in_forks(threading.Lock())


@contextlib.contextmanager
def planning() -> Generator[None]:
    """Pause background verification in this context, so that it takes no time from what is compiled and timed."""
    global _planning
    with _planning_lock:
        _planning += 1
    try:
        yield
    finally:
        with _planning_lock:
            _planning -= 1


@in_forks
def _plans_nothing() -> None:
    global _planning
    _planning = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of verifying one executable."""

    candidate: Candidate
    tried: tuple[str, ...] = ()
    """Kinds of inputs on which it matches eager."""
    differences: tuple[str, ...] = ()
    """Differences from eager, on unusual inputs only."""
    n_calls: int = 0
    n_sizes: int = 0
    """Number of size combinations at which it matches eager."""
    failure: AccuracyError | ContractError | RunError | None = None
    """Reason why it must not serve any more."""
    problem: str = ""
    """Reason why some or all checks could not run; it counts against no backend."""

    @property
    def is_lifted(self) -> bool:
        """Return whether the guard against unusual inputs is no longer needed."""
        return not (self.differences or self.problem or self.failure or self.candidate.report.standing.differs)

    @property
    def is_sure_of_sizes(self) -> bool:
        """Return whether enough combinations of sizes matched eager."""
        return self.n_sizes >= N_TRUSTED

    @property
    def standing(self) -> Standing:
        """Return how far the executable is verified now."""
        before = self.candidate.report.standing
        untried = before.untried if self.problem else ()
        return Standing(
            untried,
            before.differs or bool(self.differences),
            "" if self.problem else self.text,  # another process may not have the problem, and verifies the rest
            before.is_sure_of_sizes or self.is_sure_of_sizes,
        )

    @property
    def text(self) -> str:
        """Return the text that the plan records."""
        kinds = ", ".join(self.tried)
        parts = (
            f"verified after the first answer: {kinds}" if kinds else "",
            *(f"found after the first answer, calls are guarded: {text}" for text in self.differences),
            f"right at {self.n_sizes} combinations of sizes" if self.n_sizes else "",
            f"{self.n_calls} calls in a row {_endured(self.n_calls)}" if self.n_calls else "",
            f"could not be verified after the first answer: {self.problem}" if self.problem else "",
        )
        return "; ".join(filter(None, parts))


def _endured(n_calls: int) -> str:
    return "change nothing and leave nothing behind" if n_calls > MIN_CALLS else "change nothing"


class Later(Chore):
    """Verification of one plan's executables. `tell` is called with each outcome, from another thread."""

    name = "hub-later"
    turn = freed_in_forks(threading.Lock())
    join_s = 2.0

    def __init__(
        self, folder: Path, candidates: Sequence[Candidate], threads: int, modes: Modes, options: Options, limits: Limits
    ) -> None:
        """Prepare to verify candidates on the sample in `folder`, which is removed at the end."""
        super().__init__()
        self._folder, self._candidates = folder, tuple(candidates)
        self._facts: dict[str, Any] = {"folder": str(folder), "threads": threads, "modes": modes, "options": options}
        self._limits = limits
        self._tell: Callable[[Outcome], object] = lambda _: None

    def start(self, tell: Callable[[Outcome], object]) -> None:
        """Start the thread, and return at once."""
        self._tell = tell
        self._thread.start()

    def work(self) -> None:
        """Verify the executables one after the other, and report each outcome."""
        for candidate in self._candidates:
            if self._is_stopped:
                return
            outcome = self._outcome(candidate)
            if not self._is_stopped:
                self._tell(outcome)

    def clean_up(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _outcome(self, candidate: Candidate) -> Outcome:
        name, backend = candidate.name, candidate.backend
        tried: list[str] = []
        differences: list[str] = []
        try:
            self._start_worker()
            self._ask("verify_at_leisure", candidate=candidate)
            for kind in candidate.report.standing.untried:
                if not self._ask("prepare_kind", kind=kind):
                    continue
                text = self._ask("compare_kind", is_plugins=True, name=name, backend=backend, kind=kind)
                if text is not None:
                    (differences if text else tried).append(text or kind)
            n_calls = self._ask("endure", is_plugins=True, name=name, backend=backend)
            n_sizes = 0 if candidate.report.standing.is_sure_of_sizes else self._tried_sizes(name, backend)
            return Outcome(candidate, tuple(tried), tuple(differences), n_calls, n_sizes)
        except _VERDICTS as error:
            if error.is_device_full:  # by others, too
                return Outcome(candidate, tuple(tried), tuple(differences), problem=reason_of(error))
            error.backend, error.cluster = error.backend or backend, error.cluster or name
            return Outcome(candidate, tuple(tried), tuple(differences), failure=error)
        except Exception as error:  # noqa: BLE001 - an error of the hub's own must not count against a backend either
            return Outcome(candidate, tuple(tried), tuple(differences), problem=reason_of(error))

    def _tried_sizes(self, name: str, backend: str) -> int:
        """Return at how many combinations of sizes it matches eager; 0 if it accepts one combination only."""
        n_right = 0
        for n_asked, kind in enumerate(DRAWN_SIZES):
            if n_right >= N_TRUSTED or (n_right == 0 and n_asked >= MAX_REFUSED):
                break
            if self._ask("prepare_kind", kind=kind.name):
                text = self._ask("compare_kind", is_plugins=True, name=name, backend=backend, kind=kind.name)
                n_right += text == ""
        return n_right

    def _start_worker(self) -> None:
        if self._worker is not None and self._worker.is_alive:
            return
        self._end_worker()
        worker = (POOL if POOL.is_started else BEHIND).lend(_HOME, self._limits)
        with self._lock:  # not before: a finalizer that stops this would wait in the user's thread until the worker starts
            if not self._is_stopped:
                self._worker = worker
        if self._worker is not worker:
            worker.kill()
            raise WorkerError("the model no longer exists")
        self._ask("step_behind")
        self._ask("load", is_plugins=False, **self._facts)

    def _ask(self, command: str, *, is_plugins: bool = False, **facts: Any) -> Any:
        """Send a command to the worker, and return its result.

        Raises RunError if an executable ends the worker or hangs in it, and CompileError for everything else.
        """
        while _planning and not self._is_stopped:
            time.sleep(_LOOK_S)
        worker = self._worker
        assert worker is not None, "it was started"
        worked = Worked(worker.pid)
        worker.post(command, **facts)
        while not worker.is_ready(_LOOK_S):
            if reason := worker.excess():
                end_family(worker.pid)
                raise CompileError(reason)
            worked.tick()
            limit_s = LIMIT_S if is_plugins else _LOAD_LIMIT_S
            if worked.seconds > limit_s:
                end_family(worker.pid)
                text = f"no answer within {limit_s:.0f} s to `{command}`, after the first answer"
                raise (RunError if is_plugins else CompileError)(text)
        try:
            return worker.result(_LOAD_LIMIT_S)
        except CompileError as error:
            if not is_plugins or worker.is_alive or worker.exit_status in FROM_OUTSIDE or self._is_stopped:
                raise
            raise RunError(f"after the first answer: {error.message}") from error
