"""The ONNX Runtime backend, one cluster at a time. Its operator table is tested in `tests/conformance`."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as ort
from plugin_onnxruntime import binding, peers, runtime
from plugin_onnxruntime.backend import create
from plugin_onnxruntime.hooks import hub_backends
from plugin_onnxruntime.lower import RULES, lower
from plugin_onnxruntime.lower.builder import expression
from plugin_onnxruntime.program import MODEL_FILE, WEIGHTS_FILE
from plugin_onnxruntime.runtime import OnnxExecutable, optimised_text
from plugin_onnxruntime.support import OPERATORS
from torch import fx, nn
from torch.nn import functional as F

from hub.bench.zoo import build
from hub.capture.training import capture_with_autograd
from hub.errors import CompileError, RunError
from hub.partition.extract import extract
from hub.partition.group import group
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster, Graph, TensorSpec
from hub.testing.operators import overload_of
from hub.testing.single import SETTINGS, Captured, capture, whole_cluster

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning", "ignore:Dynamo detected a call to a")
"""The parts of torch that models and the exporter go through warn about each other."""

Inputs = tuple[Any, ...]
BACKEND = create()
FLOAT32_ROUNDINGS = 5e-6
"""Largest max|error| / max|value| of a whole small model: some 40 float32 roundings, in another order than eager's."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Set one thread: small models on a shared machine; the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _recurrent_layers() -> Iterator[None]:
    """Let Dynamo capture LSTMs, which it does only if set to."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def function_cluster(function: Any, *inputs: Any, dynamic: bool = False) -> tuple[Cluster, Inputs]:
    """Return a function as one cluster, with the values of its inputs."""
    return whole_cluster(Function(function), inputs, dynamic=dynamic)


def compiled(cluster: Cluster, settings: CompileSettings = SETTINGS) -> OnnxExecutable:
    """Compile a cluster, every node of which must be supported."""
    for node in cluster.nodes:
        assert node.target is operator.getitem or BACKEND.supports(node).accepted
    executable = BACKEND.compile(cluster, settings)
    assert isinstance(executable, OnnxExecutable)
    return executable


def operators_of(cluster: Cluster) -> list[str]:
    """Return the ONNX operators that a cluster is lowered to, before ORT's optimisations."""
    return [node.op_type for node in lower(cluster).model.graph.node]


# --- The table --------------------------------------------------------------------------------------------------------


def test_supported_and_lowered_operators_are_the_same() -> None:
    """Each row of the support table has a lowering, and each lowering a row."""
    assert set(OPERATORS.rows) == set(RULES)


@pytest.mark.parametrize("name", OPERATORS.rows)
def test_declared_operators_exist(name: str) -> None:
    """Each row names an operator of this torch."""
    assert overload_of(name) is not None


def test_table_needs_no_heavy_import() -> None:
    """Counting the operators imports neither torch nor onnx nor ONNX Runtime."""
    program = (
        "import sys, plugin_onnxruntime.hooks, plugin_onnxruntime.support as s; assert len(s.OPERATORS) > 300;"
        "print([m for m in ('torch', 'onnx', 'onnxruntime', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_registration() -> None:
    """The hook announces the backend with its requirements and its own way to be benchmarked."""
    (info,) = hub_backends()
    assert info.name == "onnxruntime"
    assert info.dynamic_shapes and info.training
    assert info.peers == {"onnxruntime": "plugin_onnxruntime.peers:whole"}


def test_probe() -> None:
    """A one-operator program runs."""
    assert BACKEND.probe().accepted


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (lambda x: x.half() * 2, (torch.ones(3),), "dtype float16"),
        (lambda x, y: x // y, (torch.tensor([7]), torch.tensor([2])), "integer division"),
        (lambda x: F.adaptive_avg_pool2d(x, 4), (torch.ones(1, 1, 9, 9),), "unequal size"),
        (lambda x: F.max_pool2d(x, 2, return_indices=True), (torch.ones(1, 1, 4, 4),), "output 1 is read"),
        (torch.argsort, (torch.tensor([7, 2, 7]),), "not in the operator table"),
        (torch.sign, (torch.tensor([True, False]),), "dtype bool"),
        (lambda x, y: torch.outer(x, y), (torch.tensor([True]), torch.tensor([False, True])), "dtype bool"),
        (lambda x: torch.prod(x, dtype=torch.bool), (torch.ones(3),), "dtype bool"),
    ],
)
def test_refusals_say_why(function: Any, inputs: Inputs, reason: str) -> None:
    """What ORT has no right kernel for is refused, in words, before anything is compiled."""
    captured = capture(Function(function), inputs)
    verdicts = [BACKEND.supports(node) for node in captured.graph.nodes if node.target is not operator.getitem]
    assert any(not verdict.accepted and reason in verdict.reason for verdict in verdicts)


