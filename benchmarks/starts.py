"""How long a user waits: for the first answer with the default options, and until the plan is settled, beside Inductor.

Each time is a process of its own with empty caches; the contenders take turns. `eager` is the first call without any
compiler, `hub` answers its first call in eager and plans meanwhile (`settled` is when the plan runs, nothing else being
called), `inductor` is PyTorch's own compiler. Prints a table, and writes
`results/starts.json`. Run it with `make bench-starts`, or with
`python -m benchmarks.starts --models mlp,resnet18 --rounds 3`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import hub
from hub.bench import zoo
from hub.bench.machine import this_machine
from hub.bench.models import load_model

RESULTS = Path(__file__).parent / "results" / "starts.json"
WAYS = ("eager", "hub", "inductor")
CAPTURE_S, SETTLE_S = 1.0, 15.0
"""The bars: a first answer within so many seconds of eager's, and a plan within so many of Inductor's compile time."""


def started(name: str, way: str, cache: Path) -> dict[str, Any]:
    """Return seconds from the model in memory to the first answer in this process, and until the plan is settled."""
    model = load_model(name)
    torch._dynamo.config.allow_rnn = True
    backends = {"hub": {"backend": "hub", "options": {"cache_dir": str(cache)}}, "inductor": {"backend": "inductor"}}
    start = time.perf_counter()
    with torch.no_grad():
        compiled: Any = torch.compile(model.module, **backends[way]) if way in backends else model.module
        compiled(*model.inputs)
        first_s = time.perf_counter() - start
        if way != "hub":
            return {"first_s": first_s, "settled_s": first_s}
        hub.wait(compiled, 600.0)
        compiled(*model.inputs)
    settled_s = time.perf_counter() - start
    plans = [" + ".join(dict.fromkeys(found.backend for found in plan.clusters)) or "eager" for plan in hub.plans(compiled)]
    return {"first_s": first_s, "settled_s": settled_s, "plans": plans}


def in_new_process(model: str, way: str) -> dict[str, Any]:
    """Run `started` in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "benchmarks.starts", "--one", model, way, folder]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        return {"failed": (done.stderr.splitlines() or ["no output"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def compared(model: str, rounds: int) -> dict[str, Any]:
    """Return medians of all contenders, in turns."""
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, found in runs.items():
            found.append(in_new_process(model, way))
    failed = [run["failed"] for found in runs.values() for run in found if "failed" in run]
    if failed:
        return {"failed": failed[0], "runs": runs}
    row = {way: statistics.median(run["first_s"] for run in found) for way, found in runs.items()}
    return {**row, "settled": statistics.median(run["settled_s"] for run in runs["hub"]), "runs": runs}


def summary_of(found: Mapping[str, Mapping[str, Any]]) -> Mapping[str, float]:
    """Return how often the first answer came in time, and the median of what settling took beyond Inductor's time."""
    rows = [row for row in found.values() if "failed" not in row]
    beyond = [row["settled"] - row["inductor"] for row in rows]
    quick = [row["hub"] - row["eager"] for row in rows]
    return {
        "models": len(rows),
        "first answers within eager's time + 1 s": sum(one <= CAPTURE_S for one in quick),
        "median of first answer - eager": statistics.median(quick),
        "median of settled - Inductor": statistics.median(beyond),
        "settled within Inductor's time + 15 s": sum(one <= SETTLE_S for one in beyond),
    }


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(zoo.MODELS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, way, cache = given.one
        print(json.dumps(started(name, way, Path(cache))))
        return
    found: dict[str, Any] = {}
    print(f"{'seconds':18}{'eager':>8}{'hub':>8}{'inductor':>10}{'settled':>9}")
    for model in given.models.split(","):
        row = found[model] = compared(model, given.rounds)
        print(f"{model:18}{_text(row)}", flush=True)
    summary = summary_of(found)
    print(json.dumps(summary, indent=1))
    command = f"python -m benchmarks.starts --models {given.models} --rounds {given.rounds}"
    head = {"command": command, "machine": this_machine().model_dump(mode="json")}
    given.output.write_text(json.dumps({**head, "summary": summary, "models": found}, indent=1) + "\n")


def _text(row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"  {row['failed']}"[:100]
    plans: Sequence[str] = row["runs"]["hub"][-1]["plans"]
    return f"{row['eager']:8.2f}{row['hub']:8.2f}{row['inductor']:10.1f}{row['settled']:9.1f}   {', '.join(plans)}"


if __name__ == "__main__":
    main()
