"""How good learned prices are on models that nothing was measured of: clusters of the zoo, timed, and then predicted.

Takes regions, neighbours joined, and whole graphs of each model, at most 12 clusters a model of distinct structure, times
each on every backend (one thread), and predicts those of each model from those of all others. Prints errors as factors,
exp(|log(predicted / measured)|), and writes `results/prices.json`. Five minutes; run it with `python -m benchmarks.prices`.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch._dynamo.exc import BackendCompilerFailed

from hub.backend import CompileSettings
from hub.bench import zoo
from hub.bench.machine import this_machine
from hub.bench.models import load_model
from hub.compilation.values import values_at
from hub.errors import HubError
from hub.graph import Cluster, Graph
from hub.partition.extract import extract
from hub.partition.regions import regions
from hub.pricing.features import features_of
from hub.pricing.learned import LearnedPrices, Sample
from hub.pricing.roofline import cluster_estimate
from hub.pricing.timing import time_call
from hub.registry import registry
from hub.support import value_of
from hub.testing.single import Captured, capture

RESULTS = Path(__file__).parent / "results" / "prices.json"
SETTINGS = CompileSettings(threads=1, spin=False)
MOST, BLOCK_S = 12, 0.12


class Taken(NamedTuple):
    """A timed cluster."""

    model: str
    nodes: int
    backend: str
    run_s: float
    roofline_s: float
    features: Mapping[str, float]


class Error(NamedTuple):
    """How far prices were off: logarithms of factors, and whether the truth was in the 95 % interval."""

    roofline: float
    learned: float
    interval: float
    is_inside: bool


def main() -> None:
    """Times, predicts, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(zoo.MODELS))
    parser.add_argument("--backends", default="onnxruntime,openvino")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.allow_rnn = True
    machine = this_machine().model_dump(mode="json")
    taken: list[Taken] = []
    for name in given.models.split(","):
        found = list(timed(name, given.backends.split(",")))
        print(f"{name:24}{len(found):4} prices", flush=True)
        taken += found
    tables = {backend: table([one for one in taken if one.backend == backend]) for backend in given.backends.split(",")}
    for backend, rows in tables.items():
        print(f"\n{backend}, {sum(one.backend == backend for one in taken)} clusters, nothing of the model known")
        for title, figures in rows.items():
            print(f"  {title:10}", "  ".join(f"{name} {value:.2f}" for name, value in figures.items()))
    rows = [{name: value for name, value in one._asdict().items() if name != "features"} for one in taken]
    written = {"command": "python -m benchmarks.prices", "machine": machine, "errors": tables, "clusters": rows}
    given.output.write_text(json.dumps(written, indent=1) + "\n")


def timed(name: str, backends: Sequence[str]) -> Iterator[Taken]:
    """Times a model's clusters on each backend that takes all of them."""
    model = load_model(name)
    with torch.no_grad():
        model.module(*model.inputs)
        try:
            captured = capture(model.module, model.inputs)
        except BackendCompilerFailed as error:
            print(f"{name} cannot be captured as one graph: {str(error.inner_exception).splitlines()[0]}")
            return
        for cluster, inputs in clusters(captured, random.Random(name)):
            nodes = [captured.graph.by_name[node] for node in cluster.node_names]
            features = features_of(nodes, captured.graph.weights)
            for backend in backends:
                call = compiled(backend, cluster, inputs)
                if call is not None:
                    run_s = time_call(call, BLOCK_S).median_s
                    yield Taken(name, len(nodes), backend, run_s, cluster_estimate(cluster, 1).run_s, features)


def clusters(captured: Captured, rng: random.Random) -> Iterator[tuple[Cluster, Sequence[Any]]]:
    """Gives clusters of distinct structure with values for their inputs: whole, regions, two to four neighbours."""
    graph = captured.graph
    names = [node.name for node in (*graph.placeholders, *graph.nodes)]
    values = values_at(graph, captured.inputs, names)
    seen: set[str] = set()
    for nodes in wanted(graph, rng):
        free = [node for node in nodes if node not in graph.pinned]
        try:
            cluster = extract(graph, free, "c", captured.weights)
        except HubError:  # what is pinned stood in the middle
            continue
        if len(free) > 1 and cluster.structure_digest not in seen:
            seen.add(cluster.structure_digest)
            yield cluster, [values[name] for name in cluster.input_names]
        if len(seen) == MOST:
            return


def wanted(graph: Graph, rng: random.Random) -> Iterator[Sequence[str]]:
    """Gives node sets without end as long as there are regions, the whole graph first."""
    found = regions(graph)
    yield [node.name for node in graph.nodes]
    for _ in range(10 * MOST):
        start = rng.randrange(len(found))
        yield [name for region in found[start : start + rng.choice((1, 1, 2, 3, 4))] for name in region.nodes]


def compiled(backend: str, cluster: Cluster, inputs: Sequence[Any]) -> Callable[[], Any] | None:
    """Gives a call of the cluster on a backend; None where the backend declines a node or fails."""
    compiler = registry().backend(backend)
    if not all(compiler.supports(node).accepted for node in cluster.nodes if is_work(node)):
        return None
    try:
        executable = compiler.compile(cluster, SETTINGS)
        executable(*inputs)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything; this cluster then has no price there
        print(f"  {backend}: {type(error).__name__}: {str(error)[:100]}")
        return None
    return lambda: executable(*inputs)


def is_work(node: fx.Node) -> bool:
    """False for what takes one of several results apart."""
    return isinstance(value_of(node), torch.Tensor) and node.target is not operator.getitem


def table(taken: Sequence[Taken]) -> Mapping[str, Mapping[str, float]]:
    """Gives median, mean and 90th percentile of the errors on models left out, and how the intervals did."""
    errors = [error for name in dict.fromkeys(one.model for one in taken) for error in unseen(taken, name)]
    inside = sum(error.is_inside for error in errors) / len(errors)
    return {
        "roofline": factors([error.roofline for error in errors]),
        "learned": factors([error.learned for error in errors])
        | {"in interval": inside, "interval": math.exp(float(np.median([error.interval for error in errors])))},
    }


def unseen(taken: Sequence[Taken], model: str) -> Iterator[Error]:
    """Predicts one model's clusters from those of all others."""
    prices = LearnedPrices.fit([Sample(one.features, one.run_s) for one in taken if one.model != model])
    for one in taken:
        if one.model == model and prices is not None:
            cost = prices.price(one.features)
            interval = math.asinh(cost.spread_s / cost.run_s)
            error = abs(math.log(cost.run_s / one.run_s))
            yield Error(abs(math.log(one.roofline_s / one.run_s)), error, interval, error < interval)


def factors(logs: Sequence[float]) -> dict[str, float]:
    """Turns logarithms into factors: their median, geometric mean and 90th percentile."""
    return {
        "median": math.exp(float(np.median(logs))),
        "mean": math.exp(float(np.mean(logs))),
        "90th": math.exp(float(np.quantile(logs, 0.9))),
    }


if __name__ == "__main__":
    main()
