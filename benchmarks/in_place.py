"""Where the time of a small model's call goes between the library's own call and the hub's, in place.

In one process and on one ONNX Runtime session, calls of each kind take turns in short blocks, in a new order each time, and
each kind is compared with the first one of the same turn: other processes, and the machine's changing speed, hit all alike.
The kernels run in between, and evict Python's code and objects from the caches, so a step that takes 3 us in a loop of its
own takes 30 here. Prints and writes medians in microseconds. Run with `python -m benchmarks.in_place`; nothing else may run
beside it. Only for models with one tensor as input and one as output.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

import hub
from hub.bench.machine import this_machine
from hub.bench.models import load_model
from hub.frontend.ownership import graphs_of
from hub.verification.finite import FiniteOnly

RESULTS = Path(__file__).parent / "results" / "in_place.json"
BLOCK = 12
"""Calls of one kind in a row; the first two are not timed."""
OPTIONS: Mapping[str, Any] = {"tune": "off", "backends": ("onnxruntime",), "start": "wait"}


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    with torch.no_grad():
        kinds = kinds_of(given.model, given.batch)
        figures = timed(kinds, given.seconds)
    for name, (median_us, added_us, share) in figures.items():
        print(f"{name:42} {median_us:8.1f} us  {added_us:+7.1f} us  {share:.3f}")
    rows = {name: dict(zip(("median_us", "added_us", "ratio"), row, strict=True)) for name, row in figures.items()}
    written = {
        "command": f"python -m benchmarks.in_place --model {given.model} --batch {given.batch} --seconds {given.seconds:g}",
        "machine": this_machine().model_dump(mode="json"),
        "figures": rows,
    }
    given.output.write_text(json.dumps(written, indent=1) + "\n")


def kinds_of(name: str, batch: int) -> Mapping[str, Callable[[], Any]]:
    """Return the kinds of calls by name, each with one step more than the kind before."""
    loaded = load_model(name, batch=batch)
    (x,) = loaded.inputs
    direct: Any = hub.compile(loaded.module, options=OPTIONS)
    through: Any = torch.compile(loaded.module, backend="hub", options=dict(OPTIONS))  # pyright: ignore[reportUnknownMemberType] - torch's
    for one in (direct, through):
        for _ in range(4):
            one(x)
        hub.wait(one)
    frozen = hub.freeze(direct, x)
    frozen(x)
    (graph,) = graphs_of(direct)
    binding = graph.current()
    assert binding is not None, "it has a plan"
    plan: Any = binding.run
    executable: Any = plan.__globals__["c0"]
    if isinstance(executable, FiniteOnly):
        executable = executable.executable
    place = next(at for at, node in enumerate(graph.graph.placeholders) if node.name not in graph.graph.weights)
    args: list[Any] = [None] * len(graph.graph.placeholders)
    args[place] = x
    run: Any = executable._run
    kept = run(x)[0]

    def the_same(_shape: tuple[int, ...], _strides: tuple[int, ...], _dtype: torch.dtype) -> torch.Tensor:
        return kept

    def dispatched(shape: tuple[int, ...], _strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    bound = varied(run, empty_cpu=the_same)
    bound(x)
    session, one_binding = run.__globals__["run_session"], bound.__globals__["pool"][-1][0]
    again = varied(run, empty_cpu=the_same)  # with a binding of its own
    slower = varied(run, empty_cpu=dispatched)
    return {
        "the library's call, everything bound": lambda: session(one_binding, None),
        "with the plugin's checks": lambda: again(x),
        "with a new result": lambda: run(x),
        "the same by torch.empty": lambda: slower(x),
        "the executable": lambda: executable(x),
        "the plan": lambda: plan(args),
        "hub.freeze": lambda: frozen(x),
        "hub.compile": lambda: direct(x),
        'torch.compile(backend="hub")': lambda: through(x),
    }


def varied(run: Any, **changes: Any) -> FunctionType:
    """Return the plugin's generated function with other values of some names, and without bindings in its pool."""
    return FunctionType(run.__code__, {**run.__globals__, "pool": [], **changes})


def timed(kinds: Mapping[str, Callable[[], Any]], seconds: float) -> Mapping[str, tuple[float, float, float]]:
    """Return, for each kind, its median, and the medians of what it adds to the first kind, and of its ratio to it."""
    found: dict[str, list[float]] = {name: [] for name in kinds}
    order, end_s = list(kinds), time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        random.shuffle(order)
        for name in order:
            found[name].append(block_us(kinds[name]))
    first = next(iter(found.values()))
    return {
        name: (
            statistics.median(times),
            statistics.median(one - other for one, other in zip(times, first, strict=True)),
            statistics.median(one / other for one, other in zip(times, first, strict=True)),
        )
        for name, times in found.items()
    }


def block_us(call: Callable[[], Any]) -> float:
    """Return the median of a block of calls, in microseconds."""
    times: list[float] = []
    for _ in range(BLOCK):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[2:])


if __name__ == "__main__":
    main()
