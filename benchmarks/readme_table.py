"""Print the README's table from the results of `make bench`: a line per run, with intervals, ties, and seconds to the plan.

Run it with `python -m benchmarks.readme_table [FOLDER]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hub.bench.contenders import DIRECT, EAGER, FROZEN, HUB
from hub.bench.result import Benchmark, Interval
from hub.bench.score import geometric_mean
from hub.bench.summary import INDUCTOR, fastest, find, is_library, label, speed_against, timed
from hub.bench.sweep import runs_in

RESULTS = Path(__file__).parent / "results"
HEADERS = (
    *("model", "eager", "best library", "`torch.compile`", "`hub.compile`", "frozen"),
    *("`hub.compile` against the best library", "ready (Inductor)", "plan"),
)


def rows(runs: Sequence[Benchmark]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each run: milliseconds per call, the ratio with its 95 % interval, seconds."""
    for run in runs:
        best = best_library(run)
        yield (
            label(run),
            milliseconds(run, EAGER),
            f"{milliseconds(run, best)} ({best})",
            milliseconds(run, HUB),
            milliseconds(run, DIRECT),
            milliseconds(run, FROZEN),
            verdict(speed_against(run, DIRECT, best)),
            f"{seconds(run, HUB)} ({seconds(run, INDUCTOR)})",
            plan(run),
        )


def best_library(run: Benchmark) -> str:
    """Return the name of the fastest library; eager if none ran."""
    return fastest(run, is_library) or EAGER


def verdict(speed: Interval | None) -> str:
    """Return a ratio in words: a tie if its interval contains 1."""
    if speed is None:
        return "-"
    word = "tie" if speed.low <= 1 <= speed.high else "faster" if speed.low > 1 else "slower"
    return f"{speed.median:.2f} [{speed.low:.2f}, {speed.high:.2f}], {word}"


def milliseconds(run: Benchmark, name: str) -> str:
    """Return the median milliseconds of a call to three digits; "fails" if there are none."""
    one = timed(run, name)
    return f"{1e3 * one.call_s.median:#.3g}".rstrip(".") if one is not None and one.call_s is not None else "fails"


def seconds(run: Benchmark, name: str) -> str:
    """Return the seconds until a contender reached its final speed, including compilation."""
    one = find(run, name)
    return f"{one.first_call_s:.0f} s" if one is not None and one.first_call_s is not None else "-"


def plan(run: Benchmark) -> str:
    """Return the backends of the hub's plan."""
    one = find(run, HUB)
    return "-" if one is None else " + ".join(one.backends)


def main() -> None:
    """Print the table, and the facts that all runs share."""
    runs = runs_in(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
    for cells in (HEADERS, ("---",) * len(HEADERS), *rows(runs)):
        print(f"| {' | '.join(cells)} |")
    print(f"\n{len(runs)} runs")
    for way in (HUB, DIRECT, FROZEN):
        speeds = [found.median for run in runs if (found := speed_against(run, way, best_library(run))) is not None]
        print(f"{way} against the best library: geometric mean {geometric_mean(speeds)}")
    print("commits", sorted({run.machine.commit for run in runs}), "on", sorted({run.machine.cpu for run in runs}))


if __name__ == "__main__":
    main()
