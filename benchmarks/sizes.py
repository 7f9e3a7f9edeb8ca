"""One model at any size: plans, slow calls and speed of `hub.compile` over random batches and lengths, relative to eager.

A BERT of four layers of 128 is called 200 times with 1 to 32 rows of 1 to 512 tokens, drawn from a fixed seed. Each call is
followed by one in eager. The first pass begins with nothing captured; the second follows when planning has finished. Then
plans for single sizes (`dynamic=False`) alternate with the general one. Writes `results/sizes.json`. Run it with `python -m
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
SINGLE = ((1, 16), (4, 64), (8, 128), (16, 32), (32, 256))
"""Sizes that get plans of their own."""
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
    for size in given:
        inputs = inputs_of(size)
        ours, seconds = _timed(compiled, inputs)
        eagers, eager_s = _timed(model, inputs)
        ratios.append(seconds / eager_s)
        worst = max(worst, _difference(ours, eagers))
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
        for _ in range(5):
            single(*inputs)
        pairs = [(_timed(compiled, inputs)[1], _timed(single, inputs)[1]) for _ in range(15)]
        ratio = statistics.median(general / own for general, own in pairs)
        found.append({"size": size, "general_ms": 1e3 * statistics.median(pair[0] for pair in pairs), "general/own": ratio})
        print(f"{size}: the general plan takes {ratio:.2f} of the time of a plan for this size")
    return found


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
    head = {"command": f"python -m benchmarks.sizes --calls {given.calls}"}
    machine = this_machine().model_dump(mode="json")
    RESULTS.write_text(json.dumps({**head, "machine": machine, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