# --- Whole models -----------------------------------------------------------------------------------------------------

MODELS = (
    "bert", "gpt2", "llama", "t5", "vit", "swin", "convnext", "resnet18", "resnet50", "mobilenetv2", "segformer",
    "whisper-encoder", "wav2vec2", "mlp", "lstm", "unet",
)  # fmt: skip


SLOW_TO_CAPTURE = ("swin", "mobilenetv2", "segformer", "t5", "convnext", "wav2vec2", "resnet50")
"""Dynamo reasons about their symbolic sizes, or they are verified at many, for up to a minute."""
SLOW = ("segformer", "mobilenetv2")
"""Verified for up to a minute."""


def combination(name: str, dynamic: bool) -> Any:
    """Return the parameters of one test, marked slow if capturing is."""
    is_slow = name in (SLOW_TO_CAPTURE if dynamic else SLOW)
    marks = [pytest.mark.slow] if is_slow else []
    return pytest.param(name, dynamic, marks=marks, id=f"{name}-{'dynamic' if dynamic else 'static'}")


def captured_model(name: str, *, dynamic: bool) -> Captured:
    """Capture a small model, called once before: `transformers` does things on a first call that Dynamo cannot follow."""
    module, inputs = build(name, small=True)
    with torch.no_grad():
        module(*inputs)
    return capture(module, inputs, dynamic=dynamic)


def preferred(graph: Graph) -> dict[str, str]:
    """Assign each node that is accepted and not pinned to this backend; none may be refused."""
    refused = [
        verdict.reason
        for node in graph.nodes
        if node.name not in graph.pinned
        and node.target is not operator.getitem
        and not (verdict := BACKEND.supports(node)).accepted
    ]
    assert not refused
    return {node.name: "eager" if node.name in graph.pinned else "onnxruntime" for node in graph.nodes}


def run_mixed(graph: Graph, inputs: Sequence[Any], weights: dict[str, torch.Tensor]) -> tuple[list[Any], int]:
    """Run a graph with everything accepted in this backend; return its outputs and the number of clusters."""
    values = dict(zip((node.name for node in graph.placeholders), inputs, strict=True))
    eager = fx.Interpreter(graph.module)
    groups = group(graph, preferred(graph))
    for found in groups:
        if found.backend == "eager":
            for name in found.nodes:
                node = graph.by_name[name]
                eager.env = {source: _value(graph, source, values) for source in node.all_input_nodes}
                values[name] = eager.run_node(node)
        else:
            cluster = extract(graph, found.nodes, "c", weights)
            outputs = compiled(cluster)(*(values[name] for name in cluster.input_names))
            values |= dict(zip(cluster.output_names, outputs, strict=True))
    results = [_value(graph, item, values) if isinstance(item, fx.Node) else item for item in graph.outputs]
    return results, sum(found.backend != "eager" for found in groups)


