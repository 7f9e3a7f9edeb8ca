"""The overhead of dispatch over a backend's own call.

Figures are medians of interleaved blocks, in microseconds. Two for each backend:

- one cluster: a compiled graph of one cluster (weight guard, generated code, the plugin's executable: bindings and output
  tensors) against the same program called through the library's own zero-copy interface with everything bound beforehand;
- each further cluster: a chain of clusters that alternate between two backends, against the sum of its executables' calls.

Dynamo's guards, whose cost every `torch.compile` backend shares, are reported separately.

For a model of 200 weights and 5 inputs whose graph does nothing, there is also the cost of a call through `torch.compile`,
without Dynamo (`hub.compile`), and without any check of the model (`hub.freeze`), in warm caches and after other memory has
passed through them. Run with `make bench-dispatch`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import onnx
import onnxruntime
import openvino
import torch
from openvino import opset16

import hub
from hub.bench.machine import this_machine
from hub.frontend.ownership import graphs_of

ops: Any = opset16
ort: Any = onnxruntime
ov: Any = openvino
"""Untyped form of the library, whose annotations are missing or wrong."""
SIZE = 8
ROUNDS = 40
CALLS = 500
CHAIN = 8
WEIGHTS, INPUTS = 200, 5
COLD_BYTES, COLD_CALLS = 64 << 20, 200
"""Bytes that are written between two cold calls: more than the caches of a core hold."""
RESULTS = Path(__file__).parent / "results" / "dispatch.json"

Call = Callable[[], Any]


class Small(torch.nn.Module):
    """A model so small that only the call itself is timed: linear, relu, [8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Chain(torch.nn.Module):
    """Alternating linear and relu layers: as many clusters as layers if neighbours run on different backends."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(SIZE, SIZE) for _ in range(length // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Wide(torch.nn.Module):
    """A model of many weights and inputs, and almost no work: a sum of scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(WEIGHTS // 2))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([*(weight.view(()) for weight in self.parameters()), *inputs]).sum()


def through_onnxruntime(model: Small, x: torch.Tensor) -> Call:
    """Return the library's own zero-copy call, with everything bound once."""
    weight, bias = (value.detach().numpy() for value in (model.linear.weight, model.linear.bias))
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
            onnx.helper.make_node("Relu", ["h"], ["y"]),
        ],
        "small",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [SIZE, SIZE])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [SIZE, SIZE])],
        [onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(bias, "b")],
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    proto = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 20)])
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    y = torch.empty(SIZE, SIZE)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, numpy.float32, (SIZE, SIZE), x.data_ptr())
    binding.bind_output("y", "cpu", 0, numpy.float32, (SIZE, SIZE), y.data_ptr())
    return lambda: (session.run_with_iobinding(binding), y)  # `y` must live as long as the binding writes to it


def through_openvino(model: Small, x: torch.Tensor) -> Call:
    """Return the library's own zero-copy call, with input and output tensors set once."""
    weight, bias = (value.detach().numpy() for value in (model.linear.weight, model.linear.bias))
    given = ops.parameter([SIZE, SIZE], openvino.Type.f32)
    product = ops.add(ops.matmul(given, ops.constant(weight), False, True), ops.constant(bias))
    program = ov.Model([ops.relu(product)], [given], "small")
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = openvino.Core().compile_model(program, "CPU", settings).create_infer_request()
    y = torch.empty(SIZE, SIZE)
    request.set_input_tensor(openvino.Tensor(x.numpy(), shared_memory=True))
    request.set_output_tensor(openvino.Tensor(y.numpy(), shared_memory=True))
    return lambda: (request.infer(), y)


def compiled_for(model: torch.nn.Module, x: torch.Tensor, **options: Any) -> Any:
    """Return a model that the hub has compiled and that has run once."""
    torch.compiler.reset()
    compiled = torch.compile(model, backend="hub", options={"tune": "off", "start": "wait", **options})  # pyright: ignore[reportUnknownMemberType] - torch's
    compiled(x)
    return compiled


def call_of(compiled: Any, model: torch.nn.Module, x: torch.Tensor) -> Call:
    """Return a call of the compiled graph alone, as Dynamo's code calls it."""
    graph = graphs_of(compiled)[0]
    weights = {id(value) for value in model.parameters()}
    by_shape = iter(model.parameters())
    args = [x if node.name not in graph.graph.weights else next(by_shape) for node in graph.graph.placeholders]
    assert sum(id(value) in weights for value in args) == len(weights)
    return lambda: graph(*args)


