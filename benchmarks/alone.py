"""The fastest backend for each model, if each backend runs the whole model, and how long its first result takes.

One `hub bench` per model, with `--tune off`: contenders are separate processes whose blocks of calls are interleaved.
Writes `benchmarks/results/alone.json` after each model, keeps the rows of models that were timed before on the same machine
with the same versions, and prints tables. Run with `python -m benchmarks.alone`; it takes two to four minutes per model.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tuned import run_hub
from hub.bench.machine import this_machine

RESULTS = Path(__file__).parent / "results" / "alone.json"
MODELS = ("bert", "gpt2", "llama", "vit", "resnet50", "mobilenetv2", "convnext", "mamba", "lstm")
BACKENDS = ("disc", "inductor", "onnxruntime", "openvino", "xla", "iree")
"""Backends other than TVM, whose products take minutes before `hub tune`: see `benchmarks/tuned.py`."""


def main() -> None:
    """Time each model, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    facts = _kept(given.output)
    contenders = ["eager", *(f"hub:{name}" for name in given.backends.split(","))]
    for model in given.models.split(","):
        facts["models"][model] = timed(model, contenders, given.rounds)
        given.output.write_text(json.dumps(facts, indent=2) + "\n")
    print(table(facts["models"], "call_s", 1e3, "Milliseconds of a call"))
    print(table(facts["models"], "first_call_s", 1.0, "Seconds to the first result"))


def _kept(path: Path) -> dict[str, Any]:
    """Return the earlier results on this machine with these versions, with this run's command."""
    machine = this_machine().model_dump(mode="json")
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    is_same = {**before.get("machine", {}), "load": None} == {**machine, "load": None}
    return {
        "command": shlex.join(["python", "-m", "benchmarks.alone", *sys.argv[1:]]),
        "machine": machine,
        "models": before["models"] if is_same else {},
    }


def timed(model: str, contenders: Sequence[str], rounds: int) -> dict[str, Any]:
    """Return seconds of a call, seconds to the first result, clusters and relative error, or why there are none."""
    with tempfile.TemporaryDirectory(prefix="hub-alone-") as folder:
        into = Path(folder) / "found.json"
        command = ["bench", model, "--against", ",".join(contenders), "--tune", "off", "--rounds", str(rounds)]
        command += ["--json", str(into)]
        run_hub(*command, cache=folder)
        return {each["name"]: _facts(each) for each in json.loads(into.read_text())["results"]}


def _facts(result: Mapping[str, Any]) -> dict[str, Any]:
    if result["call_s"] is None:
        return {"failure": result["failure"]}
    names = ("first_call_s", "clusters", "backends", "relative_error")
    return {"call_s": result["call_s"]["median"], **{name: result[name] for name in names}}


def table(models: Mapping[str, Mapping[str, Any]], what: str, unit: float, title: str) -> str:
    """Return a table as Markdown: a row per model, a column per contender, the smallest value of each row in bold."""
    names = sorted({name for found in models.values() for name in found}, key=lambda name: (name != "eager", name))
    lines = [f"{title}:\n", f"| model | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for model, found in models.items():
        values = [found.get(name, {}).get(what) for name in names]
        least = min(value for value in values if value is not None)
        cells = ["failed" if value is None else _cell(value * unit, is_least=value == least) for value in values]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(value: float, *, is_least: bool) -> str:
    return f"**{value:.1f}**" if is_least else f"{value:.1f}"


if __name__ == "__main__":
    main()
