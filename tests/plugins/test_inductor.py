"""The Inductor backend, one cluster at a time."""

from __future__ import annotations

import copy
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import transformers.integrations.moe
from plugin_inductor import compiler
from plugin_inductor.backend import create, relu_cluster
from plugin_inductor.hooks import hub_backends
from plugin_inductor.runtime import InductorExecutable
from torch import fx, nn
from torch._inductor import config, cpp_builder
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import hub
from hub.capture.inference import capture_inference
from hub.capture.training import capture_with_autograd
from hub.discovery.registry import load_attribute
from hub.errors import CompileError, RunError
from hub.partition.extract import extract
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster, Graph
from hub.testing.single import SETTINGS, capture, whole_cluster
from hub.verification.verify import verify
from hub.workers.transfer import Sample, read_sample, write_sample

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.:DeprecationWarning", "ignore:TypedStorage is deprecated", "ignore:Dynamo detected a call to a"
)
"""The parts of torch that peers and exports go through warn about each other."""

Inputs = tuple[Any, ...]
BACKEND = create()
GROUPED = torch.ops.transformers.grouped_mm_fallback


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Set one thread: small models on a shared machine; the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch._dynamo.config.patch(allow_rnn=True, capture_dynamic_output_shape_ops=True):
        yield
    torch.set_num_threads(before)


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


class First(nn.Module):
    """A model of which only the first output is read."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> torch.Tensor:
        return self.model(*inputs)[0]


class Attention(nn.Module):
    """One transformer block: attention with a residual, normalisation, a feed-forward part."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Recurrent(nn.Module):
    """An LSTM of two layers, of which the output and the last cell state are read."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, (_, c) = self.lstm(x)
        return y, c


class Embedding(nn.Module):
    """Tokens and positions, summed and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.norm = nn.Embedding(50, 16), nn.Embedding(12, 16), nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.tokens(ids) + self.places.weight[: ids.shape[1]])


class Experts(nn.Module):
    """Three experts' products by an operator that transformers defines; tokens are sorted by expert."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 5))

    def forward(self, tokens: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return GROUPED(torch.tanh(tokens), self.weight, ends) * 2


def conv_norm_relu() -> nn.Module:
    """Return a convolution with a batch norm that is not the identity."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
    return model


