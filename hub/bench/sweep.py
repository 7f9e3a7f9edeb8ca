"""The benchmark of many models: one file for each model and batch, written as soon as it is done, and a summary of all."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from hub.bench import zoo
from hub.bench.contenders import EAGER, HUB, backend_left_out
from hub.bench.machine import this_machine
from hub.bench.markdown import summary_text
from hub.bench.plot import score_figure, speedup_figure
from hub.bench.result import FORMAT, Benchmark
from hub.bench.summary import WAYS, Summary, is_library, label, names_in, relative_speed, summarize
from hub.bench.whole import ROUNDS, benchmark
from hub.errors import BenchmarkError
from hub.report.numbers import count

SUMMARY, TABLE = "summary.json", "summary.md"
SPEEDUPS, SCORES = "speedup.svg", "scores.svg"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A request for many benchmarks, and the folder for their results."""

    folder: Path
    against: tuple[str, ...]
    """Contenders in addition to the hub."""
    models: tuple[str, ...] = tuple(zoo.MODELS)
    batches: int = 2
    """Number of batch sizes of each model, 1 or 2."""
    rounds: int = ROUNDS
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options for the hub."""
    small: bool = False
    resume: bool = False
    """True skips results that already exist, from the same versions, machine and request."""


@dataclass(frozen=True, slots=True)
class Job:
    """One benchmark."""

    model: str
    batch: int

    @property
    def filename(self) -> str:
        """The name of its results file: "bert-b4.json"."""
        return f"{self.model}-b{self.batch}.json"


def sweep(wanted: Sweep, say: Callable[[str], None]) -> Summary:
    """Run the requested benchmarks, write everything, and return the summary of all files in the folder.

    `say` is called with one line about each benchmark. Raise OptionError for unknown names before anything runs.
    """
    jobs = jobs_of(wanted)
    wanted.folder.mkdir(parents=True, exist_ok=True)
    left = [job for job in jobs if not _is_done(job, wanted)]
    if len(left) < len(jobs):
        say(f"{len(jobs) - len(left)} of {count(len(jobs), 'benchmark')} done already")
    began_s = time.monotonic()
    for number, job in enumerate(left, 1):
        run = _run(job, wanted)
        write(wanted.folder / job.filename, run.to_json() + "\n")
        write_summary(wanted.folder)
        say(f"{number}/{len(left)} {label(run)}: {_outcome(run)}; {_left(time.monotonic() - began_s, number, len(left))}")
    return write_summary(wanted.folder)


def runs_of(wanted: Sweep) -> tuple[Benchmark, ...]:
    """Return the results of the requested benchmarks that are in the folder."""
    return tuple(run for job in jobs_of(wanted) if (run := read(wanted.folder / job.filename)) is not None)


def jobs_of(wanted: Sweep) -> tuple[Job, ...]:
    """Return every benchmark: all models at their own batch, then at the second. Raise OptionError for unknown names."""
    recipes = {name: zoo.recipe_of(name) for name in wanted.models}
    return tuple(
        Job(name, recipe.batches[position]) for position in range(wanted.batches) for name, recipe in recipes.items()
    )


def command_of(job: Job, wanted: Sweep) -> tuple[str, ...]:
    """Return the command that repeats one benchmark; it also determines whether a file answers this request."""
    small = ("--small",) if wanted.small else ()
    against, rounds = ",".join(wanted.against), str(wanted.rounds)
    fixed = ("--batch", str(job.batch), "--against", against, "--rounds", rounds, "--fresh", *small)
    return ("hub", "bench", job.model, *fixed, *flags_of(wanted.given))


def flags_of(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return options of the hub as command-line flags."""
    own = (part for key, value in given.items() if "." in key for part in ("--set", f"{key}={value}"))
    rest = {key: value for key, value in given.items() if "." not in key}
    return (*(part for key, value in rest.items() for part in _flag(f"--{key.removesuffix('_s')}", value)), *own)


