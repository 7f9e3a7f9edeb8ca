"""One model at any size: plans, slow calls and speed of `hub.compile` over random batches and lengths, relative to eager.

A BERT of four layers of 128 is called 200 times with 1 to 32 rows of 1 to 512 tokens, drawn from a fixed seed. Runs of ten
calls alternate with the same ten in eager: calls one by one would be timed while the other's idle threads still busy-wait.
The first pass begins with nothing captured; the second follows when planning has finished. Then plans for single sizes
(`dynamic=False`) are compared with the general one, in alternating runs of calls. Finally each of some backends runs alone,
with sizes that it has not seen and with the same again. Writes `results/sizes.json`. Run it with `python -m
benchmarks.sizes`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import torch

import hub
from hub.bench.machine import this_machine

RESULTS = Path(__file__).parent / "results" / "sizes.json"
MAX_BATCH, MAX_LENGTH = 32, 512
FIRST = 10
"""First calls, none of which counts as slow: two of them are captured."""
SLOW = 2.0
"""Ratio to eager's time from which a call counts as slow."""
RUN = 10
"""Calls in a row by one contender."""
SETTLE_S = 0.02
"""Pause between contenders, in which idle threads stop busy-waiting."""
ROUNDS = 7
"""Alternating runs of each of two plans."""
SINGLE = ((1, 16), (4, 64), (8, 128), (16, 32), (32, 256))
"""Sizes that get plans of their own."""
BACKENDS = ("onnxruntime", "openvino", "disc", "inductor")
"""Backends that run alone."""
N_NEW, FEW, LONG = 100, 16, 256
"""Number of new sizes, and their largest batch and length."""
TOLERANCE = 1e-4
VOCABULARY = 1000
transformers: Any = importlib.import_module("transformers")
"""Untyped form of the package, whose annotations omit arguments that its configs accept."""


def sizes(n_calls: int) -> list[tuple[int, int]]:
    """Return random sizes, the same on every run."""
    draw = random.Random(0)
    return [(draw.randint(1, MAX_BATCH), draw.randint(1, MAX_LENGTH)) for _ in range(n_calls)]


def bert() -> torch.nn.Module:
    """Return the model, with the same weights on every run."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType] - torch's
    settings = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 512}
    return transformers.BertModel(transformers.BertConfig(**settings, vocab_size=VOCABULARY)).eval()


def inputs_of(size: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """Return tokens and their mask, of one size."""
    tokens = torch.randint(1, VOCABULARY, size, generator=torch.Generator().manual_seed(size[0] * 1000 + size[1]))
    return tokens, torch.ones_like(tokens)


def passed_over(model: Any, compiled: Any, given: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return how calls of these sizes compare with eager."""
    ratios: list[float] = []
    worst = 0.0
    for first in range(0, len(given), RUN):
        batch = [inputs_of(size) for size in given[first : first + RUN]]
        ours = [_timed(compiled, inputs) for inputs in batch]
        time.sleep(SETTLE_S)
        eagers = [_timed(model, inputs) for inputs in batch]
        time.sleep(SETTLE_S)
        ratios += [our_s / eager_s for (_, our_s), (_, eager_s) in zip(ours, eagers, strict=True)]
        worst = max(worst, *(_difference(our, eager) for (our, _), (eager, _) in zip(ours, eagers, strict=True)))
    slow = [
        {"call": at, "size": given[at], "ratio": ratio} for at, ratio in enumerate(ratios) if ratio > SLOW and at >= FIRST
    ]
    return {
        "plans": len(hub.plans(compiled)),
        "slow": slow,
        "median_ratio": statistics.median(ratios[FIRST:]),
        "largest_difference": worst,
        "is_right": worst <= TOLERANCE,
    }


def beside_single(model: Any, compiled: Any) -> list[dict[str, Any]]:
    """Return, for single sizes, how a plan of their own compares with the general one, in alternating calls."""
    found: list[dict[str, Any]] = []
    for size in SINGLE:
        inputs = inputs_of(size)
        single = hub.compile(model, dynamic=False, options={"start": "wait"})
        for plan in (single, compiled):
            _run_s(plan, inputs)
        pairs = [(_run_s(compiled, inputs), _run_s(single, inputs)) for _ in range(ROUNDS)]
        ratio = statistics.median(general / own for general, own in pairs)
        found.append({"size": size, "general_ms": 1e3 * statistics.median(pair[0] for pair in pairs), "general/own": ratio})
        print(f"{size}: the general plan takes {ratio:.2f} of the time of a plan for this size")
    return found


def new_sizes(model: Any) -> list[dict[str, Any]]:
    """Return, for each backend alone, the time of calls of new sizes and of the same again, relative to eager's."""
    draw = random.Random(1)
    batches = [inputs_of((draw.randint(2, FEW), draw.randint(2, LONG))) for _ in range(N_NEW)]
    found: list[dict[str, Any]] = []
    for name in BACKENDS:
        compiled = hub.compile(model, options={"start": "wait", "tune": "off", "backends": [name]})
        for size in sizes(2 * FIRST):  # until it is captured and trusted
            compiled(*inputs_of(size))
        hub.wait(compiled, 900)
        passes = [[_timed(call, inputs)[1] for inputs in batches] for call in (compiled, compiled, model)]
        first, again = (
            statistics.median(one / eager for one, eager in zip(times, passes[2], strict=True)) for times in passes[:2]
        )
        found.append({"backend": name, "new/eager": first, "again/eager": again})
        print(f"{name}: new sizes take {first:.2f} of eager's time, the same again {again:.2f}")
    return found


def _run_s(call: Callable[..., Any], inputs: Sequence[Any]) -> float:
    """Return the median seconds of calls in a row."""
    time.sleep(SETTLE_S)
    return statistics.median(_timed(call, inputs)[1] for _ in range(RUN))


def _timed(call: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call(*inputs)
    return result, time.perf_counter() - start


def _difference(ours: Any, eagers: Any) -> float:
    pairs = zip(_tensors(ours), _tensors(eagers), strict=True)
    return max(float((one - other).abs().max() / other.abs().max().clamp_min(1e-6)) for one, other in pairs)


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    found: Iterable[Any] = cast("dict[str, Any]", result).values() if isinstance(result, dict) else result
    return [one for one in found if isinstance(one, torch.Tensor)]


def main() -> None:
    """Run all measurements, print and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=200)
    given = parser.parse_args()
    model, all_sizes = bert(), sizes(given.calls)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ["HUB_CACHE_DIR"] = folder
        compiled = hub.compile(model)
        found: dict[str, Any] = {"first": passed_over(model, compiled, all_sizes)}
        print(json.dumps(found["first"]))
        found["is_settled"] = hub.wait(compiled, 900)
        found["settled"] = passed_over(model, compiled, all_sizes)
        print(json.dumps(found["settled"]))
        found["plans"] = [sorted(set(plan.backends)) for plan in hub.plans(compiled)]
        found["single"] = beside_single(model, compiled)
        found["new"] = new_sizes(model)
    head = {"command": f"python -m benchmarks.sizes --calls {given.calls}"}
    machine = this_machine().model_dump(mode="json")
    RESULTS.write_text(json.dumps({**head, "machine": machine, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
