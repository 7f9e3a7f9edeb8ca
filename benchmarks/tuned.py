"""The effect of TVM's search within a budget: whole models untuned and tuned, next to ONNX Runtime, OpenVINO and eager.

Each model follows a user's steps, with a cache of its own: `hub bench`, `hub tune MODEL --backends tvm`, `hub bench` again.
For comparison there is TVM alone (`benchmarks/tvm_alone.py`), with its default pipeline, untuned. Writes
`benchmarks/results/tuned.json`, in which models that are not requested keep their measurements, and prints a table. Run
with `python -m benchmarks.tuned`; it takes the budget for each model, and the seconds of untuned calls.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hub.bench.machine import this_machine
from hub.bench.zoo import text

RESULTS = Path(__file__).parent / "results" / "tuned.json"
MODELS = {"mobilenetv2": "mobilenetv2", "bert of 2 layers": f"{Path(__file__)}:small_bert"}
TVM = "hub:tvm"
AGAINST = (TVM, "onnxruntime", "openvino", "eager")


def small_bert() -> Any:
    """Return a BERT of 2 layers of 768, on 128 tokens."""
    return text.bert(1, layers=2)


def main() -> None:
    """Tune and time each model, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--budget", default="10m", help="of each model's search, as `hub tune` takes it")
    parser.add_argument("--cache-dir", type=Path, help="an empty folder that keeps what is found; else one for each model")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(given.output.read_text()) if given.output.exists() else {}
    how = {
        "command": shlex.join(["python", "-m", "benchmarks.tuned", *sys.argv[1:]]),
        "machine": this_machine().model_dump(mode="json"),
        "budget": given.budget,
    }
    print(
        f"| model | TVM as it comes | untuned | tuned | times as fast | {' | '.join(AGAINST[1:])} |\n"
        f"{'|---' * (4 + len(AGAINST))}|",
        flush=True,
    )
    for name in given.models.split(","):
        found[name] = {**how, **tuned(MODELS[name], given.budget, given.cache_dir)}
        print(row_of(name, found[name]), flush=True)
        given.output.write_text(json.dumps(found, indent=2) + "\n")


def tuned(model: str, budget: str, kept: Path | None) -> dict[str, Any]:
    """Return seconds of a call before and after a search, by contender, and the search's output."""
    with tempfile.TemporaryDirectory(prefix="hub-tuned-") as folder:
        cache = str(kept or folder)
        alone = _alone(model)
        before = _timed(model, cache, Path(folder) / "before.json")
        said = run_hub("tune", model, "--backends", "tvm", "--budget", budget, cache=cache)
        after = _timed(model, cache, Path(folder) / "after.json")
    found = [line.split(maxsplit=1)[1] for line in said.splitlines() if line.startswith("searched")]
    return {"alone_s": alone, "before_s": before, "after_s": after, "search": found}


def _timed(model: str, cache: str, into: Path) -> dict[str, float]:
    run_hub(
        "bench", model, "--against", ",".join(AGAINST), "--tune", "off", "--rounds", "5", "--json", str(into), cache=cache
    )
    results = json.loads(into.read_text())["results"]
    return {one["name"]: one["call_s"]["median"] for one in results if one["call_s"] is not None}


def _alone(model: str) -> float:
    threads = str(torch.get_num_threads())
    command = [sys.executable, "-m", "benchmarks.tvm_alone", model]
    said = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "TVM_NUM_THREADS": threads}
    )
    return json.loads(said.stdout.splitlines()[-1])["call_s"]


def run_hub(*arguments: str, cache: str) -> str:
    """Run the hub's command line with a cache folder, and return its output. Raise CalledProcessError if it fails."""
    print("$ hub", shlex.join(arguments), file=sys.stderr, flush=True)
    command = [sys.executable, "-c", "from hub.cli import main; main()", *arguments]
    environment = {**os.environ, "HUB_CACHE_DIR": cache}
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def row_of(name: str, found: Mapping[str, Any]) -> str:
    """Return a row of the table, with times in milliseconds."""
    before, after = found["before_s"], found["after_s"]
    tuned_s = after.get(TVM)
    cells = [found["alone_s"], before.get(TVM), tuned_s, *(after.get(each) for each in AGAINST[1:])]
    shown = ["failed" if cell is None else f"{cell * 1e3:.1f}" for cell in cells]
    ratios = [f"{slow / tuned_s:.1f}" if slow and tuned_s else "-" for slow in cells[:2]]
    return f"| {' | '.join([name, *shown[:3], ' and '.join(ratios), *shown[3:]])} |"


if __name__ == "__main__":
    main()
