"""Times DISC's clusters against Inductor's and eager: programs that wait for memory, at three sizes, interleaved.

DISC and Inductor both run as the hub's executables of one cluster, so what Dynamo adds to a call counts for neither. Ratios
of medians are what counts; on a shared machine the times themselves move with whatever else runs. Run with
`make bench-disc`, or with `python -m benchmarks.disc --rounds 15 softmax_masked`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from plugin_inductor.backend import create as create_inductor

from hub.backend import CompileSettings
from hub.bench.machine import this_machine
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from tests.plugin_disc.programs import PROGRAMS, Wrapped, inputs_of

RESULTS = Path(__file__).parent / "results" / "disc.json"
SIZES = ((64, 256), (256, 1024), (2048, 4096))
"""Rows and columns: within L2, about L3, beyond it."""
BLOCK_S = 0.02
"""Seconds of calls between which contenders change."""


def main() -> None:
    """Prints one line a program and size, and the geometric means, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    machine = this_machine().model_dump(mode="json")
    against: dict[str, list[float]] = {"inductor": [], "eager": []}
    runs: list[dict[str, object]] = []
    for name in chosen.programs:
        for size in SIZES:
            times, compile_s = timed(name, size, chosen.threads, chosen.rounds)
            ratios = {other: times[other] / times["disc"] for other in against}
            for other, ratio in ratios.items():
                against[other].append(ratio)
            runs.append({"program": name, "rows": size[0], "columns": size[1], "call_s": times, "compile_s": compile_s})
            shown = "  ".join(f"{other} / disc {ratio:5.2f}" for other, ratio in ratios.items())
            print(
                f"{name:20} {size!s:13} disc {times['disc'] * 1e6:9.1f} us  {shown}  compile {compile_s:.2f} s", flush=True
            )
    means = {other: math.exp(statistics.fmean(map(math.log, ratios))) for other, ratios in against.items()}
    for other, mean in means.items():
        print(f"geometric mean {other} / disc: {mean:.2f}")
    command = f"python -m benchmarks.disc --threads {chosen.threads} --rounds {chosen.rounds} {' '.join(chosen.programs)}"
    figures = {"geometric_mean_over_disc": means, "runs": runs}
    chosen.output.write_text(json.dumps({"command": command, "machine": machine, **figures}, indent=2) + "\n")


def timed(name: str, size: tuple[int, int], threads: int, rounds: int) -> tuple[dict[str, float], float]:
    """Gives median seconds of a call of each contender, and the seconds that DISC compiled."""
    rows, columns = size
    is_image = name in ("batch_norm_pool", "group_norm_silu")
    inputs = inputs_of(name, rows // 4, columns // 8) if is_image else inputs_of(name, rows, columns)
    cluster, values = whole_cluster(Wrapped(PROGRAMS[name]), inputs)
    begin = time.perf_counter()
    executable = create().compile(cluster, CompileSettings(threads=threads))
    compile_s = time.perf_counter() - begin
    inductor = create_inductor().compile(cluster, CompileSettings(threads=threads))
    contenders: dict[str, Callable[[], object]] = {
        "disc": lambda: executable(*values),
        "inductor": lambda: inductor(*values),
        "eager": lambda: PROGRAMS[name](*inputs),
    }
    with torch.no_grad():
        counts = {label: max(1, int(BLOCK_S / max(_block(call, 3), 1e-7))) for label, call in contenders.items()}
        found: dict[str, list[float]] = {label: [] for label in contenders}
        for _ in range(rounds):
            for label, call in contenders.items():
                found[label].append(_block(call, counts[label]))
    return {label: statistics.median(times) for label, times in found.items()}, compile_s


def _block(call: Callable[[], object], count: int) -> float:
    """Gives the mean seconds of some calls."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


if __name__ == "__main__":
    main()
