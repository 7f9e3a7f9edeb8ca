"""How much of a call through `torch.compile` is spent before and after the hub's plan, in place.

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
from hub.frontend.direct import shortcut
from hub.frontend.direct.shortcut import Guards
from hub.frontend.dynamo import hub_backend
from hub.frontend.ownership import graphs_of

CALLS = 80
MAX_POINTERS = 100_000
"""More tensors than any of these models has: with a lower limit, PyTorch falls back on the usual guards."""


def main() -> None:
    """Time the parts of a call while the model runs in between, and Dynamo's part without the graph's work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--guards", action="store_true", help="with Dynamo, and the hub's guard in place of most others")
    parser.add_argument("--all-guards", action="store_true", help="with Dynamo, and all of its guards")
    parser.add_argument("--dict-tags", action="store_true", help="with the cheaper guards that PyTorch 2.12 turned off")
    given = parser.parse_args()
    if given.all_guards:
        captured_for_hub(hub_backend)
    if given.guards:
        shortcut.bypass = nothing
    if given.dict_tags:
        from hub.torch_private import dynamo_config

        dynamo_config.use_recursive_dict_tags_for_guards = True
        dynamo_config.max_saved_pointers_for_recursive_dict_tags_check = MAX_POINTERS
    model = load_model(given.model)
    watches: list[float] = []
    make = Guards._watch  # pyright: ignore[reportPrivateUsage] - to take its time

    def timed(self: Guards, key: tuple[int, ...], scope: Mapping[str, Any]) -> bool:
        start = time.perf_counter()
        found = make(self, key, scope)
        watches.append(time.perf_counter() - start)
        return found

    Guards._watch = timed  # pyright: ignore[reportPrivateUsage]
    options: Any = {"tune": "off", "start": "wait", "backends": [given.backend]}
    compiled: Any = torch.compile(model.module, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType] - torch's
    with torch.no_grad():
        for _ in range(8):
            compiled(*model.inputs)
        (graph,) = graphs_of(compiled)
        binding = graph.current()
        assert binding is not None, "it has a plan"
        stamps: list[tuple[float, float]] = []
        kept: list[Any] = []
        real = binding.run

        def stamped(args: Any) -> Any:
            start = time.perf_counter()
            result = kept[0] if kept else real(args)
            stamps.append((start, time.perf_counter()))
            return result

        binding.run = stamped
        print("in place:             ", parts_us(compiled, model.inputs, stamps))
        print("making a watch:       ", ", ".join(f"{1e3 * taken_s:.0f} ms" for taken_s in watches) or "none was made")
        kept.append((compiled(*model.inputs),))  # from here on the plan returns this one output, and does nothing
        print("nothing else running: ", parts_us(compiled, model.inputs, stamps))


def nothing(*_: Any) -> None:
    """Put nothing in the place of PyTorch's function."""


def parts_us(compiled: Any, inputs: Any, stamps: list[tuple[float, float]]) -> str:
    """Return the medians before, in and after the plan."""
    rows: list[tuple[float, float, float]] = []
    for _ in range(CALLS + 5):
        begin = time.perf_counter()
        compiled(*inputs)
        end = time.perf_counter()
        start, stop = stamps[-1]
        rows.append((start - begin, stop - start, end - stop))
    before, inside, after = (statistics.median(column) * 1e6 for column in zip(*rows[5:], strict=True))
    return f"before {before:.0f}, plan {inside:.0f}, after {after:.0f} us"


if __name__ == "__main__":
    main()
