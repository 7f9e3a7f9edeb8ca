"""Cases run in processes of their own, even if those die, and a judgement of what was observed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile.driver import DIRTY
from tests.hostile.faults import STEPS, Fault

DRIVER = Path(__file__).with_name("driver.py")
PLUGINS = ("hostile", "decent")
CASE_LIMIT_S = 300.0
"""Seconds after which a case counts as hanging. The slowest hang twice until their limit, on a machine with other work."""
END_LIMIT_S = 20.0
"""Seconds that a process may take to end after its last case."""
GRACE_S = 5.0
"""Seconds after which no process that a case started may be left."""
MEMORY_LIMIT_GB = 1.5
OUTPUT_LIMIT_MB = 32
BUDGET_S = 6.0
"""Budget for measuring: more than the limit of faults that hang, so that the limit stops them."""
_POLL_S = 0.1


@dataclass(frozen=True)
class Case:
    """One fault in one model under one tuning mode."""

    fault: Fault
    model: str
    tune: str
    saves: bool = False
    backends: tuple[str, ...] = ("hostile",)
    """The only backends that may bid; if plans are measured, a decent one competes, else there would be no choice."""
    again: bool = True
    """True if the model is compiled a second time in the same process."""

    def __str__(self) -> str:
        return f"{self.fault.name} in {self.model}, tune={self.tune}{', saving' if self.saves else ''}"


@dataclass
class Outcome:
    """The outcome of one case."""

    case: Case
    facts: dict[str, Any] = field(default_factory=dict)
    """What the user's process observed; empty if it did not survive."""
    ending: str = ""
    """How the process ended before the case did; "" if it did not."""
    user: int = 0
    """Process id of the user's process."""
    left: list[str] = field(default_factory=list)
    """Processes that were still running after the user's had ended."""


def cases_of(faults: Iterable[Fault], model: str, tune: str, *, saves: bool = False, **how: Any) -> list[Case]:
    """Return a case for each fault that exists for this model and tuning mode."""
    fitting = (fault for fault in faults if model in fault.models and tune in fault.tunes)
    return [Case(fault, model, tune, saves, **how) for fault in fitting if fault.saves in (None, saves)]


def run_cases(
    cases: Sequence[Case], folder: Path, install: Callable[[str, str], None] | None, cache: Path | None = None
) -> list[Outcome]:
    """Run cases in as few processes as survive them. `folder` is the test's own, as `install_plugin` uses it.

    Each case has a cache of its own; those in the folder `cache`, if given, serve later processes too. `install` is None if
    the plugin is already installed.
    """
    if install is not None:
        for name in PLUGINS:
            install(name, DRIVER.with_name(f"hub_{name}.py").read_text())
    outcomes: list[Outcome] = []
    while len(outcomes) < len(cases):
        batch = cases[len(outcomes) :]
        # A plugin declares only once per process whether its executables can be saved.
        batch = batch[: next((n for n, case in enumerate(batch) if case.saves != batch[0].saves), len(batch))]
        outcomes += _Process(batch, folder, len(outcomes), cache).outcomes()
    return outcomes


