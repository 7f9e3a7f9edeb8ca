"""Measure models and parts of them on every backend, and write the cost model's table that the hub ships.

Each model of the zoo is captured once. Its whole graph, and a few runs of neighbouring regions, are compiled in a worker of
each backend, one after the other, verified as always, and timed there alone. Operators in eager are measured inside one run
of the whole graph. The table holds features and seconds, and the machine's peaks, by which estimates are scaled on other
machines (`hub/pricing/shipped.py`). It takes an hour or two on two cores, which must be otherwise idle. It can be stopped
at any time, and then continues from there. Run it with `python -m benchmarks.price_table`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hub.bench import zoo
from hub.bench.machine import this_machine
from hub.bench.models import load_model
from hub.cache.measurements import Measurements
from hub.config.options import Options, resolve
from hub.discovery.registry import registry
from hub.errors import HubError
from hub.partition.assignments import assignment
from hub.partition.group import EAGER, Group, is_trivial
from hub.partition.regions import regions
from hub.partition.structure import structure_digest
from hub.partition.verdicts import Verdicts, ask_backends
from hub.planning.context import PlanningContext, candidate_plan, limits_of
from hub.planning.steps import reads
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Graph
from hub.pricing.features import EAGER_S, VERSION, features_of
from hub.pricing.roofline import settle_peaks
from hub.report.progress import Progress
from hub.testing.single import capture
from hub.torch_private import BackendCompilerFailed, dynamo_config
from hub.workers.candidate import Candidate
from hub.workers.session import Session
from hub.workers.transfer import Sample

TABLE = Path(__file__).parents[1] / "hub" / "pricing" / "shipped.json"
PARTS = 3
"""Number of runs of neighbouring regions that are timed in addition to the whole graph."""
MAX_EAGER = 12
"""Number of operators of a model whose eager measurements are kept: the most expensive ones, of distinct structure.
Together no more than the cost model learns from (`hub.pricing.learned.MAX_SAMPLES`)."""
SLOW_S = 25.0
"""Seconds of compilation of a whole graph after which a backend's parts are not measured."""

Row = dict[str, Any]


def main() -> None:
    """Measure, print, and write after each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(zoo.MODELS), help="names of the zoo, `NAME@BATCH` for another batch")
    parser.add_argument("--output", type=Path, default=TABLE)
    given = parser.parse_args()
    dynamo_config.allow_rnn = True
    written: dict[str, Any] = json.loads(given.output.read_text()) if given.output.exists() else {"clusters": []}
    with tempfile.TemporaryDirectory() as folder:
        options = resolve({"tune": "fast"}, {"HUB_CACHE_DIR": folder, "HUB_WORKERS_COMPILE_LIMIT_S": "90"}, Path.cwd())
        written.setdefault("starts_s", starts(options))
        for name in given.models.split(","):
            if any(cluster["model"] == name for cluster in written["clusters"]):
                continue
            start = time.perf_counter()
            written["clusters"] += by_cluster(measured(name, options, Path(folder), written))
            given.output.write_text(_text(written))
            print(f"{name:24} {time.perf_counter() - start:.0f} s", flush=True)


def by_cluster(rows: Iterable[Row]) -> list[Row]:
    """Return one row for each cluster, with its times on all backends."""
    found: dict[str, Row] = {}
    for row in rows:
        cluster = {name: row[name] for name in ("model", "kind", "features")}
        times = found.setdefault(json.dumps(cluster), {**cluster, "run_s": {}, "compile_s": {}})
        times["run_s"][row["backend"]] = row["run_s"]
        if row["compile_s"]:
            times["compile_s"][row["backend"]] = row["compile_s"]
    return list(found.values())


def starts(options: Options) -> dict[str, float]:
    """Return, by backend, the seconds that a worker takes to start, to import the library, and to warm up the compiler."""
    captured = capture(torch.nn.Linear(8, 8).eval(), (torch.ones(2, 8),))
    sample, found = Sample(captured.graph, captured.inputs), registry().configured(options)
    nodes = tuple(node.name for node in captured.graph.nodes)
    seconds: dict[str, float] = {}
    for backend in found.available():
        with Session(sample, 1, limits_of(options.workers), options=options) as session:
            start = time.perf_counter()
            session.answers(backend, options)
            first = _compile_once(session, "first", captured.graph, Group(backend, nodes)) - start
            again = _compile_once(session, "second", captured.graph, Group(backend, nodes)) - start - first
        seconds[backend] = _short(max(first - again, 0.0))
    return seconds


def _compile_once(session: Session, name: str, graph: Graph, found: Group) -> float:
    session.try_out(Candidate(name, found, CompileSettings(threads=1), reads(graph, found)))
    return time.perf_counter()


def measured(name: str, options: Options, folder: Path, table: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of one model: operators in eager, then clusters on backends."""
    base, _, batch = name.partition("@")
    model = load_model(base, batch=int(batch) if batch else None)
    with torch.no_grad():
        model.module(*model.inputs)
    try:
        captured = capture(model.module, model.inputs)
    except BackendCompilerFailed as error:
        print(f"{name} cannot be captured as one graph: {str(error.inner_exception).splitlines()[0]}")
        return
    options = options.model_copy()
    found = registry().configured(options)
    threads = torch.get_num_threads()
    sample = Sample(captured.graph, captured.inputs)
    store, _ = Measurements.open(folder)
    profile = settle_peaks(store, threads)
    table |= {
        "features_version": VERSION,
        "threads": threads,
        "flops_s": profile.flops_s,
        "bytes_s": profile.bytes_s,
        "machine": this_machine().model_dump(mode="json"),
        "command": "python -m benchmarks.price_table",
    }
    with Session(sample, threads, limits_of(options.workers), options=options) as session:
        context = PlanningContext(
            sample, options, threads, found, folder / "artifacts", store, Progress(), session, session
        )
        session.crew.start([EAGER])
        session.crew.await_start(EAGER)
        seconds = session.eager_prices()
        yield from eager_rows(name, captured.graph, seconds)
        verdicts = ask_backends(captured.graph, found, options, context.answers)
        for event in verdicts.events:
            print(f"  {event.backend}: {event.message}"[:160])
        yield from cluster_rows(name, context, session, verdicts, seconds)
    store.close()


