"""The cost of alternating two backends in one process: their thread pools may take each other's cores.

A model's operators, in order of use, are split into four parts, which are assigned to two backends in turn; nodes that a
backend refuses run in eager. Executables are compiled as the hub compiles them for mixed plans (`busy_wait=False`, with
OpenMP's idle threads kept from busy-waiting). The time of the whole model, eager included, is compared with the sum of its
clusters' times, each called alone repeatedly in a process without other backends. Compare ratios, not milliseconds. Writes
`benchmarks/results/pairs.json` and prints tables. Run with `python -m benchmarks.pairs`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hub.bench.machine import this_machine
from hub.bench.zoo import build
from hub.discovery.registry import registry
from hub.partition.extract import extract
from hub.partition.group import EAGER, group
from hub.plugin.backend import CompileSettings, Executable
from hub.plugin.graph import Cluster, Graph
from hub.pricing.timing import time_call
from hub.process.threads import release_openmp
from hub.testing.single import Captured, capture, run
from hub.workers.compilation.values import values_at

RESULTS = Path(__file__).parent / "results" / "pairs.json"
BACKENDS = ("disc", "inductor", "onnxruntime", "openvino", "tvm", "xla", "iree")
MODELS = ("bert", "resnet18")
PARTS = 4
TIMED_S = 3.0
"""Seconds for which each timed call is repeated."""
SLOW_S = 1.0
"""Seconds from which a backend's part is too slow for other effects to be visible: TVM's products without tuning."""
LIMIT_S = 400.0
"""Seconds for one process, including compilation."""


@dataclass(frozen=True)
class Step:
    """A cluster and the executable that runs it."""

    cluster: Cluster
    executable: Executable | None
    """Executable of the cluster; None for eager."""

    def run(self, values: dict[str, Any]) -> None:
        """Read the cluster's inputs from values by name, and add its outputs."""
        inputs = [values[name] for name in self.cluster.input_names]
        executable = self.executable
        if executable is not None and not executable.uses_openmp:
            release_openmp()
        found = self.cluster.module(*inputs) if executable is None else run(executable, self.cluster, inputs)
        values.update(zip(self.cluster.output_names, found, strict=True))


def main() -> None:
    """Time all pairs, or one measurement in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        way, model, backends = given.one
        print(json.dumps(_WAYS[way](model, backends.split(","))))
        return
    machine = this_machine().model_dump(mode="json")
    found = {model: timed(model, given.backends.split(",")) for model in given.models.split(",")}
    command = shlex.join(["python", "-m", "benchmarks.pairs", *sys.argv[1:]])
    given.output.write_text(json.dumps({"command": command, "machine": machine, "models": found}, indent=2) + "\n")


def timed(model: str, backends: Sequence[str]) -> dict[str, Any]:
    """Return each backend's parts alone, and each pair's whole model; errors replace missing results."""
    alone: dict[str, Any] = {name: in_a_process("alone", model, name) for name in backends}
    able = [name for name in backends if alone[name] and max(alone[name]["parts_s"]) < SLOW_S]
    pairs: dict[str, Any] = {}
    for first, second in itertools.permutations(able, 2):
        parts = [(first, second)[place % 2] for place in range(PARTS)]
        whole = in_a_process("chain", model, first, second)
        if whole is not None:
            whole["sum_s"] = sum(alone[name]["parts_s"][place] for place, name in enumerate(parts))
            whole["ratio"] = whole["run_s"] / whole["sum_s"]
        pairs[f"{first}, {second}"] = whole
        print(f"{model}: {first}, {second}: {whole}", file=sys.stderr, flush=True)
    print_table(model, able, pairs)
    return {"alone": alone, "pairs": pairs}


def in_a_process(way: str, model: str, *backends: str) -> dict[str, Any] | None:
    """Return the measurement of a process of its own; None if it fails, after printing its standard error."""
    command = [sys.executable, "-m", "benchmarks.pairs", "--one", way, model, ",".join(backends)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except subprocess.SubprocessError as error:
        said = str(getattr(error, "stderr", "") or "").strip().splitlines()[-1:]
        print(f"{model}: {', '.join(backends)}: {type(error).__name__} {said}", file=sys.stderr, flush=True)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def print_table(model: str, able: Sequence[str], pairs: Mapping[str, Any]) -> None:
    """Print the ratios, with the first part's backend in rows and the second's in columns."""
    print(f"\n| {model} | " + " | ".join(able) + " |\n|---|" + "---|" * len(able))
    for first in able:
        cells = [_cell(pairs.get(f"{first}, {second}"), is_pair=first != second) for second in able]
        print(f"| {first} | " + " | ".join(cells) + " |", flush=True)


def _cell(found: Any, *, is_pair: bool) -> str:
    if not is_pair:
        return ""
    return "failed" if found is None else f"{found['ratio']:.2f}"


# --- In a process of its own ------------------------------------------------------------------------------------------


def alone(model: str, backends: Sequence[str]) -> dict[str, Any]:
    """Time each part's clusters by themselves, in a process with one backend."""
    (name,) = backends
    captured = captured_model(model)
    values = values_of(captured)
    seconds: list[float] = []
    for place in range(PARTS):
        chosen = [name if part == place else "" for part in range(PARTS)]
        steps = steps_of(captured, chosen)
        taken = [step for step in steps if step.executable is not None]
        seconds.append(sum(time_call(lambda step=step: step.run(values), TIMED_S).median_s for step in taken))
    return {"parts_s": seconds}