def integers(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Compute integer arithmetic with negative numbers, where rounding differs between languages."""
    return a // b, a % b, torch.div(a, b, rounding_mode="trunc"), a >> 1, (a > b).sum(0), a.cumsum(1), a.argmax(1)


def reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return sums, products, extremes, moments."""
    return x.sum(), x.prod(1), x.amax(0), x.var(1), torch.logsumexp(x, 1), x.softmax(0), torch.topk(x, 3, dim=1)[0]


def views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return results of views of inputs or constants, by operators that declare to be views and by others."""
    return x.t() + 0, x.type_as(y).reshape(-1), torch.einsum("ij->ji", x), x[1:, ::2] * 1, torch.relu(y)


CASES: dict[str, tuple[Any, Any]] = {
    "conv_norm_relu": (conv_norm_relu, lambda: (torch.randn(2, 3, 12, 12),)),
    "attention": (Attention, lambda: (torch.randn(2, 6, 32),)),
    "norm_gelu": (lambda: nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 40), nn.GELU()), lambda: (torch.randn(5, 24),)),
    "lstm": (Recurrent, lambda: (torch.randn(2, 5, 8),)),
    "embedding": (Embedding, lambda: (torch.randint(0, 50, (3, 7)),)),
    "reductions": (lambda: Function(reductions), lambda: (torch.randn(6, 9),)),
    "integers": (lambda: Function(integers), lambda: (torch.randint(-9, 9, (4, 5)), torch.tensor([[-3], [2], [5], [-1]]))),
    "experts": (Experts, lambda: (torch.randn(9, 8), torch.tensor([2, 5, 9], dtype=torch.int32))),
    "views": (lambda: Function(views), lambda: (torch.randn(4, 6), torch.randn(2))),
}


def cut(name: str, *, dynamic: bool = False) -> tuple[Cluster, Inputs]:
    """Return one of the cases as a cluster, with the values of its inputs."""
    make, inputs = CASES[name]
    return whole_cluster(make().eval(), inputs(), dynamic=dynamic)


def compiled(cluster: Cluster, settings: CompileSettings = SETTINGS) -> InductorExecutable:
    """Compile, and narrow the type to our own executable, for the tests that look inside."""
    executable = BACKEND.compile(cluster, settings)
    assert isinstance(executable, InductorExecutable)
    return executable


def by_hand(function: Any, *values: torch.Tensor, weights: dict[str, torch.Tensor] | None = None) -> Cluster:
    """Return the cluster of a function of fake tensors, traced operator by operator, so that nothing is pinned."""
    traced = make_fx(function, tracing_mode="fake")(*values, *(weights or {}).values())
    graph = Graph(traced, "graph")
    placeholders = [node.name for node in graph.placeholders]
    bound = dict(zip(placeholders[len(values) :], (weights or {}).values(), strict=True))
    outputs = traced.graph.output_node().args[0]
    traced.graph.output_node().args = (outputs if isinstance(outputs, (tuple, list)) else (outputs,),)
    return extract(graph, [node.name for node in graph.nodes], "c0", bound)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new process."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


# --- Numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_as_exact_as_eager(name: str) -> None:
    """Numbers, shapes and dtypes match eager; inputs are not written to and outputs share no memory with them."""
    cluster, inputs = cut(name)
    verify(cluster, "inductor", compiled(cluster), inputs, None)


@pytest.mark.slow
def test_the_longest_search_gives_the_same_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    """`effort="full"` lets Inductor try templates for products, silently, and the result is as exact."""
    cluster, inputs = whole_cluster(
        nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval(), (torch.randn(32, 64),)
    )
    executable = compiled(cluster, CompileSettings(threads=1, effort="full"))
    verify(cluster, "inductor", executable, inputs, None)
    assert "utotune" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["erf", "tanh", "log1p", "expm1", "atanh", "sin"])
def test_small_arguments_keep_their_relative_precision(name: str) -> None:
    """Functions that pass through zero are exact to a few roundings there too."""
    x = torch.tensor([1e-6, -1e-4, 3e-3, 0.05, -0.3, 0.7, -0.99, 0.0] * 4)
    cluster = by_hand(getattr(torch, name), x)
    (got,) = compiled(cluster)(x)
    torch.testing.assert_close(got, getattr(torch, name)(x.double()).float(), rtol=1e-6, atol=0.0)


# --- Weights ----------------------------------------------------------------------------------------------------------


def test_weights_are_folded_and_prepacked() -> None:
    """A batch norm disappears into the convolution before it, and convolution weights come in an opaque layout."""
    executable = compiled(cut("conv_norm_relu")[0])
    program = executable._program
    assert "batch_norm" not in program.graph
    assert "rsqrt" not in program.graph
    if torch.backends.mkldnn.is_available():
        assert any(value.layout is not torch.strided for value in program.constants.values())


def test_other_weights_give_other_results() -> None:
    """Equal structure with other constants is another program."""
    module, inputs = nn.Linear(8, 4).eval(), (torch.randn(3, 8),)
    first, values = whole_cluster(module, inputs)
    before = compiled(first)(*values)[0]
    with torch.no_grad():
        module.weight.mul_(2)
    second, values = whole_cluster(copy.deepcopy(module), inputs)
    after = compiled(second)(*values)[0]
    assert not torch.allclose(before, after)
    verify(second, "inductor", compiled(second), values, None)


def test_weights_whose_names_meet_those_of_inputs_stay_apart() -> None:
    """A weight and an input of equal names in Inductor's own program are not confused."""
    weights = {f"w{index}": torch.randn(8, 8) for index in range(4)}

    def chain(x: torch.Tensor, *matrices: torch.Tensor) -> torch.Tensor:
        for matrix in matrices:
            x = torch.relu(x @ matrix + matrix[0])
        return x

    x = torch.randn(3, 8)
    cluster = by_hand(chain, x, weights=weights)
    verify(cluster, "inductor", compiled(cluster), (x,), None)


def test_an_output_made_of_weights_alone_is_new_on_every_call() -> None:
    """Writing to a result that folds to a constant does not change the next one."""
    cluster = by_hand(lambda x, w: (x + 1, w.t() * 2, w.t()), torch.randn(3), weights={"w": torch.randn(2, 3)})
    executable = compiled(cluster)
    x = torch.randn(3)
    expected = [value.clone() for value in cluster.module(x)]
    for value in executable(x):
        value.fill_(7.0)
    for got, want in zip(executable(x), expected, strict=True):
        torch.testing.assert_close(got, want)


def test_tied_weights_load_where_they_are_no_longer_one_tensor(tmp_path: Path) -> None:
    """A worker sees two equal tensors where the parent has one, and the saved program fits both."""
    weight, x = torch.randn(8, 8), torch.randn(2, 8)
    make, names = (lambda x, a, b: (x @ a @ b.t(),)), ("a", "b")
    untied = by_hand(make, x, weights={name: weight.clone() for name in names})
    tied = by_hand(make, x, weights={name: weight.clone() for name in names})
    for name in tied.constants:
        tied.module.register_buffer(name, weight)
    compiled(untied).save(tmp_path / "saved")
    verify(tied, "inductor", BACKEND.load(tmp_path / "saved", tied, SETTINGS), (x,), None)


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_outputs_that_are_views_of_inputs_are_copies() -> None:
    """A cluster may end in a view, an identity, or an operator that gives its input back: the result is new memory."""
    x = torch.randn(4, 6)
    cluster = by_hand(
        lambda x: (x.t(), x.view(24), x.expand(2, 4, 6), torch.meshgrid(x[0], x[1], indexing="ij")[0], x.relu()), x
    )
    verify(cluster, "inductor", compiled(cluster), (x,), None)


@pytest.mark.parametrize("change", ["transposed", "strided", "offset", "expanded"])
def test_inputs_may_have_other_strides_than_captured(change: str) -> None:
    """Inputs in another memory order are copied, not misread and not written to."""
    x = {
        "transposed": torch.randn(6, 4).t(),
        "strided": torch.randn(8, 12)[::2, ::2],
        "offset": torch.randn(30)[5:29].view(4, 6),
        "expanded": torch.randn(6).expand(4, 6),
    }[change]
    cluster = by_hand(lambda x: (x.softmax(1), x.sum(0)), torch.randn(4, 6))
    verify(cluster, "inductor", compiled(cluster), (x,), None)


def test_an_input_captured_as_expanded_may_come_dense() -> None:
    """Elements that capture knew to be equal are taken from the first one."""
    cluster = by_hand(lambda x: (x * 2 + 1,), torch.randn(6).expand(4, 6))
    x = torch.randn(6).expand(4, 6).contiguous()
    verify(cluster, "inductor", compiled(cluster), (x,), None)


# --- Sizes ------------------------------------------------------------------------------------------------------------


def with_size(inputs: Inputs, old: tuple[int, ...], new: tuple[int, ...], make: Any) -> Inputs:
    """Replace sizes among a cluster's inputs: tensors are made anew, numbers are mapped."""
    return tuple(make(new) if isinstance(value, torch.Tensor) else new[old.index(value)] for value in inputs)


def test_one_compilation_serves_six_sizes() -> None:
    """Batch and length vary; the program is compiled once and the results are exact."""
    cluster, inputs = cut("attention", dynamic=True)
    executable = compiled(cluster)
    assert cluster.is_dynamic
    for batch, length in ((2, 6), (3, 6), (2, 17), (5, 31), (7, 2), (4, 12)):
        values = with_size(inputs, (2, 6), (batch, length), lambda sizes: torch.randn(*sizes, 32))
        verify(cluster, "inductor", executable, values, None)


def test_a_guard_that_inductor_adds_is_checked() -> None:
    """Inductor sums long dims in another way than short ones: a program for short ones refuses long ones."""
    cluster, (x,) = whole_cluster(Function(lambda x: x.sum(1)), (torch.randn(4, 100),), dynamic=True)
    executable = compiled(cluster)
    verify(cluster, "inductor", executable, (x,), None)
    verify(cluster, "inductor", executable, (torch.randn(3, 90),), None)
    assert executable._guards.conditions
    with pytest.raises(RunError, match=r"guard .* does not hold"):
        executable(torch.randn(4, 100_000))
    verify(cluster, "inductor", executable, (x,), None)


def test_compiling_adds_no_guard_to_the_captured_graph() -> None:
    """The shape environment that Dynamo guards on stays as it was."""
    cluster, _ = whole_cluster(Function(lambda x: x.sum(1)), (torch.randn(4, 100),), dynamic=True)
    env = next(size.node.shape_env for size in cluster.inputs[0].shape if not isinstance(size, int))
    before = [guard.expr for guard in env.guards]
    compiled(cluster)
    assert [guard.expr for guard in env.guards] == before


def test_what_capture_has_guarded_is_not_checked_again() -> None:
    """A divisibility that Dynamo guards is known to Inductor and costs nothing per call."""
    halves = Function(lambda x: x.view(x.shape[0] // 2, 2, 8).sum(1) if x.shape[0] % 2 == 0 else x)
    cluster, inputs = whole_cluster(halves, (torch.randn(6, 8),), dynamic=True)
    executable = compiled(cluster)
    assert not any("% 2" in text or "Mod" in text for text in executable._guards.conditions)
    verify(cluster, "inductor", executable, inputs, None)


def test_sizes_that_depend_on_data_may_be_inputs() -> None:
    """A cluster behind `masked_select` is compiled for any number of rows; what Inductor assumes of it is checked."""
    captured = capture_data_dependent()
    names = [node.name for node in captured.nodes if node.name in ("mul", "tanh", "add")]
    cluster = extract(captured, names, "c0", {})
    executable = compiled(cluster)
    for rows in (2, 5, 70):
        verify(cluster, "inductor", executable, [torch.randn(rows) for _ in cluster.inputs], None)
    with pytest.raises(RunError, match="does not hold"):
        executable(torch.randn(0))


def capture_data_dependent() -> Graph:
    """Return the sum of `tanh(x[x > 0] * 2) + 1`, whose size is known only at run time."""
    module = Function(lambda x: (torch.tanh(x.masked_select(x > 0) * 2) + 1).sum())
    return capture(module, (torch.randn(9),), dynamic=True).graph


# --- Where it runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_callers_modes_do_not_matter(mode: Any) -> None:
    """Compiling and calling work with gradients on, off, and in inference mode, and give no gradient history."""
    cluster, (x,) = cut("norm_gelu")
    expected = cluster.module(x)[0]
    with mode():
        (got,) = compiled(cluster)(x.clone().requires_grad_())
    torch.testing.assert_close(got, expected)
    assert not got.requires_grad


def test_autocast_around_a_call_changes_nothing() -> None:
    """Casts belong to the captured graph; library calls inside the program make none of their own."""
    cluster, (x,) = cut("norm_gelu")
    executable = compiled(cluster)
    with torch.no_grad():
        expected = executable(x)[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = executable(x)[0]
    assert torch.equal(got, expected)


def test_many_threads_may_call_one_executable() -> None:
    """Calls from several threads, of several sizes, do not disturb each other."""
    cluster, inputs = cut("attention", dynamic=True)
    executable = compiled(cluster)
    sizes = [(2 + index % 4, 3 + index % 5) for index in range(24)]
    values = [with_size(inputs, (2, 6), size, lambda sizes: torch.randn(*sizes, 32)) for size in sizes]
    expected = [cluster.module(*value)[0].detach() for value in values]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda value: executable(*value)[0], values))
    for got, want in zip(results, expected, strict=True):
        torch.testing.assert_close(got, want)


def test_clusters_may_be_compiled_from_several_threads() -> None:
    """Compilations queue up inside the backend."""
    cases = [cut(name) for name in ("norm_gelu", "reductions", "embedding")]
    with ThreadPoolExecutor(3) as pool:
        executables = list(pool.map(lambda case: compiled(case[0]), cases))
    for (cluster, inputs), executable in zip(cases, executables, strict=True):
        verify(cluster, "inductor", executable, inputs, None)


def test_the_thread_count_is_the_hubs() -> None:
    """Kernels are generated for the given number of threads, library calls get it, and the caller's count comes back."""
    seen: list[int] = []
    cluster = by_hand(lambda x: (x.exp().sum(1),), torch.randn(256, 512))
    executable = compiled(cluster, CompileSettings(threads=2))
    assert "num_threads(2)" in executable._program.source
    inner = executable._call
    executable._call = lambda inputs: (seen.append(torch.get_num_threads()), inner(inputs))[1]
    executable(torch.randn(256, 512))
    assert seen == [2]
    assert torch.get_num_threads() == 1


def test_a_cluster_compiles_inside_a_dynamo_backend() -> None:
    """Where Dynamo is tracing and AOTAutograd has left its context, ours is a fresh one."""
    found: list[Any] = []

    def backend(program: fx.GraphModule, inputs: Any) -> Any:
        graph = capture_inference(program, inputs)
        cluster = extract(graph, [node.name for node in graph.nodes if node.name not in graph.pinned], "c0", {})
        found.append(compiled(cluster))
        order = [[node.name for node in graph.placeholders].index(name) for name in cluster.input_names]
        return lambda *values: found[-1](*(values[position] for position in order))

    module = nn.Sequential(nn.Linear(8, 16), nn.GELU()).eval()
    x = torch.randn(3, 8)
    with torch.no_grad():
        got = torch.compile(module, backend=backend)(x)
        torch.testing.assert_close(got, module(x))
    assert found


class Recorded:
    """A compiler for graphs that AOTAutograd gives: each becomes one cluster. Keeps the modes in `modes`."""

    def __init__(self) -> None:
        self.modes: list[str] = []

    def backend(self, program: fx.GraphModule, inputs: Any) -> Any:
        return capture_with_autograd(program, inputs, self.compile)

    def compile(self, graph: Graph, mode: str) -> Any:
        self.modes.append(mode)
        names = [node.name for node in graph.nodes if node.name not in graph.pinned]
        cluster = extract(graph, names, mode, {})
        executable = compiled(cluster)

        def run(*inputs: Any) -> Any:
            known = dict(zip((node.name for node in graph.placeholders), inputs, strict=True))
            outputs = executable(*(known[name] for name in cluster.input_names))
            known |= dict(zip(cluster.output_names, outputs, strict=True))
            return tuple(known[item.name] if isinstance(item, fx.Node) else item for item in graph.outputs)

        return run


def test_training_graphs_compile() -> None:
    """Forward and backward graphs of a small network give eager's gradients."""
    recorded = Recorded()
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    eager = copy.deepcopy(module)
    x = torch.randn(2, 3, 8, 8)
    torch.compile(module, backend=recorded.backend)(x).square().sum().backward()
    eager(x).square().sum().backward()
    assert recorded.modes == ["forward", "backward"]
    for got, want in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-4)


# --- Files ------------------------------------------------------------------------------------------------------------

LOADER = """
import pathlib, sys, torch
from hub.workers.transfer import read_sample
from hub.partition.extract import extract
from hub.testing.single import SETTINGS
from plugin_inductor.backend import create
torch.set_num_threads(1)
folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else {folder!r})
sample = read_sample(folder)
graph = sample.graph
names = [node.name for node in graph.nodes if node.name not in graph.pinned]
cluster = extract(graph, names, "c0", {{name: sample.by_name[name] for name in graph.weights}})
backend = create()
{action}
outputs = executable(*(sample.by_name[name] for name in cluster.input_names))
torch.save([value.detach() for value in outputs], folder / "outputs.pt")
"""


def written_sample(folder: Path, name: str, *, dynamic: bool) -> tuple[Cluster, Inputs]:
    """Write a captured case as the hub passes it to its workers; return its cluster and inputs."""
    make, inputs = CASES[name]
    captured = capture(make().eval(), inputs(), dynamic=dynamic)
    write_sample(folder, Sample(captured.graph, captured.inputs))
    sample = read_sample(folder)
    names = [node.name for node in sample.graph.nodes if node.name not in sample.graph.pinned]
    cluster = extract(sample.graph, names, "c0", {weight: sample.by_name[weight] for weight in sample.graph.weights})
    return cluster, tuple(sample.by_name[name] for name in cluster.input_names)


LONG_TO_SAVE = (("attention", True), ("experts", False))


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [("conv_norm_relu", False), ("lstm", False), *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG_TO_SAVE)],
)
def test_a_saved_program_runs_in_another_process_without_a_compiler(tmp_path: Path, name: str, dynamic: bool) -> None:
    """Loading needs neither a C++ compiler nor Inductor's own cache, and gives the same numbers bit for bit."""
    cluster, inputs = written_sample(tmp_path, name, dynamic=dynamic)
    executable = compiled(cluster)
    executable.save(tmp_path / "saved")
    code = LOADER.format(folder=str(tmp_path), action='executable = backend.load(folder / "saved", cluster, SETTINGS)')
    done = run_python(code, CXX="/no/such/compiler", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "empty"))
    assert done.returncode == 0, done.stderr
    for got, want in zip(torch.load(tmp_path / "outputs.pt"), executable(*inputs), strict=True):
        assert torch.equal(got, want)
    assert not list((tmp_path / "empty").rglob("*.so")) if (tmp_path / "empty").exists() else True