def eager_rows(name: str, graph: Graph, seconds: Mapping[str, float]) -> Iterator[Row]:
    """Yield the times of the most expensive operators in eager, one row per structure."""
    seen: set[str] = set()
    total = sum(seconds.values())
    print(f"{name}: eager {total * 1e3:.3f} ms")
    for node in sorted(graph.nodes, key=lambda node: -seconds.get(node.name, 0.0)):
        structure = structure_digest(graph, (node.name,))
        if is_trivial(node) or node.name not in seconds or structure in seen:
            continue
        seen.add(structure)
        yield _row(name, "operator", EAGER, features_of([node], graph.weights), seconds[node.name], 0.0)
        if len(seen) == MAX_EAGER:
            break
    yield _row(name, "graph", EAGER, features_of(graph.nodes, graph.weights), total, 0.0)


def cluster_rows(
    name: str, context: PlanningContext, session: Session, verdicts: Verdicts, eager_s: Mapping[str, float]
) -> Iterator[Row]:
    """Yield the times of the clusters of whole plans, and of some parts, on each backend."""
    parts = list(parts_of(context.graph, random.Random(name)))
    for number, backend in enumerate(verdicts.backends):
        plan = candidate_plan(context, assignment(verdicts, (backend,), context.options))
        clusters = sorted(plan.assignment.clusters, key=lambda found: -len(found.nodes))[:8]
        whole_s = 0.0
        for place, found in enumerate(clusters):
            kind = "graph" if len(plan.assignment.clusters) == 1 else "cluster"
            candidate = context.candidate(f"w{number}_{place}", found, plan.settings, is_saved=False)
            for row in timed(name, kind, context, session, candidate, eager_s):
                whole_s += row["compile_s"]
                yield row
        if whole_s > SLOW_S:
            continue
        for place, nodes in enumerate(parts):
            taken = tuple(node for node in nodes if verdicts.takes(backend, node))
            if len(taken) == len(nodes):
                part = Group(backend, taken)
                candidate = context.candidate(f"p{number}_{place}", part, context.settings(busy_wait=False), is_saved=False)
                yield from timed(name, "part", context, session, candidate, eager_s)


def timed(
    name: str, kind: str, context: PlanningContext, session: Session, candidate: Candidate, eager_s: Mapping[str, float]
) -> Iterator[Row]:
    """Yield the row of one cluster; none if it fails."""
    backend, nodes = candidate.backend, candidate.group.nodes
    try:
        found = session.try_out(candidate)
        found = session.price(found) if found.failure is None else found
    except HubError as error:
        print(f"  {backend}: {error}"[:160])
        return
    if found.failure is not None or found.cost is None:
        print(f"  {backend}: {str(found.failure).splitlines()[0]}"[:160])
        return
    features = features_of([context.graph.by_name[node] for node in nodes], context.graph.weights)
    features[EAGER_S] = sum(eager_s.get(node, 0.0) for node in nodes)
    run_s, compile_s = found.cost.run_s, found.report.compile_s
    print(f"  {backend:12}{kind:8}{len(nodes):5} nodes {run_s * 1e3:9.3f} ms compiled in {compile_s:.1f} s", flush=True)
    yield _row(name, kind, backend, features, run_s, compile_s)


def parts_of(graph: Graph, rng: random.Random) -> Iterator[Sequence[str]]:
    """Yield a few runs of neighbouring regions of distinct structure, without nodes that are pinned to eager."""
    found = regions(graph)
    seen: set[str] = set()
    for _ in range(10 * PARTS):
        start = rng.randrange(len(found))
        nodes = tuple(name for region in found[start : start + rng.choice((1, 2, 4))] for name in region.nodes)
        if len(nodes) < 2 or any(name in graph.pinned for name in nodes):
            continue
        structure = structure_digest(graph, nodes)
        if structure not in seen:
            seen.add(structure)
            yield nodes
        if len(seen) == PARTS:
            return


def _row(model: str, kind: str, backend: str, features: Mapping[str, float], run_s: float, compile_s: float) -> Row:
    kept = {key: _short(value) for key, value in features.items() if value and key != "version"}
    times = {"run_s": _short(run_s), "compile_s": _short(compile_s)}
    return {"model": model, "kind": kind, "backend": backend, **times, "features": kept}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _text(table: Mapping[str, Any]) -> str:
    """Return the table as JSON with one cluster per line, so that its changes are readable."""
    head = {key: value for key, value in table.items() if key != "clusters"}
    clusters = ",\n".join(json.dumps(cluster, separators=(",", ":")) for cluster in table["clusters"])
    return json.dumps(head, indent=1)[:-2] + f',\n "clusters": [\n{clusters}\n]\n}}\n'


if __name__ == "__main__":
    main()
