"""A summary of many benchmarks as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hub.bench.bars import bars
from hub.bench.contenders import EAGER, HUB, backend_left_out
from hub.bench.result import Benchmark
from hub.bench.summary import AT_PAR, Compiling, Summary, find, label, names_in, timed
from hub.report.numbers import count

_MARKS = {True: "met", False: "**missed**", None: "not measured"}


def summary_text(runs: Sequence[Benchmark], summary: Summary) -> str:
    """Return the whole page: what ran where, the goals, and a table for each question. There must be at least one run."""
    sections = (
        _heading(runs),
        ["## Goals", "", *_table(("goal", "found", ""), _goals(summary))],
        ["## The hub's speed", "", *_comparisons(summary)],
        ["## Milliseconds a call", "", *_times(runs)],
        ["## Without one backend", "", *_ablations(summary)],
        ["## Seconds to the first result", "", *_compiling(summary)],
        ["## GraphNet's error-aware score ES(t)", "", *_scores(summary)],
        ["## Failures", "", *_failures(summary)],
    )
    return "\n".join("\n".join((*lines, "")) for lines in sections)


def goals_text(summary: Summary) -> list[str]:
    """Return a line for each goal, for a terminal."""
    return [f"{verdict.strip('*')}: {goal}: {found}" for goal, found, verdict in _goals(summary)]


def _goals(summary: Summary) -> list[tuple[str, str, str]]:
    return [(one.text, one.found, _MARKS[one.is_met]) for one in bars(summary)]


def _heading(runs: Sequence[Benchmark]) -> list[str]:
    machine = runs[0].machine
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    options = ", ".join(f"{key}={value}" for key, value in runs[0].options.items()) or "defaults"
    rounds = sorted({run.rounds for run in runs})
    commits = ", ".join(sorted({run.machine.commit for run in runs})) or "a version without a commit"
    return [
        "# Benchmark",
        "",
        f"{len(runs)} runs, {min(run.date for run in runs)} to {max(run.date for run in runs)}; {machine.cpu},",
        f"{count(runs[0].threads, 'thread')} on {machine.cores} cores; Python {machine.python}, {libraries};",
        f"the hub at {commits} with {options}; {' or '.join(map(str, rounds))} rounds of blocks of {runs[0].block_s:g} s.",
        "The other files in this folder hold the rest.",
    ]


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(headers), _line(["---"] * len(headers)), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _comparisons(summary: Summary) -> list[str]:
    rows = [
        (one.who, one.against, _number(one.geomean, 3), str(len(one.speeds)), str(len(one.below)), _listed(one.below))
        for one in summary.comparisons
        if one.speeds
    ]
    return _table(("who", "against", "geometric mean", "runs", f"below {AT_PAR}", "which"), rows)


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:.3f}" for key, value in values.items()) or "-"


def _times(runs: Sequence[Benchmark]) -> list[str]:
    names = names_in(runs, lambda name: not backend_left_out(name))
    timed_names = [name for name in names if any(timed(run, name) for run in runs)]
    headers = ("run", *timed_names, "hub / best peer", "the hub's plan")
    return _table(headers, [_time_row(run, timed_names) for run in runs])


def _time_row(run: Benchmark, names: Sequence[str]) -> list[str]:
    hub, ratio = find(run, HUB), run.hub_to_others
    against = "-" if ratio is None else f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] ({run.best_other})"
    return [label(run), *(_milliseconds(run, name) for name in names), against, hub.note if hub else "-"]


def _milliseconds(run: Benchmark, name: str) -> str:
    one = find(run, name)
    if one is None:
        return "-"
    return f"{one.call_s.median * 1e3:.2f}" if one.call_s else "failed"


def _ablations(summary: Summary) -> list[str]:
    if not summary.ablations:
        return ["Not measured; `--ablation` does."]
    keys = [key for key in summary.compiling if any(key in one.slowdowns for one in summary.ablations)]
    headers = ("run", *(one.backend for one in summary.ablations))
    rows = [(key, *(_number(one.slowdowns.get(key), 3) for one in summary.ablations)) for key in keys]
    means = ("geometric mean", *(_number(one.geomean, 3) for one in summary.ablations))
    return [
        "Time without a backend relative to that with all; 1 where the plan does not use it.",
        "",
        *_table(headers, [*rows, means]),
    ]


def _compiling(summary: Summary) -> list[str]:
    hubs = ("hub", "second process", "tuned", "off", "off, without workers", "verifying")
    headers = ("run", "inductor", *hubs, "speed, of the tuned hub's")
    return _table(headers, [(key, *_compile_cells(one)) for key, one in summary.compiling.items()])


def _compile_cells(one: Compiling) -> list[str]:
    seconds = (
        one.inductor_s,
        one.hub_s,
        one.warm_s,
        one.tuned_s,
        one.isolated_s,
        one.inline_s,
        one.verify_s,
    )
    return [*(_number(value, 1) for value in seconds), _number(one.share_of_tuned, 3)]


def _scores(summary: Summary) -> list[str]:
    ticks = sorted({t for curve in summary.curves for t in curve.error_aware})
    rows = [(curve.name, *(_number(curve.error_aware.get(t), 2) for t in ticks)) for curve in summary.curves]
    note = f"Speed over {EAGER}, a failure or a wrong result counting as 0.1 until t forgives it."
    return [note, "", *_table(("contender", *map(str, ticks)), rows)]


def _failures(summary: Summary) -> list[str]:
    lines = [
        f"- {key}, {name}: {reason.splitlines()[0] if reason else '-'}"
        for key, failed in summary.failures.items()
        for name, reason in failed.items()
    ]
    return lines or ["None."]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