def test_a_worker_compiles_what_was_handed_to_it(tmp_path: Path) -> None:
    """A fresh process compiles a dynamic cluster that was pickled elsewhere."""
    cluster, inputs = written_sample(tmp_path, "attention", dynamic=True)
    done = run_python(LOADER.format(folder=str(tmp_path), action="executable = backend.compile(cluster, SETTINGS)"))
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.load(tmp_path / "outputs.pt")[0], cluster.module(*inputs)[0].detach())


def test_a_damaged_folder_is_a_compile_error(tmp_path: Path) -> None:
    """Loading what is not there names the folder and keeps the cause."""
    with pytest.raises(CompileError, match="cannot load") as caught:
        BACKEND.load(tmp_path / "nothing", relu_cluster(), SETTINGS)
    assert isinstance(caught.value.__cause__, OSError)


def test_dump_writes_every_form_of_the_program(tmp_path: Path) -> None:
    """The folder shows the graph received, lowered and optimised, the intermediate forms, the sources and the guards."""
    compiled(cut("norm_gelu")[0]).dump(tmp_path / "dump")
    names = {path.name for path in (tmp_path / "dump").rglob("*")}
    assert names >= {"received.py", "lowered.py", "output_code.py", "ir_pre_fusion.txt", "ir_post_fusion.txt", "guards.txt"}