def _value(graph: Graph, node: fx.Node, values: dict[str, Any]) -> Any:
    return getattr(graph.module, str(node.target)) if node.op == "get_attr" else values[node.name]


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return max|error| / max|wanted|."""
    return float((got.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1e-30))


@pytest.mark.usefixtures("_recurrent_layers")
@pytest.mark.parametrize(("name", "dynamic"), [combination(name, dynamic) for name in MODELS for dynamic in (False, True)])
def test_whole_models(name: str, dynamic: bool) -> None:
    """Every operator of the model is taken, and float32 results are as exact as eager's own against float64."""
    captured = captured_model(name, dynamic=dynamic)
    with torch.no_grad():
        got, n_clusters = run_mixed(captured.graph, captured.inputs, captured.weights)
        module, inputs = build(name, small=True)
        eager = module(*inputs)
        exact = module.double()(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert n_clusters == 1 or dynamic
    own = relative_error(eager, exact)
    assert relative_error(got[-1], exact) <= 4 * own + FLOAT32_ROUNDINGS / 5


def test_scan_of_a_state_space_model() -> None:
    """Mamba, whose scan has only a post-dispatch form, is one cluster too."""
    module, inputs = build("mamba", small=True)
    clusters: list[int] = []

    def compile_graph(graph: Graph, mode: str) -> Any:
        def run(*values: Any) -> Any:
            results, n_clusters = run_mixed(graph, values, {})
            clusters.append(n_clusters)
            return results

        return run

    torch._dynamo.reset()
    with torch.no_grad():
        program = torch.compile(
            module, backend=lambda program, example: capture_with_autograd(program, example, compile_graph)
        )
        got, wanted = program(*inputs), module(*inputs)
    assert clusters == [1]
    assert relative_error(got, wanted) <= FLOAT32_ROUNDINGS


class Reader(nn.Module):
    """Embeds, attends by hand, normalises: what training graphs of language models are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(20, 8, padding_idx=0), nn.LayerNorm(8), nn.Linear(8, 5)
        self.mix = nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        weights = (self.mix(x) @ x.transpose(1, 2)).softmax(-1)
        x = F.gelu(self.norm(weights @ x)) + F.gelu(x, approximate="tanh") + F.silu(x).tanh() + x.sigmoid().relu()
        return F.log_softmax(self.out(x[:, 1:]), -1)[:, 0]


def test_backward_graphs() -> None:
    """Gradients whose operators are all supported match eager's; forward and backward graphs are one cluster each."""
    module, twin, inputs = Reader(), Reader(), (torch.randint(0, 20, (4, 6)),)
    twin.load_state_dict(module.state_dict())
    clusters: dict[str, int] = {}

    def compile_graph(graph: Graph, mode: str) -> Any:
        def run(*values: Any) -> Any:
            results, clusters[mode] = run_mixed(graph, values, {})
            return results

        return run

    torch._dynamo.reset()
    program = torch.compile(module, backend=lambda program, example: capture_with_autograd(program, example, compile_graph))
    program(*inputs).square().mean().backward()
    twin(*inputs).square().mean().backward()
    assert clusters == {"forward": 1, "backward": 1}
    largest = max(float(value.grad.abs().max()) for value in twin.parameters() if value.grad is not None)
    for got, wanted in zip(module.parameters(), twin.parameters(), strict=True):
        if wanted.grad is not None:
            torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-4, atol=largest * FLOAT32_ROUNDINGS)


# --- What it lowers to ------------------------------------------------------------------------------------------------


def test_linear_weights_are_transposed_once() -> None:
    """A linear layer over [B, S, D] becomes MatMul with a constant that ORT can pack, and no Transpose runs."""
    cluster, _ = whole_cluster(nn.Linear(8, 4), (torch.randn(2, 3, 8),))
    assert operators_of(cluster) == ["MatMul", "Add"]


def test_batch_norm_is_folded_into_convolution() -> None:
    """Nothing of a batch norm or an activation after a convolution is left to run."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    cluster, _ = whole_cluster(model, (torch.randn(1, 3, 8, 8),))
    text = optimised_text(lower(cluster), cluster)
    assert "BatchNormalization" not in text
    assert "= Relu" not in text


def test_written_out_rms_norm_is_one_operator() -> None:
    """Llama's norm, and nothing of its parts."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    cluster, inputs = whole_cluster(Norm(), (torch.randn(3, 8),))
    assert operators_of(cluster) == ["SimplifiedLayerNormalization"]
    cluster, inputs = function_cluster(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), torch.randn(3, 8))
    assert "SimplifiedLayerNormalization" not in operators_of(cluster)
    (got,) = compiled(cluster)(*inputs)
    torch.testing.assert_close(got, inputs[0] * torch.rsqrt(inputs[0].pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize(
    "mask", [torch.tensor([[True, False], [False, False]]), torch.tensor([[0.0, -1.0], [-torch.inf] * 2])]
)
def test_attention_rows_without_keys_give_zero(mask: torch.Tensor) -> None:
    """A query that may look at nothing gives 0, not NaN, as in eager."""
    query = torch.randn(1, 2, 2, 4)
    cluster, inputs = function_cluster(lambda q, m: F.scaled_dot_product_attention(q, q, q, m), query, mask)
    (got,) = compiled(cluster)(*inputs)
    torch.testing.assert_close(got, F.scaled_dot_product_attention(query, query, query, mask))
    assert not got[0, 0, 1].any()


def test_attention_keeps_minus_infinity_beside_the_lowest_number() -> None:
    """Where masks that were added hold both, keys at the lowest number count alike and those at minus infinity do not."""
    query, value = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    mask = torch.full((1, 1, 4, 4), torch.finfo(torch.float32).min)
    mask[..., 3] = -torch.inf
    cluster, inputs = function_cluster(lambda q, v, m: F.scaled_dot_product_attention(q, q, v, m), query, value, mask)
    (got,) = compiled(cluster)(*inputs)
    torch.testing.assert_close(got, value[..., :3, :].mean(-2, keepdim=True).expand_as(value))


@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7)], ids=str)
@pytest.mark.parametrize("product", [torch.matmul, F.linear], ids=["matmul", "linear"])
def test_transposed_matrices_times_a_vector(product: Any, shape: tuple[int, ...]) -> None:
    """ORT's fusion of Transpose and MatMul, which forgets to transpose where the right side is a vector, finds none."""
    matrix, vector = torch.randn(shape), torch.randn(5)
    cluster, inputs = function_cluster(lambda m, v: product(m.mT, v), matrix, vector)
    torch.testing.assert_close(compiled(cluster)(*inputs)[0], product(matrix.mT, vector))


