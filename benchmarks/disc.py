"""Times DISC's clusters against Inductor's and eager: memory-bound programs, at three sizes, interleaved.

DISC and Inductor both run as the hub's executables of one cluster, so Dynamo's overhead counts for neither. Compare ratios
of medians; on a shared machine the times themselves vary with the other load. Large programs are also compared with a copy:
bytes of inputs and outputs per second, relative to those that a copy moves in memory that is already allocated. Run with
`make bench-disc`, or with `python -m benchmarks.disc --rounds 15 masked_softmax`; `--dynamic` instead times one executable
with symbolic sizes against executables of 50 sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from plugin_inductor.backend import create as create_inductor

from hub.bench.machine import this_machine
from hub.plugin.backend import CompileSettings
from hub.testing.conformance.sizes import symbols_of, with_sizes
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from tests.plugin_disc.programs import FIXED_SIZES, IMAGES, PROGRAMS, Wrapped, inputs_of

RESULTS = Path(__file__).parent / "results" / "disc.json"
SIZES = ((64, 256), (256, 1024), (2048, 4096))
"""Rows and columns: within L2, about L3, beyond it."""
BLOCK_S = 0.02
"""Seconds of calls before the next contender's turn."""
COPIED = 1 << 24
"""Elements of float32 that a copy moves: more than twice the size of L3."""
DYNAMIC_SIZES = 50
STEPS: Mapping[int, tuple[int, int]] = {1: (8, 512), 2: (8, 64), 3: (2, 16)}
"""For each number of symbolic sizes, the range of multiples of 8 from which each is drawn; more sizes use that for
three."""
SEED = 7

Contenders = Mapping[str, Callable[[], object]]