def interleaved_us(calls: Mapping[str, Call]) -> dict[str, float]:
    """Return the median microseconds of one call of each, in interleaved blocks."""
    blocks: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(CALLS):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            blocks[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: statistics.median(found) for name, found in blocks.items()}


def one_cluster(backend: str, own: Callable[[Small, torch.Tensor], Call]) -> dict[str, float]:
    """Return the figures for one cluster of one backend."""
    model, x = Small().eval(), torch.randn(SIZE, SIZE)
    compiled = compiled_for(model, x, backends=[backend])
    assert [cluster.backend for cluster in hub.plans(compiled)[0].clusters] == [backend]
    found = interleaved_us(
        {
            "eager_us": lambda: model(x),
            "own_call_us": own(model, x),
            "dispatch_us": call_of(compiled, model, x),
            "with_dynamo_us": lambda: compiled(x),
        }
    )
    return {**found, "added_us": found["dispatch_us"] - found["own_call_us"]}


def further_clusters() -> dict[str, float]:
    """Return the microseconds that each further cluster adds to its executable's own call."""
    from hub.config.options import Options
    from hub.discovery.registry import registry
    from hub.dispatch.assemble import assemble
    from hub.planning.make import Maker
    from hub.report.progress import Progress
    from hub.testing.single import capture

    model, x = Chain(CHAIN).eval(), torch.randn(SIZE, SIZE)
    force = {"aten.linear": "onnxruntime", "aten.relu": "openvino"}
    captured = capture(model, (x,))
    maker = Maker(captured.graph, "inference", Options(tune="off", force=force), registry(), Progress())
    made = maker.make(captured.inputs)
    run = assemble(captured.graph, made.steps, made.loaded).run
    alone = {name: (lambda item=item: item.executable(x)) for name, item in made.loaded.items()}
    found = interleaved_us({"chain_us": lambda: run(captured.inputs), **alone})
    own = sum(found[name] for name in alone)
    return {
        "clusters": len(made.loaded),
        "chain_us": found["chain_us"],
        "executables_us": own,
        "added_per_cluster_us": (found["chain_us"] - own) / len(made.loaded),
    }


def checks() -> dict[str, float]:
    """Return the microseconds that a call spends on checking that the model is unchanged, for each form of the call."""
    model, inputs = Wide().eval(), [torch.randn(()) for _ in range(INPUTS)]
    options: Any = {"tune": "off", "start": "wait", "backends": []}
    ways: dict[str, Any] = {
        "torch.compile": torch.compile(model, backend="hub", options=options),  # pyright: ignore[reportUnknownMemberType] - torch's
        "hub.compile": hub.compile(model, options=options),
    }
    for way in ways.values():
        for _ in range(4):
            way(*inputs)
    ways["hub.freeze"] = hub.freeze(ways["torch.compile"], *inputs)
    graphs = {name: graphs_of(way)[0] for name, way in ways.items() if name != "hub.freeze"}
    result = (torch.zeros(()),)
    for graph in graphs.values():
        binding = graph.current()
        assert binding is not None
        binding.run = lambda _: result
    frozen = ways["hub.freeze"]
    frozen._state = replace(frozen._state, run=lambda _: result)  # pyright: ignore[reportPrivateUsage, reportUnknownLambdaType]
    calls: dict[str, Call] = {name: (lambda way=way: way(*inputs)) for name, way in ways.items()}
    warm = interleaved_us(calls)
    memory = numpy.zeros(COLD_BYTES, dtype=numpy.uint8)
    cold: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(COLD_CALLS):
        for name, call in calls.items():
            memory += 1
            start = time.perf_counter()
            call()
            cold[name].append((time.perf_counter() - start) * 1e6)
    return {
        **{f"{name}, warm": us for name, us in warm.items()},
        **{f"{n}, cold": statistics.median(s) for n, s in cold.items()},
    }


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    output = parser.parse_args().output
    with torch.no_grad():
        found = {
            "one cluster, onnxruntime": one_cluster("onnxruntime", through_onnxruntime),
            "one cluster, openvino": one_cluster("openvino", through_openvino),
            "each further cluster": further_clusters(),
            f"{WEIGHTS} weights and {INPUTS} inputs": checks(),
        }
    for name, figures in found.items():
        print(name)
        for key, value in figures.items():
            print(f"  {key:24} {value:8.1f}")
    output.parent.mkdir(exist_ok=True)
    machine = this_machine().model_dump(mode="json")
    output.write_text(json.dumps({"command": "make bench-dispatch", "machine": machine, "figures": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