def test_double_stays_double() -> None:
    """ORT's fusion of MatMul and a factor, which keeps the factor in float32, is off where there are doubles."""
    x = torch.randn(3, 3, dtype=torch.float64)
    cluster, inputs = function_cluster(lambda x: (x @ x) * 0.1, x)
    torch.testing.assert_close(compiled(cluster)(*inputs)[0], (x @ x) * 0.1, rtol=1e-15, atol=1e-15)


def test_unknown_operators_are_compile_errors() -> None:
    """A cluster with an operator outside the table names the node."""
    cluster, _ = function_cluster(lambda x: torch.special.digamma(x), torch.rand(3))
    with pytest.raises(CompileError, match="digamma") as caught:
        BACKEND.compile(cluster, SETTINGS)
    assert caught.value.node == cluster.node_names[0]
    assert caught.value.backend == "onnxruntime"


def test_large_constants_stay_where_they_are() -> None:
    """A large weight is neither copied nor put into the protobuf."""
    table = nn.Embedding(1000, 64)
    cluster, inputs = whole_cluster(table, (torch.tensor([3, 999]),))
    program = lower(cluster)
    (weight,) = program.weights.values()
    assert weight.data_ptr() == table.weight.data_ptr()
    assert len(program.model.SerializeToString()) < 2000
    torch.testing.assert_close(compiled(cluster)(*inputs)[0], table(inputs[0]), rtol=0, atol=0)


def test_session_options_follow_the_settings() -> None:
    """Threads and busy-waiting are the hub's to decide."""
    cluster, _ = function_cluster(torch.relu, torch.randn(4))
    for settings, stops in ((CompileSettings(threads=2), "1"), (CompileSettings(threads=1, busy_wait=True), "0")):
        options = compiled(cluster, settings)._session.get_session_options()
        assert options.intra_op_num_threads == settings.threads
        assert options.inter_op_num_threads == 1
        assert options.get_session_config_entry("session.force_spinning_stop") == stops


# --- Crossing the edge ------------------------------------------------------------------------------------------------


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record the address of every buffer that is bound in ORT."""
    seen: list[tuple[str, int]] = []

    class Recording(ort.SessionIOBinding):
        def bind_input(self, name: str, *rest: Any) -> None:
            seen.append(("input", rest[-1]))
            super().bind_input(name, *rest)

        def bind_output(self, name: str, *rest: Any) -> None:
            seen.append(("output", rest[-1]))
            super().bind_output(name, *rest)

    monkeypatch.setattr(binding.ort, "SessionIOBinding", Recording)
    return seen


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_tensors_cross_without_copies(bound: list[tuple[str, int]], dynamic: bool) -> None:
    """ORT reads the caller's memory and writes the result's."""
    cluster, inputs = function_cluster(lambda x, y: (x + y).relu(), torch.randn(4, 6), torch.randn(4, 6), dynamic=dynamic)
    (got,) = compiled(cluster)(*inputs)
    read = [address for kind, address in bound if kind == "input"]
    assert {x.data_ptr() for x in inputs if isinstance(x, torch.Tensor)} <= set(read)
    assert [address for kind, address in bound if kind == "output"] == [got.data_ptr()]


def test_permuted_tensors_cross_without_copies(bound: list[tuple[str, int]]) -> None:
    """A channels-last or transposed tensor is read, and where the cluster's specs say so, written as it lies in memory."""
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    cluster, inputs = function_cluster(lambda x: x * 2, x)
    (got,) = compiled(cluster)(*inputs)
    assert bound == [("input", x.data_ptr()), ("output", got.data_ptr())]
    assert got.stride() == x.stride()
    torch.testing.assert_close(got, x * 2)