def _flag(name: str, value: Any) -> tuple[str, ...]:
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return (name if value else name.replace("--", "--no-", 1),)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, str]", value).items()
        return tuple(part for key, backend in pairs for part in (name, f"{key}={backend}"))
    return (name, ",".join(map(str, cast("Sequence[Any]", value))) if isinstance(value, (tuple, list)) else str(value))


def _run(job: Job, wanted: Sweep) -> Benchmark:
    return benchmark(
        job.model,
        wanted.against,
        rounds=wanted.rounds,
        batch=job.batch,
        options=wanted.given,
        small=wanted.small,
        fresh=True,
        command=command_of(job, wanted),
    )


def _is_done(job: Job, wanted: Sweep) -> bool:
    """Return whether a result of the same request, sources, versions and machine exists, with the hub's own time."""
    found = read(wanted.folder / job.filename) if wanted.resume else None
    if found is None:
        return False
    here = this_machine()
    facts = ("cpu", "cores", "python", "libraries", "code")
    same = all(getattr(found.machine, fact) == getattr(here, fact) for fact in facts)
    return same and found.command == shlex.join(command_of(job, wanted))


def read(path: Path) -> Benchmark | None:
    """Return a benchmark from its file; None if there is none, or if it has another format."""
    try:
        found = Benchmark.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
    return found if found.format == FORMAT else None


def write(path: Path, text: str) -> None:
    """Write a file atomically: a run may be stopped at any time."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def runs_in(folder: Path) -> tuple[Benchmark, ...]:
    """Return every benchmark of a folder: built-in models in their order, then others by name, small batches first."""
    found = [run for path in sorted(folder.glob("*.json")) if (run := read(path)) is not None]
    order = {name: number for number, name in enumerate(zoo.MODELS)}
    return tuple(sorted(found, key=lambda run: (order.get(run.model, len(order)), run.model, run.batch or 0)))


def write_summary(folder: Path) -> Summary:
    """Write table, figures and summary of all benchmarks in a folder; return the summary. Raise BenchmarkError for none."""
    runs = runs_in(folder)
    if not runs:
        raise BenchmarkError(
            f"no results in {folder}", hint="run `hub bench --zoo` first, without stopping the first model"
        )
    summary = summarize(runs)
    write(folder / SUMMARY, summary.model_dump_json(indent=2) + "\n")
    write(folder / TABLE, summary_text(runs, summary))
    for name, figure in _figures(runs, summary):
        write(folder / name, figure)
    return summary


def _figures(runs: Sequence[Benchmark], summary: Summary) -> Iterator[tuple[str, str]]:
    names = names_in(runs, lambda name: name in WAYS or is_library(name))
    speeds = {label(run): _over_eager(run, names) for run in runs}
    yield SPEEDUPS, speedup_figure(speeds, HUB, "Speed over eager PyTorch")
    shown = [curve for curve in summary.curves if curve.name in names]
    curves = {curve.name: {str(t): value for t, value in curve.error_aware.items()} for curve in shown}
    yield SCORES, score_figure(curves, HUB, "Error-aware speed-up score ES(t) over the zoo")


def _over_eager(run: Benchmark, names: Sequence[str]) -> dict[str, float]:
    found = {name: relative_speed(run, name, EAGER) for name in names if not backend_left_out(name)}
    return {name: value for name, value in found.items() if value is not None}


def _outcome(run: Benchmark) -> str:
    failed = [one.name for one in run.results if one.failure]
    lost = f", failed: {', '.join(failed)}" if failed else ""
    if run.hub_to_others is None:
        return f"no comparison{lost}"
    return f"{1 / run.hub_to_others.median:.2f}x as fast as {run.best_other}{lost}"


def _left(spent_s: float, done: int, total: int) -> str:
    """Return the estimated remaining time, extrapolated from the time spent so far."""
    if done == total:
        return f"all done in {_hours(spent_s)}"
    return f"{_hours(spent_s)} so far, about {_hours(spent_s / done * (total - done))} left"


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{minutes} min"
        if minutes < 90
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )
