"""The cost of worker processes and verification for a cold compilation: the time to the first result, with and without.

Each time is measured in a process of its own with an empty cache; the two variants alternate. `tune="fast"`, the default,
times candidates in workers in either variant; with `tune="off"` there is only compilation to hide the cost behind. Run with
`make bench-isolation`, or with `python -m benchmarks.isolation --tune fast --models minilm:1,bert:4 --rounds 3`.
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
from pathlib import Path
from typing import Any

import torch

import hub
from hub.bench.machine import this_machine
from hub.bench.models import load_model

MODELS = "minilm:1,mamba:1,mobilenetv2:4,resnet50:4,bert:4,llama:4,t5:4,convnext:4"
"""Models that `tune="off"` assigns to a library: a plan of eager alone compiles nothing."""
RESULTS = Path(__file__).parent / "results" / "isolation.json"
WAYS = {"isolated": True, "in place": False}


def first_result(name: str, batch: int, way: str, tune: str) -> dict[str, float]:
    """Return the seconds from the loaded model to its first result, and those of the comparison with eager."""
    model = load_model(name, batch=batch)
    options: dict[str, Any] = {"tune": tune, "start": "wait", "isolate": WAYS[way]}
    start = time.perf_counter()
    with torch.no_grad():
        compiled: Any = torch.compile(model.module, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType] - torch's
        compiled(*model.inputs)
    first_s = time.perf_counter() - start
    return {"first_s": first_s, "verify_s": sum(plan.verify_s or 0.0 for plan in hub.plans(compiled))}


def in_new_process(model: str, way: str, tune: str) -> dict[str, float]:
    """Run `first_result` in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"HUB_CACHE_DIR": f"{folder}/hub", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        environment = {**os.environ, **caches, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "benchmarks.isolation", "--one", model, way, tune]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def compared(model: str, rounds: int, tune: str) -> dict[str, Any]:
    """Run both variants in turn; return medians of seconds, their ratio, and verification's share of the isolated one."""
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, found in runs.items():
            found.append(in_new_process(model, way, tune))
    apart, here = (statistics.median(run["first_s"] for run in found) for found in runs.values())
    share = statistics.median(run["verify_s"] / run["first_s"] for run in runs["isolated"])
    return {"isolated_s": apart, "in_place_s": here, "ratio": apart / here, "verify_share": share, "runs": runs}


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS, help="NAME:BATCH, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--tune", choices=("off", "fast"), default="fast")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        (name, batch), (way, tune) = given.one[0].split(":"), given.one[1:]
        print(json.dumps(first_result(name, int(batch), way, tune)))
        return
    found: dict[str, Any] = {}
    print(f"{'':16}{'isolated':>10}{'in place':>10}{'ratio':>8}{'verifying':>11}")
    for model in given.models.split(","):
        row = found[model] = compared(model, given.rounds, given.tune)
        numbers = f"{row['isolated_s']:9.1f}s{row['in_place_s']:9.1f}s{row['ratio']:8.2f}{row['verify_share']:11.0%}"
        print(f"{model:16}{numbers}", flush=True)
    machine = this_machine().model_dump(mode="json")
    command = f"python -m benchmarks.isolation --tune {given.tune} --models {given.models} --rounds {given.rounds}"
    before: dict[str, Any] = json.loads(given.output.read_text()) if given.output.is_file() else {}
    before[given.tune] = {"command": command, "machine": machine, "models": found}
    given.output.write_text(json.dumps(before, indent=2) + "\n")


if __name__ == "__main__":
    main()