def test_any_stride_is_read_and_nothing_written() -> None:
    """Expanded, strided and offset inputs are right, and stay as they were."""
    base = torch.randn(8, 6)
    values = (base[1::2, ::3], base[:1, :2].expand(4, 2), base.t()[:2, :4].t())
    before = base.clone()
    cluster, _ = function_cluster(lambda a, b, c: a * b + c, *(value.contiguous() for value in values))
    (got,) = compiled(cluster)(*values)
    torch.testing.assert_close(got, values[0] * values[1] + values[2])
    assert torch.equal(base, before)


def test_results_are_new_each_time() -> None:
    """A later call writes to no earlier result, and an output that is an input or a constant is a copy."""

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("constant", torch.arange(400.0))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x + 1, x.clone(), self.constant.clone(), (x + 1).clone()

    cluster, (x,) = whole_cluster(Program(), (torch.randn(3),))
    executable = compiled(cluster)
    first = executable(x)
    kept = [value.clone() for value in first]
    second = executable(x * 2)
    assert all(torch.equal(value, copy) for value, copy in zip(first, kept, strict=True))
    addresses = {value.data_ptr() for value in (*first, *second, x)}
    assert len(addresses) == len(first) + len(second) + 1


def test_scalar_tensors() -> None:
    """Tensors without dims cross both ways."""
    cluster, inputs = function_cluster(lambda a, b: (a + b, b * 2, a.sum()), torch.zeros(2, 3), torch.tensor(5.0))
    filled, twice, total = compiled(cluster)(*inputs)
    assert filled.tolist() == [[5.0] * 3] * 2
    assert twice.shape == () and twice.item() == 10
    assert total.item() == 0


def test_empty_tensors_are_refused() -> None:
    """ONNX Runtime divides by a size of 0 in some kernels, which ends the process."""
    cluster, _ = function_cluster(lambda a: a.cumprod(1), torch.zeros(0, 4))
    verdict = BACKEND.supports(cluster.nodes[0])
    assert not verdict.accepted and "an empty tensor [0, 4]" in verdict.reason


def test_booleans_and_integers() -> None:
    """Booleans and integers cross both ways in their own dtype."""
    inputs = (torch.tensor([True, False, True]), torch.tensor([1, -2, 2**40]), torch.tensor([7, 8, 9], dtype=torch.int32))
    cluster, _ = function_cluster(lambda a, b, c: (~a, b * 3, c + a, b > 0), *inputs)
    got = compiled(cluster)(*inputs)
    for mine, wanted in zip(got, (~inputs[0], inputs[1] * 3, inputs[2] + inputs[0], inputs[1] > 0), strict=True):
        assert mine.dtype == wanted.dtype
        assert torch.equal(mine, wanted)


def test_integers_wrap() -> None:
    """Overflow wraps around, as in eager."""
    x = torch.tensor([2**62, -(2**62)]), torch.tensor([2**31 - 1], dtype=torch.int32)
    cluster, inputs = function_cluster(lambda a, b: (a * 4 + 1, b + 1), *x)
    for mine, wanted in zip(compiled(cluster)(*inputs), (x[0] * 4 + 1, x[1] + 1), strict=True):
        assert torch.equal(mine, wanted)


def arguments(cluster: Cluster, *tensors: torch.Tensor, others: Sequence[int] = ()) -> list[Any]:
    """Return a cluster's inputs for new tensors: numbers follow from their sizes, or are taken from `others` in order."""
    shown: dict[Any, int] = {}
    for spec, tensor in zip((spec for spec in cluster.inputs if isinstance(spec, TensorSpec)), tensors, strict=True):
        shown |= {expression(size): real for size, real in zip(spec.shape, tensor.shape, strict=True)}
    given, numbers = iter(tensors), iter(others)

    def number(wanted: Any) -> int:
        return int(wanted.xreplace(shown)) if wanted.free_symbols <= set(shown) else next(numbers)

    return [next(given) if isinstance(spec, TensorSpec) else number(expression(spec.value)) for spec in cluster.inputs]


