"""How long exact assignment takes as graphs grow. Run with `make bench-assignment`.

Four kinds of graphs, four backends, a cost for mixing:

- regions: a chain of regions with a cost for each backend, solved for its ten cheapest assignments;
- chain: every candidate is an interval of the order, up to twelve nodes long, and there is one of the whole graph;
- branching: nodes read from their last six, candidates are random convex sets, few of them intervals;
- model: a transformer of 48 layers as captured; candidates are windows of its regions, and for each backend the convex
  clusters that remain if it refuses some operators.

Writes seconds of processor time, with the exponent that fits them, as JSON and as a plot.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hub.bench.machine import this_machine
from hub.partition.group import EAGER, Group, group
from hub.partition.regions import regions
from hub.planning.assign.chain import RegionChain, k_best
from hub.planning.assign.problem import Candidate, Problem
from hub.planning.assign.solve import solve
from hub.plugin.graph import Graph
from hub.plugin.table import operator_name

BACKENDS = ("a", "b", "c", "d")
SIZES = (100, 300, 1000, 3000, 10000)
LAYERS = 48
REPEATS = 3
REACH = 6
"""Distance of the nodes that a node of a branching graph reads: residual streams and parallel branches, not random
wiring."""
MIX_S = 50e-6
RESULTS = Path(__file__).parent / "results" / "assignment.json"


class Taken(NamedTuple):
    """One solved problem, with its size and time."""

    kind: str
    nodes: int
    candidates: int
    method: str
    seconds: float
    gap: float


# --- Problems ---------------------------------------------------------------------------------------------------------


def region_chain(size: int, rng: random.Random) -> RegionChain:
    """Return a chain of regions with costs of 0.1 to 0.9 ms each; entering a backend costs 20 to 200 us."""
    inside_s = tuple((*(rng.uniform(1e-4, 9e-4) for _ in BACKENDS), 1e-3) for _ in range(size))
    enter_s = tuple((*(rng.uniform(2e-5, 2e-4) for _ in BACKENDS), 0.0) for _ in range(size))
    width = len(BACKENDS) + 1
    switch_s = tuple(tuple(MIX_S * (row != column) for column in range(width)) for row in range(width))
    return RegionChain((*BACKENDS, EAGER), inside_s, enter_s, switch_s=switch_s)


def chain_problem(size: int, rng: random.Random) -> Problem:
    """Return a problem in which each node reads the one before, and two intervals start at each node."""
    reads = tuple((node - 1,) if node else () for node in range(size))
    starts = [(start, min(size, start + rng.randint(1, 12))) for start in range(size) for _ in range(2)]
    return priced(reads, [tuple(range(start, stop)) for start, stop in (*starts, (0, size))], rng)


def branching_problem(size: int, rng: random.Random) -> Problem:
    """Return a problem in which each node reads one or two of the last few; two convex sets grow from each node."""
    reads = tuple(
        tuple(sorted({max(0, node - 1 - int(rng.random() ** 2 * REACH)) for _ in range(rng.choice((1, 1, 2)))}))
        if node
        else ()
        for node in range(size)
    )
    users: list[list[int]] = [[] for _ in reads]
    for node, sources in enumerate(reads):
        for source in sources:
            users[source].append(node)
    sets = (grown(reads, users, rng.randrange(size), rng.randint(2, 12), rng) for _ in range(2 * size))
    return priced(reads, list(dict.fromkeys(sets)), rng)


def grown(
    reads: Sequence[Sequence[int]], users: Sequence[Sequence[int]], seed: int, most: int, rng: random.Random
) -> tuple[int, ...]:
    """Grow a convex set from one node, by neighbours and the nodes between."""
    nodes = {seed}
    for _ in range(2 * most):
        beside = sorted({other for node in nodes for other in (*reads[node], *users[node])} - nodes)
        if len(nodes) >= most or not beside:
            break
        wider = closed(reads, nodes | {rng.choice(beside)})
        nodes = wider if len(wider) <= 2 * most else nodes
    return tuple(sorted(nodes))


def closed(reads: Sequence[Sequence[int]], nodes: set[int]) -> set[int]:
    """Add every node on a path between two nodes of a set."""
    first, last = min(nodes), max(nodes)
    below: set[int] = set()
    for node in range(first, last + 1):
        if any(source in nodes or source in below for source in reads[node]):
            below.add(node)
    above: set[int] = set()
    for node in range(last, first - 1, -1):
        if node in nodes or node in above:
            above.update(source for source in reads[node] if source >= first)
    return nodes | (above & below)


def priced(reads: tuple[tuple[int, ...], ...], sets: Sequence[tuple[int, ...]], rng: random.Random) -> Problem:
    """Return a candidate for every set and backend, at 50 to 110 % of eager's time plus 10 us per call."""
    eager_s = tuple(rng.uniform(5e-6, 5e-5) for _ in reads)
    candidates = tuple(
        Candidate(nodes, backend, 1e-5 + rng.uniform(0.5, 1.1) * sum(eager_s[node] for node in nodes))
        for nodes in sets
        for backend in BACKENDS
    )
    return Problem(reads, eager_s, candidates, mix_s=MIX_S)


