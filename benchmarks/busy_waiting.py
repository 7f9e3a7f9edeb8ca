"""The cost of busy-waiting threads for other threads: products on PyTorch's, ONNX Runtime's and OpenVINO's threads.

Prints medians in microseconds of each call, with the calls of a line interleaved, in two tables:

- a product in OpenVINO after one in eager, with libgomp's default and with its threads ended before, as in mixed plans; and
  the involuntary context switches of both;
- six products in ONNX Runtime alone, before a product in OpenVINO, and before one in eager: never busy-waiting,
  busy-waiting within calls (the plugin's choice in mixed plans), and busy-waiting between calls, too (if it has the machine
  to itself). Each of these has a process of its own, in which OpenMP's threads are ended before the products.

Needs at least two cores. Run with `python -m benchmarks.busy_waiting`.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
import torch
from onnx import helper, numpy_helper
from openvino import opset16

from hub.process.threads import release_openmp

ops: Any = opset16
ort: Any = onnxruntime
ov: Any = openvino
"""Untyped form of the library, whose annotations are missing or wrong."""
CALLS = 300
WARMUP = 20
ROWS, WIDTH, LAYERS = 64, 768, 6

Call = Callable[[], Any]
HABITS = {
    "never": {"session.intra_op.allow_spinning": "0"},
    "within calls": {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"},
    "between calls too": {"session.intra_op.allow_spinning": "1"},
}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--habit", choices=HABITS, help="only this line of the second table")
    habit = parser.parse_args().habit
    if habit is not None:
        report_onnxruntime(habit)
        return
    report_openmp()
    print(f"\n{'ONNX Runtime busy-waits':24}{'alone':>8}{'then OpenVINO':>18}{'then eager':>18}")
    for name in HABITS:
        subprocess.run([sys.executable, "-m", "benchmarks.busy_waiting", "--habit", name], check=True)


def report_openmp() -> None:
    """Time a product in eager and one in OpenVINO while OpenMP's threads busy-wait, and after they were ended."""
    eager, other = eager_product(), openvino_product()
    print(f"{'OpenMP':24}{'eager':>8}{'OpenVINO':>10}{'switches':>10}")
    line("idle threads busy-wait", eager, other)
    line("threads are ended", eager, after_release(other))


def after_release(call: Call) -> Call:
    """Return a call before which OpenMP's threads are ended."""

    def released() -> Any:
        release_openmp()
        return call()

    return released


def line(title: str, eager: Call, other: Call) -> None:
    """Print one line of the first table."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    first, second = medians_us(eager, other)
    switches = (resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before) / CALLS
    print(f"{title:24}{first:8.0f}{second:10.0f}{switches:10.1f}")


def report_onnxruntime(habit: str) -> None:
    """Print one line of the second table."""
    products, eager, other = after_release(onnxruntime_products(habit)), eager_product(), openvino_product()
    (alone,), with_openvino, with_eager = medians_us(products), medians_us(products, other), medians_us(products, eager)
    pairs = (f"{first:.0f} + {second:.0f}" for first, second in (with_openvino, with_eager))
    print(f"{habit:24}{alone:8.0f}" + "".join(f"{pair:>18}" for pair in pairs))


def medians_us(*calls: Call) -> tuple[float, ...]:
    """Return the median of each call, with the calls interleaved."""
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(CALLS):
        for call, taken in zip(calls, samples, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return tuple(median(taken[WARMUP:]) * 1e6 for taken in samples)


def random_values(seed: int, *shape: int) -> Any:
    """Return float32 values for which sums of `WIDTH` products keep the same magnitude."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) / np.float32(WIDTH**0.5)


def _tensor(values: Any) -> torch.Tensor:
    return torch.from_numpy(values)  # pyright: ignore[reportUnknownMemberType] - torch's


def eager_product() -> Call:
    """Return a product by PyTorch, on OpenMP's threads."""
    x, weight = _tensor(random_values(0, ROWS, WIDTH)), _tensor(random_values(1, WIDTH, WIDTH))
    return lambda: torch.mm(x, weight)


def openvino_product() -> Call:
    """Return the same product by OpenVINO, on threads of its own, without copies."""
    x, weight = ops.parameter([ROWS, WIDTH], np.float32), ops.constant(random_values(1, WIDTH, WIDTH))
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(torch.get_num_threads()),
        "ENABLE_CPU_PINNING": "NO",
    }
    program = ov.Model([ops.matmul(x, weight, transpose_a=False, transpose_b=False)], [x])
    request = openvino.Core().compile_model(program, "CPU", settings).create_infer_request()
    values = random_values(0, ROWS, WIDTH)
    return lambda: request.infer([values], share_inputs=True, share_outputs=True)


def onnxruntime_products(habit: str) -> Call:
    """Return six products with tanh by ONNX Runtime, on threads of its own."""
    names = ["x", *(f"y{layer}" for layer in range(LAYERS))]
    nodes = [
        node
        for layer in range(LAYERS)
        for node in (
            helper.make_node("MatMul", [names[layer], f"w{layer}"], [f"m{layer}"]),
            helper.make_node("Tanh", [f"m{layer}"], [names[layer + 1]]),
        )
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info(names[-1], onnx.TensorProto.FLOAT, [ROWS, WIDTH])],
        [numpy_helper.from_array(random_values(layer, WIDTH, WIDTH), f"w{layer}") for layer in range(LAYERS)],
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    for key, value in HABITS[habit].items():
        options.add_session_config_entry(key, value)
    proto = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = random_values(0, ROWS, WIDTH)
    return lambda: session.run(None, {"x": x})


if __name__ == "__main__":
    with torch.no_grad():
        main()