def test_sizes_that_no_input_shows_are_left_to_ort() -> None:
    """Where an output's size cannot be computed before the call, ORT allocates it."""
    captured = capture(Function(lambda x: (torch.cat([x, x[1:]]) > 0).flatten()[1:]), (torch.randn(4, 3),), dynamic=True)
    names = [node.name for node in captured.graph.nodes if node.name not in captured.graph.pinned]
    last = extract(captured.graph, names[names.index("cat") + 1 :], "c", {})
    executable = compiled(last)
    assert "taken(" in executable.source
    for rows in (5, 9):
        x = torch.randn(rows, 3)
        (got,) = executable(*arguments(last, x, others=[3 * rows] * 2))
        assert got.dtype == torch.bool
        assert torch.equal(got, (x > 0).flatten()[1:])


def test_one_executable_serves_every_size() -> None:
    """Batch and length vary over 8 sizes each; one executable, exact results."""
    model = nn.Sequential(
        nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), Function(lambda x: x.transpose(1, 2).softmax(-1).flatten(1))
    )
    cluster, _ = whole_cluster(model, (torch.randn(4, 5, 6),), dynamic=True)
    executable = compiled(cluster)
    for batch, length in zip(range(1, 9), (1, 2, 3, 17, 5, 64, 7, 9), strict=True):
        x = torch.randn(batch, length, 6)
        with torch.no_grad():
            wanted = model(x)
        torch.testing.assert_close(executable(*arguments(cluster, x))[0], wanted)


def test_numbers_are_inputs() -> None:
    """Sizes that arrive as plain ints drive shapes and arithmetic inside."""
    cluster, _ = function_cluster(lambda x, n: x.view(n, -1) * n, torch.randn(6, 2), 3, dynamic=True)
    executable = compiled(cluster)
    x = torch.randn(12, 2)
    for count in (2, 3, 4, 6):
        assert torch.equal(executable(*arguments(cluster, x, others=[count] * 2))[0], x.view(count, -1) * count)


def test_threads_share_an_executable() -> None:
    """Several threads call one executable at once and each gets its own right answer."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    cluster, _ = whole_cluster(model, (torch.randn(8, 16),))
    executable = compiled(cluster, CompileSettings(threads=2))
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            wanted = model(x)
            wrong.extend(seed for _ in range(50) if not torch.allclose(executable(x)[0], wanted, atol=1e-6))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- Files ------------------------------------------------------------------------------------------------------------


def test_saved_executables_load(tmp_path: Path) -> None:
    """What was saved gives the same results without lowering again, constants of all sizes and permuted edges included."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        Function(lambda x: x.mean((2, 3))),
        nn.Linear(32, 40),
    )
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    cluster, inputs = whole_cluster(model.eval(), (x,))
    executable = compiled(cluster)
    executable.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {MODEL_FILE, WEIGHTS_FILE, "edges.json"}
    onnx.checker.check_model(str(tmp_path / MODEL_FILE))
    loaded = BACKEND.load(tmp_path, cluster, SETTINGS)
    torch.testing.assert_close(loaded(*inputs)[0], executable(*inputs)[0], rtol=0, atol=0)


def test_missing_files_are_compile_errors(tmp_path: Path) -> None:
    """A folder without a saved model, and one with a broken one, are refused."""
    cluster, _ = function_cluster(torch.relu, torch.randn(3))
    with pytest.raises(CompileError, match="no saved model"):
        BACKEND.load(tmp_path, cluster, SETTINGS)
    compiled(cluster).save(tmp_path)
    (tmp_path / MODEL_FILE).write_bytes(b"nonsense")
    with pytest.raises(CompileError, match="refused the model"):
        BACKEND.load(tmp_path, cluster, SETTINGS)


def test_dump_shows_every_stage(tmp_path: Path) -> None:
    """Model, optimised model, binding code and session options can be read, also of a loaded executable."""
    cluster, _ = whole_cluster(nn.Linear(64, 64), (torch.randn(2, 64),))
    executable = compiled(cluster)
    executable.dump(tmp_path)
    assert "Gemm" in (tmp_path / "model.txt").read_text()
    assert "Gemm" in (tmp_path / "optimised.txt").read_text()
    assert "def run(" in (tmp_path / "run.py").read_text()
    assert "intra_op_num_threads = 1" in (tmp_path / "session.txt").read_text()
    saved = tmp_path / "saved"
    saved.mkdir()
    executable.save(saved)
    BACKEND.load(saved, cluster, SETTINGS).dump(tmp_path)
    assert "Gemm" in (tmp_path / "model.txt").read_text()


