"""The cost of the thread count that `torch.set_num_threads` tells MKL, to calls in eager and compiled by Inductor.

Prints milliseconds per call with and without it, and the ratio in paired blocks. Run it with
`python -m benchmarks.mkl_threads minilm vit`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import hub
from hub.bench.models import load_model
from hub.process.threads import untell

ROUNDS = 21
BLOCK_S = 0.15


def block_s(call: Callable[[], Any]) -> float:
    """Return the seconds of a call in one block, after one that is not counted."""
    call()
    start, calls = time.perf_counter(), 0
    while (spent_s := time.perf_counter() - start) < BLOCK_S:
        call()
        calls += 1
    return spent_s / calls


def main() -> None:
    """Print two lines for each named model."""
    torch.set_grad_enabled(False)
    count = torch.get_num_threads()
    for name in sys.argv[1:]:
        model = load_model(name)
        options: dict[str, Any] = {"tune": "off", "backends": ("inductor",), "start": "wait", "background": False}
        frozen = hub.freeze(torch.compile(model.module, backend="hub", options=options), *model.inputs)  # pyright: ignore[reportUnknownMemberType] - torch's
        calls = {"eager": lambda: model.module(*model.inputs), "inductor": lambda: frozen(*model.inputs)}  # noqa: B023
        for kind, call in calls.items():
            without: list[float] = []
            told: list[float] = []
            for _ in range(ROUNDS):
                untell()
                without.append(block_s(call))
                torch.set_num_threads(count)
                told.append(block_s(call))
            ratio = statistics.median(one / other for one, other in zip(told, without, strict=True))
            print(f"{name}, {kind}: {1e3 * statistics.median(told):.3g} ms with a count in MKL, ", end="")
            print(f"{1e3 * statistics.median(without):.3g} ms without, {ratio:.2f}")


if __name__ == "__main__":
    main()