def main() -> None:
    """Print one line per program and size, and the geometric means, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes against fixed ones, instead of Inductor")
    parser.add_argument("--inductor-cache", action="store_true", help="faster, and Inductor's compile times mean nothing")
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    from hub.torch_private import inductor_config

    inductor_config.force_disable_caches = not chosen.inductor_cache
    section = "dynamic" if chosen.dynamic else "fixed"
    command = f"python -m benchmarks.disc --threads {chosen.threads} --rounds {chosen.rounds}"
    command += " --dynamic" if chosen.dynamic else ""
    facts: dict[str, object] = {"command": command, "machine": this_machine().model_dump(mode="json")}
    figures = _dynamic_figures(chosen) if chosen.dynamic else _fixed_figures(chosen)
    before: dict[str, Any] = json.loads(chosen.output.read_text()) if chosen.output.is_file() else {}
    kept = {name: before[name] for name in ("fixed", "dynamic") if name in before and name != section}
    chosen.output.write_text(json.dumps({**kept, section: facts | figures}, indent=2) + "\n")


# --- Fixed sizes ------------------------------------------------------------------------------------------------------


def _fixed_figures(chosen: argparse.Namespace) -> dict[str, object]:
    copy_bytes_per_s = copied_bytes_per_s()
    print(f"a copy moves {copy_bytes_per_s / 1e9:.1f} GB/s")
    runs: list[dict[str, Any]] = []
    for name in chosen.programs:
        for size in SIZES:
            run = timed(name, size, chosen.threads, chosen.rounds)
            run["of_copy"] = run["bytes"] / run["call_s"]["disc"] / copy_bytes_per_s
            runs.append(run)
            print(_shown(run), flush=True)
    means = {other: _mean(_ratio(run, other) for run in runs) for other in ("inductor", "eager")}
    compile_s = {label: statistics.median(run["compile_s"][label] for run in runs) for label in ("disc", "inductor")}
    for other, mean in means.items():
        print(f"geometric mean {other} / disc: {mean:.2f}")
    worst = min(runs, key=lambda run: _ratio(run, "inductor"))
    print(f"worst against inductor: {worst['program']} {worst['rows']}x{worst['columns']} {_ratio(worst, 'inductor'):.2f}")
    print(f"compile, median: disc {compile_s['disc']:.2f} s, inductor {compile_s['inductor']:.2f} s")
    return {
        "geometric_mean_over_disc": means,
        "median_compile_s": compile_s,
        "copy_bytes_per_s": copy_bytes_per_s,
        "runs": runs,
    }


def _ratio(run: Mapping[str, Any], other: str) -> float:
    return run["call_s"][other] / run["call_s"]["disc"]


def _shown(run: Mapping[str, Any]) -> str:
    ratios = "  ".join(f"{other} / disc {_ratio(run, other):5.2f}" for other in ("inductor", "eager"))
    compile_s = "  ".join(f"{label} {seconds:.2f} s" for label, seconds in run["compile_s"].items())
    size = f"{run['rows']}x{run['columns']}"
    call_us = run["call_s"]["disc"] * 1e6
    return f"{run['program']:20} {size:10} {call_us:9.1f} us  {ratios}  of copy {run['of_copy']:4.2f}  compile {compile_s}"


def timed(name: str, size: tuple[int, int], threads: int, rounds: int) -> dict[str, Any]:
    """Return median seconds of a call and of compiling of each contender, and the bytes of inputs and outputs."""
    rows, columns = size
    inputs = inputs_of(name, rows // 2, columns // 2) if name in IMAGES else inputs_of(name, rows, columns)
    cluster, values = whole_cluster(Wrapped(PROGRAMS[name]), inputs)
    settings = CompileSettings(threads=threads)
    executables: dict[str, Any] = {}
    compile_s: dict[str, float] = {}
    for label, backend in (("disc", create()), ("inductor", create_inductor())):
        begin = time.perf_counter()
        executables[label] = backend.compile(cluster, settings)
        compile_s[label] = time.perf_counter() - begin
    contenders: Contenders = {
        "disc": lambda: executables["disc"](*values),
        "inductor": lambda: executables["inductor"](*values),
        "eager": lambda: PROGRAMS[name](*inputs),
    }
    moved = sum(each.nbytes for each in (*inputs, *executables["disc"](*values)))
    call_s = interleaved(contenders, rounds)
    return {
        "program": name,
        "rows": rows,
        "columns": columns,
        "bytes": moved,
        "call_s": call_s,
        "compile_s": compile_s,
    }


# --- Symbolic sizes ---------------------------------------------------------------------------------------------------


def _dynamic_figures(chosen: argparse.Namespace) -> dict[str, object]:
    runs: list[dict[str, Any]] = []
    for name in (name for name in chosen.programs if name not in FIXED_SIZES):
        ratios = dynamic_ratios(name, chosen.threads, chosen.rounds)
        mean, worst = _mean(ratios), max(ratios)
        runs.append({"program": name, "sizes": len(ratios), "mean_over_fixed": mean, "worst_over_fixed": worst})
        print(f"{name:20} symbolic / fixed {mean:5.2f}  at worst {worst:5.2f}", flush=True)
    mean = _mean(run["mean_over_fixed"] for run in runs)
    print(f"geometric mean symbolic / fixed: {mean:.2f}")
    return {"mean_over_fixed": mean, "runs": runs}


def dynamic_ratios(name: str, threads: int, rounds: int) -> list[float]:
    """Return the ratio of one executable with symbolic sizes to one for each size, at random sizes."""
    settings = CompileSettings(threads=threads)
    given = inputs_of(name, 6, 24)
    cluster, inputs = whole_cluster(Wrapped(PROGRAMS[name]), given, dynamic=True)
    places = [next(place for place, value in enumerate(inputs) if value is each) for each in given]
    symbolic = create().compile(cluster, settings)
    draw = random.Random(SEED)
    ratios: list[float] = []
    symbols = symbols_of(cluster)
    for _ in range(DYNAMIC_SIZES):
        sizes = {symbol: 8 * draw.randint(*STEPS[min(len(symbols), 3)]) for symbol in symbols}
        values = [_in_range(value, sizes.values()) for value in with_sizes(cluster, inputs, sizes)]
        plain = [values[place] for place in places]  # a cluster reads its inputs in the order of their first use
        fixed_cluster, fixed_values = whole_cluster(Wrapped(PROGRAMS[name]), plain)
        fixed = create().compile(fixed_cluster, settings)
        contenders: Contenders = {
            "symbolic": lambda values=values: symbolic(*values),
            "fixed": lambda fixed=fixed, values=fixed_values: fixed(*values),
        }
        found = interleaved(contenders, rounds, block_s=BLOCK_S / 10)
        ratios.append(found["symbolic"] / found["fixed"])
    return ratios


def _in_range(value: Any, sizes: Iterable[int]) -> Any:
    """Return integers that are valid indices at every size."""
    is_index = isinstance(value, torch.Tensor) and value.dtype == torch.int64
    return value % min(sizes) if is_index else value


# --- Measuring --------------------------------------------------------------------------------------------------------


def interleaved(contenders: Contenders, rounds: int, block_s: float = BLOCK_S) -> dict[str, float]:
    """Return the median seconds of a call of each contender, in alternating blocks of calls."""
    with torch.no_grad():
        counts = {label: max(1, int(block_s / max(_block(call, 3), 1e-7))) for label, call in contenders.items()}
        found: dict[str, list[float]] = {label: [] for label in contenders}
        for _ in range(rounds):
            for label, call in contenders.items():
                found[label].append(_block(call, counts[label]))
    return {label: statistics.median(times) for label, times in found.items()}


def _block(call: Callable[[], object], count: int) -> float:
    """Return the mean seconds of some calls."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def copied_bytes_per_s() -> float:
    """Return the bytes per second that a copy reads and writes, in memory that is already allocated."""
    source = torch.ones(COPIED)
    target = torch.zeros(COPIED)
    seconds = interleaved({"copy": lambda: target.copy_(source)}, 9)["copy"]
    return 2 * source.nbytes / seconds


def _mean(ratios: Sequence[float] | Any) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


if __name__ == "__main__":
    main()