class Block(torch.nn.Module):
    """A layer of a transformer: attention and an MLP, each with a norm before and a residual around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.mix_in, self.mix_out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.mix_in(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def model_problem(rng: random.Random) -> Problem:
    """Return the problem of 48 layers; see the module's docstring for its candidates."""
    from hub.testing.single import capture

    layers = torch.nn.Sequential(*(Block(32, 4) for _ in range(LAYERS))).eval()
    graph = capture(layers, (torch.randn(1, 8, 32),)).graph
    found = regions(graph)
    windows = [
        tuple(name for region in found[start:stop] for name in region.nodes)
        for start in range(len(found))
        for stop in (*range(start + 1, min(len(found), start + 8) + 1), len(found))
    ]
    eager_s = {node.name: rng.uniform(5e-6, 5e-5) for node in graph.nodes}
    groups = [Group(backend, nodes) for nodes in dict.fromkeys(windows) for backend in BACKENDS]
    groups += (cluster for backend in BACKENDS for cluster in left_where_refused(graph, backend, rng))
    place = {node: position for position, node in enumerate(graph.nodes)}
    positions = {node.name: position for node, position in place.items()}
    reads = tuple(tuple(sorted({place[one] for one in node.all_input_nodes if one in place})) for node in graph.nodes)
    candidates = tuple(
        Candidate(
            tuple(sorted(positions[name] for name in item.nodes)),
            item.backend,
            1e-5 + rng.uniform(0.5, 1.1) * sum(eager_s[name] for name in item.nodes),
        )
        for item in dict.fromkeys(groups)
    )
    return Problem(reads, tuple(eager_s.values()), candidates, mix_s=MIX_S)


def left_where_refused(graph: Graph, backend: str, rng: random.Random) -> Sequence[Group]:
    """Return the convex clusters of a backend that supports each kind of operator with a probability of 70 %."""
    takes = {name: rng.random() < 0.7 for name in sorted({operator_name(node) for node in graph.nodes})}
    where = {node.name: backend if takes[operator_name(node)] else EAGER for node in graph.nodes}
    return [found for found in group(graph, where) if found.backend != EAGER]


