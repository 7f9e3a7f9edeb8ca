"""A benchmark as text."""

from __future__ import annotations

from hub.bench.bars import ISOLATION_SHARE, VERIFICATION_SHARE
from hub.bench.result import Benchmark, Interval, Result
from hub.report.columns import columns
from hub.report.numbers import count, duration

HEADERS = ("contender", "one call", "95 % interval", "to best", "95 % interval of it", "error", "first call", "memory")


def benchmark_text(run: Benchmark) -> str:
    """Return the whole report: what ran where, the table, failures with their reasons, and the hub against the others."""
    timed = [one for one in run.results if one.call_s is not None]
    notes = [f"{one.name} ran {one.note}" for one in run.results if one.note]
    failed = [f"{one.name} failed: {one.failure}" for one in run.results if one.failure]
    asides = [line for line in map(_aside, run.results) if line]
    sections = (
        _heading(run),
        columns(HEADERS, [_cells(one) for one in timed], right=frozenset(HEADERS[1:])) if timed else [],
        notes,
        asides,
        _shares(run),
        failed,
        _verdict(run),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _heading(run: Benchmark) -> list[str]:
    machine = run.machine
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    return [
        f"{run.model}: {', '.join(run.inputs) or 'no inputs'}",
        f"{count(run.threads, 'thread')} on {machine.cores} cores of {machine.cpu}, load {machine.load:.1f} at the start",
        f"Python {machine.python}, {libraries}",
        f"{run.rounds} rounds of blocks of {run.block_s:g} s, {run.date}",
    ]


def _cells(one: Result) -> tuple[str, ...]:
    assert one.call_s is not None
    return (
        one.name,
        duration(one.call_s.median),
        f"{duration(one.call_s.low)} to {duration(one.call_s.high)}",
        "-" if one.to_best is None else f"{one.to_best.median:.2f}x",
        "-" if one.to_best is None else _ratio_range(one.to_best),
        "-" if one.relative_error is None else f"{one.relative_error:.0e}",
        duration(one.first_call_s),
        "-" if one.peak_bytes is None else f"{one.peak_bytes / 2**20:.0f} MiB",
    )


def _aside(one: Result) -> str:
    """Return a remark on a contender that was not timed and did not fail."""
    if one.failure or one.call_s is not None:
        return ""
    if one.same_as:
        return f"{one.name} runs the same plan as {one.same_as}, which has nothing on that backend"
    return f"{one.name} took {duration(one.first_call_s)} to its first result"


def _shares(run: Benchmark) -> list[str]:
    """Return what isolation and verification cost a cold compilation, with the goals for them."""
    isolation, verification = run.isolation_share, run.verification_share
    lines: list[str] = []
    if isolation is not None:
        lines.append(f"worker processes add {_next_to_goal(isolation, ISOLATION_SHARE)} to a cold compilation")
    if verification is not None:
        lines.append(f"verification takes {_next_to_goal(verification, VERIFICATION_SHARE)} of a cold compilation")
    return lines


def _next_to_goal(share: float, most: float) -> str:
    return f"{share:.1%} ({'met' if share <= most else 'missed'}: at most {most:.0%})"


def _verdict(run: Benchmark) -> list[str]:
    if run.hub_to_others is None:
        return []
    found = f"{run.hub_to_others.median:.3f}x the time of {run.best_other}"
    return [f"hub takes {found}, the best of the others (95 % interval {_ratio_range(run.hub_to_others, 3)})"]


def _ratio_range(interval: Interval, digits: int = 2) -> str:
    return f"{interval.low:.{digits}f}x to {interval.high:.{digits}f}x"
