"""How much of a call through `torch.compile` is spent before and after the hub's compiled graph, in place.

Run with `python -m benchmarks.dynamo_share mobilenetv2 --backend onnxruntime`; prints medians in microseconds. Only for
models with one output.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch

from hub.bench.models import load_model
from hub.capture.frames import captured_for_hub
from hub.frontend.compiled import CompiledGraph
from hub.frontend.direct.shortcut import Guards
from hub.frontend.dynamo import hub_backend

CALLS = 80
MAX_POINTERS = 100_000
"""More tensors than any of these models has: with a lower limit, PyTorch falls back on the usual guards."""


def main() -> None:
    """Time the parts of a call while the model runs in between, and Dynamo's part without the graph's work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--all-guards", action="store_true", help="with all of Dynamo's guards before each call")
    parser.add_argument("--dict-tags", action="store_true", help="with the cheaper guards that PyTorch 2.12 turned off")
    given = parser.parse_args()
    if given.all_guards:
        captured_for_hub(hub_backend)
    if given.dict_tags:
        from hub.torch_private import dynamo_config

        dynamo_config.use_recursive_dict_tags_for_guards = True
        dynamo_config.max_saved_pointers_for_recursive_dict_tags_check = MAX_POINTERS
    model = load_model(given.model)
    stamps: list[tuple[float, float]] = []
    kept: list[Any] = []
    real = CompiledGraph.__call__

    def stamped(self: CompiledGraph, *args: Any) -> Any:
        start = time.perf_counter()
        result = kept[0] if kept else real(self, *args)
        stamps.append((start, time.perf_counter()))
        return result

    watches: list[float] = []
    make = Guards._watch  # pyright: ignore[reportPrivateUsage] - to take its time

    def timed(self: Guards, key: tuple[int, ...], scope: Mapping[str, Any]) -> bool:
        start = time.perf_counter()
        found = make(self, key, scope)
        watches.append(time.perf_counter() - start)
        return found

    Guards._watch = timed  # pyright: ignore[reportPrivateUsage]
    CompiledGraph.__call__ = stamped  # to take the times at which PyTorch enters and leaves the graph
    options: Any = {"tune": "off", "start": "wait", "backends": [given.backend]}
    compiled: Any = torch.compile(model.module, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType] - torch's
    with torch.no_grad():
        print("in place:             ", parts_us(compiled, model.inputs, stamps))
        print("making a watch:       ", ", ".join(f"{1e3 * taken_s:.0f} ms" for taken_s in watches) or "none was made")
        kept.append((compiled(*model.inputs),))  # from here on the graph returns this one output, and does nothing
        print("nothing else running: ", parts_us(compiled, model.inputs, stamps))


def parts_us(compiled: Any, inputs: Any, stamps: list[tuple[float, float]]) -> str:
    """Return the medians before, in and after the graph."""
    rows: list[tuple[float, float, float]] = []
    for _ in range(CALLS + 5):
        begin = time.perf_counter()
        compiled(*inputs)
        end = time.perf_counter()
        start, stop = stamps[-1]
        rows.append((start - begin, stop - start, end - stop))
    before, inside, after = (statistics.median(column) * 1e6 for column in zip(*rows[5:], strict=True))
    return f"before {before:.0f}, graph {inside:.0f}, after {after:.0f} us"


if __name__ == "__main__":
    main()