# --- Seconds ----------------------------------------------------------------------------------------------------------


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least processor time of a few calls, which excludes other processes, and the result."""
    taken: list[float] = []
    result = None
    for _ in range(REPEATS):
        start = time.process_time()
        result = call()
        taken.append(time.process_time() - start)
        if taken[-1] > 2.0:
            break
    return min(taken), result


def solved(kind: str, problem: Problem) -> Taken:
    """Solve one problem, and return its size and time."""
    seconds, solution = seconds_of(lambda: solve(problem, limit_s=300.0))
    return Taken(kind, len(problem.reads), len(problem.candidates), solution.method, seconds, solution.gap)


def unrolled(chain: RegionChain) -> Taken:
    """Find the ten cheapest assignments of one chain of regions."""
    seconds, _ = seconds_of(lambda: k_best(chain, 10))
    size = len(chain.inside_s)
    return Taken("regions", size, size * len(BACKENDS), "chain", seconds, 0.0)


def exponent(rows: Sequence[Taken]) -> float:
    """Return the slope of log seconds over log nodes, by least squares, from 1,000 nodes on; n log n has 1.12 there."""
    points = [(math.log(row.nodes), math.log(row.seconds)) for row in rows if row.nodes >= 1000]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


# --- The plot ---------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, MARGIN = 640, 420, 60
COLORS = {"regions": "#1b9e77", "chain": "#7570b3", "branching": "#d95f02", "model": "#222222"}


def plot(rows: Sequence[Taken]) -> str:
    """Return an SVG of seconds over nodes, both axes logarithmic, with the bars."""
    powers = range(-3, 2)

    def at(nodes: float, seconds: float) -> tuple[float, float]:
        x = MARGIN + (math.log10(nodes) - 2) / 2 * (WIDTH - 2 * MARGIN)
        y = HEIGHT - MARGIN - (math.log10(seconds) - powers[0]) / (powers[-1] - powers[0]) * (HEIGHT - 2 * MARGIN)
        return round(x, 1), round(y, 1)

    parts: list[str] = []
    for power in powers:
        (left, y), (right, _) = at(100, 10.0**power), at(10000, 10.0**power)
        parts.append(f'<path d="M{left} {y}H{right}" stroke="#ddd"/><text x="8" y="{y + 4}">{10.0**power:g} s</text>')
    for nodes in (100, 1000, 10000):
        x, y = at(nodes, 10.0 ** powers[0])
        parts.append(f'<text x="{x}" y="{y + 20}" text-anchor="middle">{nodes:,}</text>')
    for nodes, bar_s in ((1000, 1.0), (10000, 10.0)):
        x, y = at(nodes, bar_s)
        parts.append(f'<path d="M{x - 25} {y}H{x + 25}" stroke="red" stroke-width="3"/>')
    for number, (kind, color) in enumerate(COLORS.items()):
        points = [at(row.nodes, max(row.seconds, 1e-3)) for row in rows if row.kind == kind]
        line = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}"/>')
        parts += (f'<circle cx="{x}" cy="{y}" r="4" fill="{color}"/>' for x, y in points)
        parts.append(f'<text x="{MARGIN + 10}" y="{MARGIN + 16 * number}" fill="{color}">{kind}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">nodes; the red bars are the limits</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">'
    )
    return "\n".join((head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""))


def main() -> None:
    """Solve, print and write all problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the plot goes beside it, as .svg")
    output = parser.parse_args().output
    rows: list[Taken] = []
    rng = random.Random(0)
    makers: list[Callable[[], Taken]] = [lambda: solved("model", model_problem(rng))]
    for size in SIZES:
        makers += [
            lambda size=size: unrolled(region_chain(size, rng)),
            lambda size=size: solved("chain", chain_problem(size, rng)),
            lambda size=size: solved("branching", branching_problem(size, rng)),
        ]
    for make in makers:
        rows.append(make())
        row = rows[-1]
        print(
            f"{row.kind:10} {row.nodes:6} nodes {row.candidates:7} candidates {row.method:6} {row.seconds:8.3f} s",
            flush=True,
        )
    slopes = {kind: exponent([row for row in rows if row.kind == kind]) for kind in COLORS if kind != "model"}
    print("exponents:", ", ".join(f"{kind} {slope:.2f}" for kind, slope in slopes.items()))
    output.parent.mkdir(exist_ok=True)
    figures = {"rows": [row._asdict() for row in rows], "exponents": slopes}
    machine = this_machine().model_dump(mode="json")
    written = {"command": "make bench-assignment", "machine": machine, **figures}
    output.write_text(json.dumps(written, indent=2) + "\n")
    output.with_suffix(".svg").write_text(plot(rows))


if __name__ == "__main__":
    main()