class _Process:
    """One user's process and the cases that it ran, including the one that ended it."""

    def __init__(self, cases: Sequence[Case], folder: Path, start: int, cache: Path | None) -> None:
        self.cases = cases
        self.folder = folder / f"run{start}-{time.monotonic_ns()}"
        self.folder.mkdir()
        self.site = folder / "site"
        self.cache = cache
        self.results = self.folder / "results.jsonl"
        self.results.touch()

    def outcomes(self) -> list[Outcome]:
        orders = self.site / "hostile.json"
        tasks = [self._task(number, case) for number, case in enumerate(self.cases)]
        orders.write_text(json.dumps({**tasks[0]["orders"], "user": 0}))
        task = self.folder / "task.json"
        task.write_text(json.dumps({"results": str(self.results), "plugin_orders": str(orders), "cases": tasks}))
        log = self.folder / "log.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", str(DRIVER), str(task)],
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        ending = self._watch(process)
        found = self._read(ending, process)
        self._find_left(found)
        for path in self.folder.rglob("*"):
            if path.is_file() and path.stat().st_blocks * 512 > 1 << 24:
                path.unlink()  # pytest keeps the folders
        return found

    def _task(self, number: int, case: Case) -> dict[str, Any]:
        scratch = self.folder / f"scratch{number}"
        scratch.mkdir()
        cache = (self.cache or self.folder) / f"{case.fault.name}-{case.model}-{case.tune}"
        options = {
            "backends": [*case.backends, *(["decent"] if case.tune == "fast" else [])],
            "tune": case.tune,
            **({"budget_s": BUDGET_S} if case.tune == "fast" else {}),
            **case.fault.options,
        }
        return {
            "model": case.model,
            "calls": case.fault.calls,
            "again": case.again,
            "options": options,
            "variables": {"HUB_CACHE_DIR": str(cache), "HUB_WORKERS_COMPILE_LIMIT_S": str(case.fault.limit_s)},
            "orders": {
                "fault": case.fault.name,
                "journal": str(self.folder / f"journal{number}.txt"),
                "scratch": str(scratch),
                "saveable": case.saves,
            },
        }

    def _environment(self) -> dict[str, str]:
        path = [str(self.site), *filter(None, sys.path)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HUB_")}
        more = {
            "PYTHONPATH": os.pathsep.join(path),
            "HUB_PROGRESS": "off",
            "HUB_BACKGROUND": "0",
            "HUB_START": "wait",
            "HUB_CACHE_DIR": str(self.folder / "cache"),
            "HUB_WORKERS_MEMORY_LIMIT_GB": str(MEMORY_LIMIT_GB),
            "HUB_WORKERS_OUTPUT_LIMIT_MB": str(OUTPUT_LIMIT_MB),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        return {**kept, **more}

    def _watch(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for the process to end; kill it if a case takes too long. Return how it ended, "" for a normal end."""
        size, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(_POLL_S)
            if (now := self.results.stat().st_size) != size:
                size, since = now, time.monotonic()
            limit_s = END_LIMIT_S if b'"done"' in self.results.read_bytes() else CASE_LIMIT_S
            if time.monotonic() - since > limit_s:
                kill_tree(process.pid)
                process.wait()
                return f"it hung for {limit_s:.0f} s"
        code = process.returncode
        if code in (0, DIRTY):
            return ""
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def _read(self, ending: str, process: subprocess.Popen[bytes]) -> list[Outcome]:
        """Return the outcomes so far, at least one."""
        lines = [json.loads(line) for line in self.results.read_text().splitlines()]
        if strangers := {line["pid"] for line in lines} - {process.pid}:
            ending = f"processes {strangers} went on as the user's"
        answers = {line["number"]: line["facts"] for line in lines if "number" in line and line["pid"] == process.pid}
        begun = max((line["begin"] for line in lines if "begin" in line), default=0)
        found = [Outcome(case, answers.get(number, {}), "", process.pid) for number, case in enumerate(self.cases)]
        found = found[: begun + 1]
        if not found[-1].facts or ending:
            found[-1].ending = f"{ending or 'it ended without an answer'}{self._log_tail()}"
        return found

    def _log_tail(self) -> str:
        lines = (self.folder / "log.txt").read_text(errors="replace")[-2000:].splitlines()[-6:]
        return "".join(f"\n      {line[:200]}" for line in lines)

    def _find_left(self, found: Sequence[Outcome]) -> None:
        """Add to each outcome the processes of its journal that still run, and kill them."""
        journals = {number: self.folder / f"journal{number}.txt" for number in range(len(found))}
        noted = {number: read_journal(path) for number, path in journals.items()}
        deadline = time.monotonic() + GRACE_S
        while any(is_running(pid) for lines in noted.values() for _, pid in lines) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for number, lines in noted.items():
            for word, pid in dict.fromkeys(lines):
                if is_running(pid):
                    found[number].left.append(f"{word} in process {pid}")
                    kill_tree(pid)


def read_journal(path: Path) -> list[tuple[str, int]]:
    """Return the steps of a journal with the processes that took them, each once."""
    if not path.exists():
        return []
    lines = (line.split() for line in path.read_text().splitlines())
    return list(dict.fromkeys((words[0], int(words[1])) for words in lines if len(words) == 2))


def is_running(pid: int) -> bool:
    """Return True for a process that exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants."""
    for found in (*_descendants(pid), pid):
        try:
            os.kill(found, signal.SIGKILL)
        except OSError:
            continue


def _descendants(pid: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _descendants(child)
        yield child


# --- Judging ----------------------------------------------------------------------------------------------------------

AGAIN = "second compilation"


def problems(outcomes: Iterable[Outcome]) -> list[str]:
    """Return every broken promise, one per line, with its case."""
    return [f"{outcome.case}: {text}" for outcome in outcomes for text in problems_of(outcome)]


def problems_of(outcome: Outcome) -> Iterator[str]:
    """Yield every broken promise of one case."""
    if outcome.ending:
        yield f"the user's process did not survive: {outcome.ending}"
    yield from (f"left running: {text}" for text in outcome.left)
    if "raised" in outcome.facts:
        yield f"it reached the user: {outcome.facts['raised']}"
    if "wrong" not in outcome.facts:
        return
    yield from _problems_of_run(outcome, outcome.facts, "first compilation")
    if "again" in outcome.facts:
        yield from _problems_of_run(outcome, outcome.facts["again"], AGAIN)
        yield from tried_again(outcome, outcome.facts["again"], AGAIN)


def _problems_of_run(outcome: Outcome, facts: dict[str, Any], which: str) -> Iterator[str]:
    fault = outcome.case.fault
    for key in ("wrong", "changed", "harmed"):
        yield from (f"{which}: {key}: {text}" for text in facts[key])
    if fault.step == "probe" and "probe" not in {step for step, _ in _steps(facts["journal"])}:
        return  # no backend was probed, so nothing went wrong: only listing backends probes
    is_later = fault.act.startswith("later_")
    is_spared = not fault.is_refused and fault.step not in {step for step, _ in _steps(facts["journal"])}
    if which == AGAIN and not fault.is_remembered and (is_later or is_spared):
        return  # a saved executable was loaded, or there were too few calls: nothing went wrong this time
    if fault.says and not is_named(fault, facts["events"]):
        said = [f"{event['stage']}: {event['message'].splitlines()[0]}" for event in facts["events"]]
        yield f"{which}: the report does not say {fault.says!r}, only {said}"
    if fault.is_refused and "hostile" in facts["backends"] and not is_later:
        yield f"{which}: the plugin is part of the plan"
    here = {step for step, pid in _steps(facts["journal"]) if pid == outcome.user}
    if fault.is_refused and fault.step in here and not is_later and fault.step not in MUST_BE_HERE:
        yield f"{which}: {fault.step} happened in the user's process"


MUST_BE_HERE = ("register", "create", "import")
"""Steps that also run in the user's process, after a child process has survived them, unless they failed there."""


def is_named(fault: Fault, events: Iterable[dict[str, Any]]) -> bool:
    """Return True if an event about the plugin says what happened."""
    return any(is_said(fault, event["message"]) for event in events if event["backend"] == "hostile")


def is_said(fault: Fault, text: str) -> bool:
    """Return True if a text says what happened."""
    return re.search(fault.says, text, flags=re.IGNORECASE) is not None


def tried_again(outcome: Outcome, facts: dict[str, Any], which: str) -> Iterator[str]:
    """Yield a line if a candidate that failed was tried again."""
    again = {step for step, _ in _steps(facts["journal"])}
    if outcome.case.fault.is_remembered and outcome.case.fault.step in again:
        yield f"{which}: {outcome.case.fault.step} was tried again"


def _steps(journal: Iterable[str]) -> Iterator[tuple[str, int]]:
    for line in journal:
        words = line.split()
        if len(words) == 2 and words[0] in STEPS:
            yield words[0], int(words[1])