# --- Failures ---------------------------------------------------------------------------------------------------------


def test_a_missing_compiler_is_named_with_the_next_step() -> None:
    """Without a C++ compiler the error says so and what to install."""
    code = "from plugin_inductor.backend import create; print(create().probe().reason)"
    done = run_python(code, CXX="/no/such/compiler", TORCHINDUCTOR_CACHE_DIR="/tmp/hub-test-no-compiler")
    assert "hint: install a C++ compiler" in done.stdout, done.stdout + done.stderr


def test_the_probe_runs_a_real_program() -> None:
    """Where there is a compiler, the probe accepts."""
    assert BACKEND.probe().accepted


def test_whatever_inductor_raises_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception while compiling becomes a CompileError with its cause."""

    def explode(*_: Any, **__: Any) -> Any:
        raise KeyError("inside Inductor")

    monkeypatch.setattr(compiler.compile_fx, "compile_fx_inner", explode)
    with pytest.raises(CompileError, match="inside Inductor") as caught:
        compiled(relu_cluster())
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.backend == "inductor"


def test_a_wrong_shape_is_a_run_error() -> None:
    """Sizes that were not compiled raise, and nothing is read out of bounds."""
    executable = compiled(by_hand(lambda x: (x + 1,), torch.randn(4, 6)))
    for shape in ((4, 7), (3, 6), (24,), (4, 6, 1)):
        with pytest.raises(RunError):
            executable(torch.randn(shape))


def test_the_configuration_is_left_as_it_was() -> None:
    """Neither success nor failure changes Inductor's settings, gradients or thread count."""
    before = copy.deepcopy(config.get_config_copy()), torch.is_grad_enabled(), torch.get_num_threads()
    compiled(cut("norm_gelu")[0], CompileSettings(threads=2, effort="full"))
    broken = by_hand(lambda x: (x + 1,), torch.randn(4))
    broken.module.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)[0].args = (None, None)
    with pytest.raises(CompileError):
        compiled(broken)
    assert (config.get_config_copy(), torch.is_grad_enabled(), torch.get_num_threads()) == before


