"""How much a background process slows down the user's calls: an ordinary one, one with `nice`, and one of the hub's.

The user's process calls a model in eager, after pauses and in a loop; the other process, in a session of its own as workers
are, computes with one thread. Prints a table, and writes `results/behind.json`. Run it with `python -m benchmarks.behind`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from hub.bench.machine import this_machine
from hub.bench.models import load_model
from hub.process.priority import keep_session_behind, step_behind

RESULTS = Path(__file__).parent / "results" / "behind.json"
PAUSE_S, PAUSES, LOOP_S = 1.0, 15, 8.0
WORK = "import torch; torch.set_num_threads(1); a = torch.ones(256, 256)\nwhile True: a @ a"
START_S = 4.0
"""Seconds in which the other process imports PyTorch."""


def _nice(pid: int) -> None:
    os.setpriority(os.PRIO_PROCESS, pid, 19)


def _nice_in_its_session(pid: int) -> None:
    _nice(pid)
    keep_session_behind(pid)


WAYS: Mapping[str, Callable[[int], None] | None] = {
    "no other process": None,
    "an ordinary process": lambda _: None,
    "nice 19": _nice,
    "nice 19, its session too": _nice_in_its_session,
    "as the hub does": step_behind,
}


@contextlib.contextmanager
def beside(way: Callable[[int], None] | None) -> Generator[int | None]:
    """Run another process in the background."""
    if way is None:
        yield None
        return
    process = subprocess.Popen([sys.executable, "-c", WORK], start_new_session=True)
    try:
        way(process.pid)
        time.sleep(START_S)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def timed(call: Callable[[], Any], pid: int | None) -> dict[str, float]:
    """Return milliseconds of calls after pauses and in a loop, and the interference of the other process.

    That is the number of cores that it used during the loop, and how often per second the system preempted this process.
    """
    after: list[float] = []
    for _ in range(PAUSES):
        time.sleep(PAUSE_S)
        after.append(_ms(call))
    start_s, start_cpu_s, loop = time.perf_counter(), _cpu_s(pid), list[float]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    while time.perf_counter() - start_s < LOOP_S:
        loop.append(_ms(call))
    passed_s = time.perf_counter() - start_s
    cores = (_cpu_s(pid) - start_cpu_s) / passed_s
    switches_s = (resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before) / passed_s
    worst = sorted(after)[int(0.9 * (len(after) - 1))]
    return {
        "after a pause": median(after),
        "worst tenth": worst,
        "in a loop": median(loop),
        "mean": _mean(loop),
        "cores": cores,
        "switches": switches_s,
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _ms(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start_s)


def _cpu_s(pid: int | None) -> float:
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_grad_enabled(False)
    model = load_model(given.model)
    found: dict[str, dict[str, float]] = {}
    for name, way in WAYS.items():
        with beside(way) as pid:
            model.module(*model.inputs)
            found[name] = timed(lambda: model.module(*model.inputs), pid)
        print(f"{name:26}" + "".join(f"{key:>16} {value:6.2f}" for key, value in found[name].items()), flush=True)
    head = {
        "command": f"python -m benchmarks.behind --model {given.model}",
        "machine": this_machine().model_dump(mode="json"),
    }
    given.output.write_text(json.dumps({**head, "ms": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