# --- Errors -----------------------------------------------------------------------------------------------------------

ORT_ERRORS = [
    value for value in vars(ort).values() if isinstance(value, type) and issubclass(value, BaseException)
] + [ValueError, RuntimeError]  # fmt: skip


def test_every_ort_error_is_listed() -> None:
    """ORT's binding module still holds the exceptions that the tests below raise."""
    assert {"Fail", "InvalidArgument", "InvalidGraph", "NoSuchFile", "NotImplemented", "RuntimeException"} <= {
        error.__name__ for error in ORT_ERRORS
    }


@pytest.mark.parametrize("error", ORT_ERRORS)
def test_ort_errors_while_compiling_are_wrapped(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ORT raises while it opens a session is a CompileError with that cause."""

    def broken(*_: Any, **__: Any) -> None:
        raise error("no")

    cluster, _ = function_cluster(torch.relu, torch.randn(3))
    monkeypatch.setattr(runtime.onnxruntime, "InferenceSession", broken)
    with pytest.raises(CompileError) as caught:
        BACKEND.compile(cluster, SETTINGS)
    assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize("error", ORT_ERRORS)
def test_ort_errors_while_running_are_wrapped(error: type[Exception]) -> None:
    """Whatever ORT raises in a call is a RunError with that cause."""

    def broken(*_: Any) -> None:
        raise error("no")

    cluster, inputs = function_cluster(torch.relu, torch.randn(3))
    executable = compiled(cluster)
    executable._run = broken
    with pytest.raises(RunError) as caught:
        executable(*inputs)
    assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize(
    "bad", [torch.ones(4), torch.ones(3, 2), torch.ones(3, dtype=torch.float64), torch.ones(3, device="meta"), 3, None]
)
def test_wrong_inputs_are_run_errors(bad: Any) -> None:
    """A wrong shape, dtype, device or type is refused before ORT reads foreign memory; the next call is right."""
    cluster, (x,) = function_cluster(torch.relu, torch.randn(3))
    executable = compiled(cluster)
    with pytest.raises(RunError):
        executable(bad)
    assert torch.equal(executable(x)[0], x.relu())


def test_wrong_positions_are_run_errors() -> None:
    """An index out of range, which only ORT can see, is a RunError."""
    cluster, _ = function_cluster(lambda x, i: x[i], torch.randn(3), torch.tensor([1]))
    with pytest.raises(RunError, match="out of"):
        compiled(cluster)(torch.randn(3), torch.tensor([7]))


# --- The library by itself --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_peer_runs_the_model_its_own_way() -> None:
    """The contender of `hub bench` gives the model's result through torch.onnx and a plain session."""
    module, inputs = build("mlp", small=True)
    run = peers.whole(module, inputs)
    with torch.no_grad():
        wanted = module(*inputs)
    torch.testing.assert_close(run()[0], wanted, rtol=1e-5, atol=1e-5)
    assert onnxruntime.__version__


def test_nothing_is_collected_about_the_user(tmp_path: Path) -> None:
    """A process that uses the plugin leaves no database of ONNX Runtime's telemetry, and its environment as it was."""
    code = (
        "import os; before = dict(os.environ)\n"
        "import torch, hub\n"
        "model = torch.nn.Linear(4, 4)\n"
        "options = {'backends': ('onnxruntime',), 'tune': 'off', 'isolate': False}\n"
        "with torch.no_grad():\n"
        "    compiled = torch.compile(model, backend='hub', options=options)\n"
        "    compiled(torch.ones(2, 4))\n"
        "assert [cluster.backend for plan in hub.plans(compiled) for cluster in plan.clusters] == ['onnxruntime']\n"
        "assert 'ORT_DISABLE_TELEMETRY' not in os.environ and 'ORT_DISABLE_TELEMETRY' not in before\n"
    )
    unset = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment = {
        **unset,
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HUB_CACHE_DIR": str(tmp_path / "hub"),
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert not [path for path in tmp_path.rglob("*") if "Microsoft" in path.parts]