@pytest.mark.parametrize("make", [lambda: torch.randn(3, dtype=torch.complex64), lambda: torch.randn(3).to_sparse()])
def test_tensors_that_inductor_cannot_hold_are_refused_with_a_reason(make: Any) -> None:
    """Complex and sparse tensors are refused by name."""
    graph = fx.Graph()
    source = graph.placeholder("x")
    node = graph.call_function(torch.ops.aten.neg.default, (source,))
    with FakeTensorMode() as mode:
        source.meta["val"] = node.meta["val"] = mode.from_tensor(make())
    answer = BACKEND.supports(node)
    assert not answer.accepted
    assert "only" in answer.reason


# --- Whole models -----------------------------------------------------------------------------------------------------


def bert() -> tuple[nn.Module, Inputs]:
    """Return a small BERT, with tokens."""
    shape = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    return transformers.BertModel(transformers.BertConfig(**shape)), (torch.randint(0, 100, (2, 9)),)


def resnet() -> tuple[nn.Module, Inputs]:
    """Return a small ResNet, with an image."""
    shape = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    return transformers.ResNetModel(transformers.ResNetConfig(**shape)), (torch.randn(2, 3, 32, 32),)


def mamba() -> tuple[nn.Module, Inputs]:
    """Return a small Mamba, with tokens."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "vocab_size": 50, "use_cache": False}
    return transformers.MambaModel(transformers.MambaConfig(**shape)), (torch.randint(0, 50, (2, 6)),)


def mixture_of_experts() -> tuple[nn.Module, Inputs]:
    """Return a small mixture of experts, whose products are operators that transformers defines, with tokens."""
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 50,
    }
    experts = {"intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = transformers.MixtralConfig(**shape, **experts, use_cache=False)
    return transformers.MixtralModel(config), (torch.randint(0, 50, (2, 6)),)


@pytest.mark.parametrize(
    "make", [bert, *(pytest.param(make, marks=pytest.mark.slow) for make in (resnet, mixture_of_experts))]
)
def test_whole_models_compile_as_one_cluster(make: Any) -> None:
    """Everything of a model that is not pinned to eager compiles at once and is as exact as eager."""
    module, inputs = make()
    cluster, values = whole_cluster(First(module.eval()), inputs)
    assert all(BACKEND.supports(node).accepted for node in cluster.nodes)
    verify(cluster, "inductor", compiled(cluster), values, None)


def test_a_model_that_capture_can_only_give_below_dispatch_compiles() -> None:
    """Mamba's scan comes decomposed, with weights as inputs, and gives eager's numbers."""
    recorded = Recorded()
    module, inputs = mamba()
    with torch.no_grad():
        expected = First(module.eval())(*inputs)
        got = torch.compile(First(module), backend=recorded.backend, fullgraph=True)(*inputs)
    assert recorded.modes == ["inference"]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


# --- Registration and peers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["inductor", "inductor-max-autotune"])
def test_peers_run_the_model_through_torch_compile(name: str) -> None:
    """Each contender gives eager's numbers through Inductor's own API, and leaves the configuration alone."""
    (info,) = hub_backends()
    module, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval(), torch.randn(4, 16)
    before = config.freezing
    run = load_attribute(info.peers[name])(module, (x,))
    torch.testing.assert_close(run(), module(x).detach())
    assert config.freezing == before


def test_concurrent_compilation_does_not_leak_settings() -> None:
    """While one thread compiles for us, another sees its own configuration."""
    seen: list[bool] = []
    with compiler.compiling(CompileSettings(threads=1, effort="full"), has_weights=True):
        other = threading.Thread(target=lambda: seen.append(config.max_autotune))
        other.start()
        other.join()
    assert config.max_autotune is False
    assert len(seen) == 1


# --- What it takes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (torch.floor_divide, "floor"),
        (torch.remainder, "quotient"),
        (lambda a, b: torch.div(a, b, rounding_mode="floor"), "floor"),
        (lambda a, b: torch.ops.aten.add.Scalar(a, 2, 3), "alpha=3"),
    ],
)
def test_operators_that_inductor_gets_wrong_are_refused_with_the_reason(function: Any, word: str) -> None:
    """Each is refused in floating point, where Inductor's numbers differ from eager's, and says why."""
    (node,) = by_hand(function, torch.randn(4), torch.randn(4)).nodes
    answer = BACKEND.supports(node)
    assert not answer.accepted
    assert word in answer.reason


@pytest.mark.parametrize("name", ["grid_sampler", "grid_sampler_2d"])
def test_samples_of_images_are_refused(name: str) -> None:
    """Inductor's program reads outside the image where the grid holds NaN, which ends the process."""
    (node,) = by_hand(
        lambda image, grid: getattr(torch.ops.aten, name)(image, grid, 0, 0, False),
        torch.randn(1, 1, 4, 4),
        torch.randn(1, 3, 3, 2),
    ).nodes
    assert "reads outside the image" in BACKEND.supports(node).reason