def chain(model: str, backends: Sequence[str]) -> dict[str, Any]:
    """Time the whole model, its parts on two backends in turn, and return its difference from eager, too."""
    captured = captured_model(model)
    wanted = values_of(captured)
    steps = steps_of(captured, [backends[place % len(backends)] for place in range(PARTS)])
    values = given_values(captured)

    def call() -> None:
        for step in steps:
            step.run(values)

    timing = time_call(call, TIMED_S)
    outputs = [node.name for node in captured.graph.outputs if isinstance(node, torch.fx.Node)]
    error = max(float((values[name] - wanted[name]).abs().max() / wanted[name].abs().max()) for name in outputs)
    assert error < 1e-4, f"wrong by {error}"
    clusters = sum(step.executable is not None for step in steps)
    return {"run_s": timing.median_s, "clusters": clusters, "eager": len(steps) - clusters, "error": error}


_WAYS = {"alone": alone, "chain": chain}


def captured_model(model: str) -> Captured:
    """Return a model of the zoo, captured."""
    module, inputs = build(model)
    with torch.no_grad():
        module.eval()(*inputs)
    return capture(module, inputs)


def given_values(captured: Captured) -> dict[str, Any]:
    """Return the values of a graph's inputs, by name."""
    return dict(zip((node.name for node in captured.graph.placeholders), captured.inputs, strict=True))


def values_of(captured: Captured) -> dict[str, Any]:
    """Return the value of every node, from eager."""
    names = (node.name for node in (*captured.graph.placeholders, *captured.graph.nodes))
    return values_at(captured.graph, captured.inputs, names)


def steps_of(captured: Captured, parts: Sequence[str]) -> list[Step]:
    """Compile the parts of a graph, each for its backend; "" stands for eager."""
    settings = CompileSettings(threads=torch.get_num_threads(), busy_wait=False)
    steps: list[Step] = []
    for place, found in enumerate(group(captured.graph, backends_of(captured.graph, parts))):
        cluster = extract(captured.graph, found.nodes, f"c{place}", captured.weights)
        executable = None if found.backend == EAGER else registry().backend(found.backend).compile(cluster, settings)
        steps.append(Step(cluster, executable))
    return steps


def backends_of(graph: Graph, parts: Sequence[str]) -> dict[str, str]:
    """Return the backend of each node."""
    found: dict[str, str] = {}
    for place, node in enumerate(graph.nodes):
        name = parts[place * len(parts) // len(graph.nodes)]
        is_taken = bool(name) and node.name not in graph.pinned and registry().backend(name).supports(node).accepted
        found[node.name] = name if is_taken else EAGER
    return found


if __name__ == "__main__":
    with torch.no_grad():
        main()
