"""What OpenMP's spinning threads cost a neighbour: a matrix product in OpenVINO right after one in eager, in one process.

Prints medians in microseconds, in three blocks: as libgomp has it, with its idle threads held back as mixed plans hold them
(`hub.dispatch.spinning`), and as it has it again. Needs at least two cores. Run with `python benchmarks/spinning.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino
import torch
from openvino import opset16 as ops

from hub.dispatch.spinning import Calm
from hub.pricing.timing import median

CALLS = 400
ROWS, WIDTH = 128, 768
SETTLE_S = 0.5


def main() -> None:
    """Times the pair of products with spinning, without, and with it again."""
    eager, other = eager_product(), openvino_product()
    print(f"{'':24}{'eager':>8}{'OpenVINO':>10}   us, each product after the other")
    report("idle threads spin", (eager, other))
    calm = Calm()
    report("idle threads held back", (eager, other))
    del calm
    time.sleep(SETTLE_S)
    report("idle threads spin again", (eager, other))


def eager_product() -> Callable[[], Any]:
    """A product by PyTorch, on OpenMP's threads."""
    x, weight = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, WIDTH)
    return lambda: torch.mm(x, weight)


def openvino_product() -> Callable[[], Any]:
    """The same product by OpenVINO, on threads of its own, nothing copied."""
    x = ops.parameter([ROWS, WIDTH], np.float32)
    weight = ops.constant(np.random.default_rng(0).standard_normal((WIDTH, WIDTH), dtype=np.float32))
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(torch.get_num_threads()),
        "ENABLE_CPU_PINNING": "NO",
    }
    program = openvino.Model([ops.matmul(x, weight, transpose_a=False, transpose_b=True)], [x])
    request = openvino.Core().compile_model(program, "CPU", settings).create_infer_request()
    values = np.random.default_rng(1).standard_normal((ROWS, WIDTH), dtype=np.float32)
    return lambda: request.infer([values], share_inputs=True, share_outputs=True)


def report(title: str, calls: Sequence[Callable[[], Any]]) -> None:
    """Prints the median of each call, the calls taking turns."""
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(CALLS):
        for call, taken in zip(calls, samples, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    first, second = (median(taken[10:]) * 1e6 for taken in samples)
    print(f"{title:24}{first:8.0f}{second:10.0f}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