@pytest.mark.parametrize("padding", [[1], [1, 1]], ids=str)
def test_gradients_of_pools_whose_windows_have_one_number_for_all_dims(padding: list[int]) -> None:
    """They go to eager, since Inductor's lowering fails on them; the same windows spelt out are taken."""

    def gradient(grad: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        pool = torch.ops.aten.avg_pool2d_backward.default
        return pool(grad, source, [3, 3], [2, 2], padding, False, True, None)

    (node,) = by_hand(gradient, torch.randn(1, 2, 4, 4), torch.randn(1, 2, 8, 8)).nodes
    answer = BACKEND.supports(node)
    assert answer.accepted == (len(padding) == 2)
    assert answer.accepted or "padding has one number for all dims" in answer.reason


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("adds(Tensor(a!) x) -> ()", "writes to its arguments"),
        ("views(Tensor(a) x) -> Tensor(a)", "gives views of its arguments"),
        ("doubles(Tensor x) -> Tensor", ""),
    ],
)
def test_only_functional_operators_of_others_are_taken(schema: str, reason: str) -> None:
    """An operator that Inductor does not know is called as it is, unless it writes or gives views."""
    with torch.library._scoped_library("hub_test_inductor", "DEF") as library:
        library.define(schema)
        operator = getattr(torch.ops.hub_test_inductor, schema.partition("(")[0]).default
        graph = fx.Graph()
        node = graph.call_function(operator, (graph.placeholder("x"),))
        answer = BACKEND.supports(node)
        assert answer.accepted == (not reason)
        assert reason in answer.reason


def test_operators_that_talk_to_other_processes_are_refused() -> None:
    """A collective would wait for processes that do not compile the same graph."""
    graph = fx.Graph()
    operator = torch.ops._c10d_functional.all_reduce.default
    answer = BACKEND.supports(graph.call_function(operator, (graph.placeholder("x"), "sum", "0")))
    assert not answer.accepted
    assert "other processes" in answer.reason


def test_what_is_wrong_in_floating_point_is_taken_for_integers() -> None:
    """Integer floor division and remainder are right and stay accepted."""
    integers = torch.arange(-4, 4), torch.tensor([3, -3] * 4)
    cluster = by_hand(lambda a, b: (a // b, a % b), *integers)
    assert all(BACKEND.supports(node).accepted for node in cluster.nodes)
    verify(cluster, "inductor", compiled(cluster), integers, None)


def test_what_is_killed_while_compiling_leaves_no_half_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inductor takes a file that is there for finished, so the C++ compiler's output appears whole or not at all."""
    target = tmp_path / "kernel.so"

    def killed_half_way(cmd_line: str, cwd: str) -> None:
        Path(cwd, shlex.split(cmd_line)[-1]).write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(cpp_builder, "run_compile_cmd", killed_half_way)
    with pytest.raises(KeyboardInterrupt), compiler.compiling(CompileSettings(threads=1), has_weights=False):
        cpp_builder.run_compile_cmd(f"g++ kernel.cpp -o {target}", cwd=str(tmp_path))
    assert not target.exists()

    def finished(cmd_line: str, cwd: str) -> None:
        Path(cwd, shlex.split(cmd_line)[-1]).write_text("whole")

    monkeypatch.setattr(cpp_builder, "run_compile_cmd", finished)
    with compiler.compiling(CompileSettings(threads=1), has_weights=False):
        cpp_builder.run_compile_cmd(f"g++ kernel.cpp -o {target}", cwd=str(tmp_path))
    assert target.read_text() == "whole"


def test_its_own_variables_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Added ones are removed, changed ones restored, and other variables are not touched."""
    for name in ("_TORCHINDUCTOR_GIVEN", "OTHER_GIVEN"):
        monkeypatch.setenv(name, "before")
    monkeypatch.delenv("TORCHINDUCTOR_ADDED", raising=False)
    with compiler.environment_kept():
        os.environ.update(_TORCHINDUCTOR_GIVEN="after", TORCHINDUCTOR_ADDED="after", OTHER_GIVEN="after")
    assert os.environ["_TORCHINDUCTOR_GIVEN"] == "before"
    assert "TORCHINDUCTOR_ADDED" not in os.environ
    assert os.environ["OTHER_GIVEN"] == "after"


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
def test_gradients_of_images_of_any_size(kind: Any) -> None:
    """Inductor compiles an image's gradient for one size, so that operator stays outside, without a warning."""
    torch.manual_seed(0)
    model = nn.Sequential(kind(3, 4, 3), nn.Tanh(), kind(4, 3, 3))
    run: Any = torch.compile(model, backend="hub", options={"backends": ["inductor"], "tune": "off", "start": "wait"})
    n_dims = model[0].weight.dim() - 2
    for size in (8, 9, 10, 12):
        x = torch.randn(2, 3, *[size] * n_dims, requires_grad=True)
        expected, found = (torch.autograd.grad(call(x).square().sum(), [x, *model.parameters()]) for call in (model, run))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert hub.plans(run)[-1].backends == ("eager", "inductor")
