"""The OpenVINO backend: numbers, sizes, memory, threads, saving, errors. Single operators: `tests/conformance`."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from plugin_openvino import backend as backend_module
from plugin_openvino import peers, runtime
from plugin_openvino.backend import OpenVINOBackend, create
from plugin_openvino.rules import RULES
from plugin_openvino.support import NAN_BLIND, OPERATORS
from torch import nn

import hub
from hub.bench.zoo import build
from hub.errors import CompileError, InputRefused, RunError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.single import SETTINGS, compile_and_run, run, whole_cluster
from hub.verification.verify import verify
from tests.functions import Of

MODELS = [
    "bert", "gpt2", "llama", "vit", "swin", "convnext", "resnet18", "resnet50", "mobilenetv2", "segformer",
    "whisper-encoder", "wav2vec2", "mlp", "unet",
]  # fmt: skip
WINDOWED = ("swin", "segformer")
"""Unknown sizes are computed between operators there, by nodes that the hub pins to eager, so no one cluster fits."""
LONG = {
    ("mobilenetv2", False), ("mobilenetv2", True), ("segformer", False), ("wav2vec2", False), ("resnet50", True),
    ("whisper-encoder", True),
}  # fmt: skip
"""Forms that take OpenVINO, eager or capture longest: for the long suites."""
FORMS = [
    pytest.param(
        name, dynamic, id=f"{name} {'dynamic' * dynamic}".strip(), marks=[pytest.mark.slow] * ((name, dynamic) in LONG)
    )
    for name in MODELS
    for dynamic in (False, True)
    if not (dynamic and name in WINDOWED)
]
pytestmark = pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
"""Wav2Vec2's encoder asks a cached function whether it is distributed."""


@pytest.fixture(scope="module")
def backend() -> OpenVINOBackend:
    return create()


def compiled(
    backend: OpenVINOBackend, function: Callable[..., Any], *inputs: Any, dynamic: bool = False
) -> tuple[Cluster, Any]:
    """Return the cluster of a function, and its executable."""
    cluster, values = whole_cluster(function if isinstance(function, nn.Module) else Of(function), inputs, dynamic=dynamic)
    return cluster, compile_and_run(backend, cluster, values)[0]


# --- Table and rules --------------------------------------------------------------------------------------------------


def test_rows_and_rules_are_the_same_operators() -> None:
    """Each row of the table has a rule, and each rule a row."""
    assert set(OPERATORS.rows) == set(RULES)
    assert set(RULES) >= NAN_BLIND


def test_the_table_loads_without_torch_or_openvino() -> None:
    """Listing backends counts operators without importing a heavy library."""
    code = "import sys, plugin_openvino.support, plugin_openvino.hooks; print({'torch', 'openvino'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_importing_the_backend_leaves_dynamo_as_it_was() -> None:
    """`openvino.torch` switches a Dynamo option off; the plugin does not import it."""
    code = "import sys, plugin_openvino.backend, plugin_openvino.peers; print('openvino.torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_probe_accepts_this_machine(backend: OpenVINOBackend) -> None:
    """The probe compiles and runs one operator."""
    assert backend.probe().accepted


# --- Whole models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dynamic"), FORMS)
def test_a_whole_model_is_one_exact_cluster(backend: OpenVINOBackend, name: str, dynamic: bool) -> None:
    """Every operator is taken, and the result is as close to float64 as float32 eager is."""
    module, inputs = build(name, small=True)
    with torch.no_grad():
        module.eval()(*inputs)  # transformers installs hooks under a lock in the first call, which Dynamo cannot follow
    cluster, values = whole_cluster(module.eval(), inputs, dynamic=dynamic)
    assert [reason for node in cluster.nodes if not _is_item(node) if (reason := backend.supports(node).reason)] == []
    with torch.no_grad():
        verify(cluster, "openvino", backend.compile(cluster, SETTINGS), values, None)


def test_t5_is_one_cluster() -> None:
    """T5 casts log(0) to int64, which OpenVINO cannot hold, and leaves the result out later: nothing is refused for it."""
    module, inputs = build("t5", small=True)
    compiled = torch.compile(module.eval(), backend="hub", options={"tune": "off", "backends": ["openvino"]})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), module(*inputs))
    (plan,) = hub.plans(compiled)
    assert plan.backends == ("openvino",)


def _is_item(node: Any) -> bool:
    return "getitem" in str(node.target)


def test_an_lstm_is_exact(backend: OpenVINOBackend) -> None:
    """A two-layer bidirectional LSTM with its initial states made inside."""
    module = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True).eval()
    with torch._dynamo.config.patch(allow_rnn=True):
        cluster, values = whole_cluster(Of(lambda x: module(x)[0]), (torch.randn(2, 6, 8),))
    with torch.no_grad():
        verify(cluster, "openvino", backend.compile(cluster, SETTINGS), values, None)


# --- Sizes ------------------------------------------------------------------------------------------------------------


def test_sizes_that_are_arithmetic_on_sizes(backend: OpenVINOBackend) -> None:
    """A result of size 2 * s + 1 is written into memory of just that size."""
    cluster, executable = compiled(backend, lambda x: torch.cat([x, x.abs(), x[:1]]), torch.randn(4, 3), dynamic=True)
    for rows in (2, 5, 8):
        x = torch.randn(rows, 3)
        inputs = [x if hasattr(spec, "shape") else rows for spec in cluster.inputs]
        torch.testing.assert_close(executable(*inputs)[0], torch.cat([x, x.abs(), x[:1]]))


def test_positions_counted_from_the_end(backend: OpenVINOBackend) -> None:
    """A size is subtracted from, and divided by."""
    function = lambda x: x * (x.shape[0] - torch.arange(x.shape[0])).view(-1, 1) / x.shape[0]  # noqa: E731
    cluster, executable = compiled(backend, function, torch.randn(4, 3), dynamic=True)
    for rows in (2, 5, 8):
        x = torch.randn(rows, 3)
        inputs = [x if hasattr(spec, "shape") else rows for spec in cluster.inputs]
        torch.testing.assert_close(executable(*inputs)[0], function(x))


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_no_copies_of_contiguous_tensors(backend: OpenVINOBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO reads where the input lies and writes where the result lies."""
    _, executable = compiled(backend, lambda x: x.sigmoid() * 2, torch.randn(4, 8))
    x = torch.randn(4, 8)
    (result,) = executable(x)
    request = executable._lanes[0]._request
    assert request.get_input_tensor(0).data.ctypes.data == x.data_ptr()
    assert request.get_output_tensor(0).data.ctypes.data == result.data_ptr()
    torch.testing.assert_close(result, x.sigmoid() * 2)


def test_no_copies_with_unknown_sizes(backend: OpenVINOBackend) -> None:
    """The same holds where sizes are known only at run time."""
    cluster, executable = compiled(backend, lambda x: x.sigmoid() * 2, torch.randn(4, 8), dynamic=True)
    x = torch.randn(6, 10)
    (result,) = executable(*[x if hasattr(spec, "shape") else 0 for spec in cluster.inputs])
    request = executable._lanes[0]._request
    assert request.get_input_tensor(0).data.ctypes.data == x.data_ptr()
    assert request.get_output_tensor(0).data.ctypes.data == result.data_ptr()
    torch.testing.assert_close(result, x.sigmoid() * 2)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1e6, 1e30, torch.inf, torch.nan])
def test_samples_at_any_place_are_exact(backend: OpenVINOBackend, aligned: bool, factor: float) -> None:
    """Outside the image, far outside, and nowhere: deformable attention samples where a network says."""

    def sampled(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grid_sample(x, places, align_corners=aligned) * 2

    x, places = torch.randn(2, 3, 9, 11), torch.rand(2, 5, 7, 2) * 3 - 1.5
    _, executable = compiled(backend, sampled, x, places)
    there = torch.where(torch.rand(places.shape) < 0.3, places * factor, places)
    (result,) = executable(x, there)
    torch.testing.assert_close(result, sampled(x, there), equal_nan=True)


def test_a_buffer_with_new_content_is_read_again(backend: OpenVINOBackend) -> None:
    """Remembering where a buffer lies does not mean remembering what it holds."""
    _, executable = compiled(backend, lambda x: x + 1, torch.zeros(3))
    x = torch.zeros(3)
    first = executable(x)[0]
    x.fill_(5)
    assert executable(x)[0].tolist() == [6, 6, 6]
    assert first.tolist() == [1, 1, 1]


def test_scalars_bools_and_integers(backend: OpenVINOBackend) -> None:
    """0-d tensors, bool masks and both kinds of integer go in and come out."""
    inputs = (
        torch.tensor(2.0),
        torch.tensor([True, False]),
        torch.tensor([7, -7]),
        torch.tensor([3, 4], dtype=torch.int32),
    )
    cluster, executable = compiled(backend, lambda a, b, c, d: (a + 1, ~b, c // 2, d % 3, c < 0), *inputs)
    for got, wanted in zip(executable(*inputs), cluster.module(*inputs), strict=True):
        assert got.dtype is wanted.dtype
        assert torch.equal(got, wanted)


# --- Threads ----------------------------------------------------------------------------------------------------------


# --- Numbers ----------------------------------------------------------------------------------------------------------


def test_integers_divide_exactly_beyond_float32(backend: OpenVINOBackend) -> None:
    """OpenVINO divides integers in float32; the rule corrects what that loses."""
    x = torch.tensor([2**31 - 1, -(2**31) + 1, 16777217, 33554435, -1, 0, 5], dtype=torch.int32)
    for divisor in (1, 2, 3, -7, 1000003):
        cluster, executable = compiled(backend, lambda x, by=divisor: (x // by, x % by), x)
        for got, wanted in zip(executable(x), cluster.module(x), strict=True):
            assert got.tolist() == wanted.tolist()


def test_nan_among_the_inputs_survives(backend: OpenVINOBackend) -> None:
    """Kernels that lose NaN are not used for a call with NaN; the next call is OpenVINO's again."""
    convolution = nn.Conv2d(1, 2, 3)
    cluster, executable = compiled(backend, Of(lambda x: convolution(x).relu()), torch.randn(1, 1, 8, 8))
    x = torch.randn(1, 1, 8, 8)
    x[0, 0, 4, 4] = float("nan")
    for value in (x, x.nan_to_num()):
        with torch.no_grad():
            torch.testing.assert_close(run(executable, cluster, (value,))[0], cluster.module(value)[0], equal_nan=True)
    with pytest.raises(InputRefused, match="NaN"):
        executable(x)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_floats_that_only_int64_holds(backend: OpenVINOBackend, tmp_path: Path, dynamic: bool) -> None:
    """Casts to int64 are exact: beyond int32 the call runs eagerly, also after loading."""
    cluster, executable = compiled(backend, lambda x: (x * 2).long() + 1, torch.randn(3), dynamic=dynamic)
    executable.save(tmp_path)
    for way in (executable, create().load(tmp_path, cluster, SETTINGS)):
        for x in (torch.tensor([1.5e9, -1.5e12, 1.0]), torch.tensor([1.7, -1.7, 0.0])):
            inputs = [x if hasattr(spec, "shape") else 3 for spec in cluster.inputs]
            assert run(way, cluster, inputs)[0].tolist() == ((x * 2).long() + 1).tolist()


def test_infinities_that_cancel_are_not_taken_for_nan(backend: OpenVINOBackend) -> None:
    """A sum that is NaN only makes the runtime look closer."""
    assert runtime.has_nan(torch.tensor([float("nan"), 1.0]))
    assert not runtime.has_nan(torch.tensor([float("inf"), float("-inf")]))
    assert runtime.has_nan(torch.tensor([float("nan"), 1.0], dtype=torch.bfloat16))
    assert not runtime.has_nan(torch.ones(2, requires_grad=True))


def test_looking_for_nan_wakes_none_of_pytorchs_threads(backend: OpenVINOBackend) -> None:
    """In a call PyTorch computes nothing: its threads would go on busy-waiting on OpenVINO's cores."""
    cluster, inputs = whole_cluster(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), (torch.randn(1, 3, 64, 64),))
    executable, _ = compile_and_run(backend, cluster, inputs)
    with torch.profiler.profile() as seen:
        executable(*inputs)
    computes_nothing = {"empty", "detach", "to", "resolve_neg", "resolve_conj"}
    assert {event.name.removeprefix("aten::") for event in seen.events() or ()} <= computes_nothing


def test_a_query_that_may_see_nothing_gives_zero(backend: OpenVINOBackend) -> None:
    """As PyTorch's attention does, for masks of both kinds."""
    query = torch.randn(1, 2, 3, 4)
    allowed = torch.tensor([[True, True, True], [False, False, False], [True, False, False]])
    added = torch.zeros(3, 3).masked_fill(~allowed, float("-inf"))
    for mask in (allowed, added):
        attend = lambda query, mask: nn.functional.scaled_dot_product_attention(query, query, query, mask)  # noqa: E731
        cluster, executable = compiled(backend, attend, query, mask)
        torch.testing.assert_close(executable(query, mask)[0], cluster.module(query, mask)[0])


@pytest.mark.parametrize("heads", [(2, 2), (1, 1), (4, 2)])
def test_heads_that_share_keys_are_repeated(backend: OpenVINOBackend, heads: tuple[int, int]) -> None:
    """By `enable_gqa` in the composite operator, by their numbers alone in PyTorch's kernel for CPUs."""
    query, (key, value) = torch.randn(2, 4, 3, 8), (torch.randn(2, count, 5, 8) for count in heads)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    composite = lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)  # noqa: E731
    forms = [composite, *([lambda q, k, v: kernel(q, k, v)[0]] if heads[0] == heads[1] else [])]
    wanted = composite(query, key, value)
    for form in forms:
        _, executable = compiled(backend, form, query, key, value)
        torch.testing.assert_close(executable(query, key, value)[0], wanted)


def test_groups_of_heads_of_unknown_number_are_refused(backend: OpenVINOBackend) -> None:
    """How often to repeat a head has to be known; the table says so before anything is compiled."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    pieces = (torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8))
    cluster, _ = whole_cluster(Of(lambda q, k, v: kernel(q, k, v)[0]), pieces, dynamic=True)
    assert "symbolic head count" in backend.supports(cluster.nodes[0]).reason


def test_bf16_only_where_the_error_is_granted(backend: OpenVINOBackend) -> None:
    """float32 without a budget or with a small one; bf16 beyond it, on a CPU that has it."""
    for accuracy, wanted in ((None, {"f32"}), (1e-3, {"f32"}), (5e-2, {"bf16", "f32"})):
        settings = CompileSettings(threads=1, accuracy=accuracy)
        assert backend.properties(settings)["INFERENCE_PRECISION_HINT"] in wanted
    layer, x = nn.Linear(256, 256), torch.randn(64, 256)
    cluster, values = whole_cluster(layer, (x,))
    (result,) = backend.compile(cluster, CompileSettings(threads=1, accuracy=5e-2))(*values)
    with torch.no_grad():
        exact = layer(x)
    assert (result - exact).abs().max() <= backend_module.BF16_ERROR * exact.abs().max()


# --- Saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_saved_executable_gives_equal_results(backend: OpenVINOBackend, tmp_path: Path, dynamic: bool) -> None:
    """Loading restores numbers to the last bit, in a backend of its own."""
    module, inputs = build("bert", small=True)
    cluster, values = whole_cluster(module.eval(), inputs, dynamic=dynamic)
    executable, wanted = compile_and_run(backend, cluster, values)
    executable.save(tmp_path)
    got = create().load(tmp_path, cluster, SETTINGS)(*values)
    assert all(torch.equal(left, right) for left, right in zip(got, wanted, strict=True))


def test_dump_writes_programs_before_and_after(backend: OpenVINOBackend, tmp_path: Path) -> None:
    """A person can read what was received, what it became, and what runs."""
    _, executable = compiled(backend, lambda x: x.sin(), torch.randn(3))
    executable.dump(tmp_path)
    assert "Sin" in (tmp_path / "lowered.xml").read_text()
    assert (tmp_path / "runtime.xml").stat().st_size
    assert "aten.sin" in (tmp_path / "cluster.py.txt").read_text()


# --- Errors -----------------------------------------------------------------------------------------------------------


def test_integers_beyond_int32_are_refused(backend: OpenVINOBackend) -> None:
    """OpenVINO would wrap them in silence."""
    _, executable = compiled(backend, lambda x: x + 1, torch.tensor([1, 2]))
    with pytest.raises(RunError, match="int32 range"):
        executable(torch.tensor([2**40, 1]))
    cluster, _ = whole_cluster(_Shifted(), (torch.tensor([1]),))
    with pytest.raises(CompileError, match="int32 range"):
        backend.compile(cluster, SETTINGS)


DISTANCES = torch.tensor([0.0, 3.0, float("nan"), 1e12, 100.0])
"""Of which integers, or those of logarithms, are within int32 for 3 and 100 alone."""


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where((x > 1) & (x < 1e9), (x.log() * 4).long().clamp(max=7) + 16, 5),
        lambda x: torch.where((x > 1) & (x < 1e9), torch.min(x.log().long() + 2, torch.full((), 31)), x.isnan().long()),
        lambda x: torch.where(x == 3, 2 - x.long(), torch.where(x == 100, x.long(), -1)),
    ],
)
def test_integers_beyond_int32_that_are_left_out_refuse_nothing(
    backend: OpenVINOBackend, function: Callable[..., Any]
) -> None:
    """Logarithms of 0 are the least int64; if another value is selected there, no result contains them."""
    _, executable = compiled(backend, function, DISTANCES)
    assert torch.equal(executable(DISTANCES)[0], function(DISTANCES))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.long() + 1,
        lambda x: torch.where(x < 2, x.long(), 5),
        lambda x: torch.where(x.long() > 5, 1, 2),
        lambda x: torch.where(x > 2, x.long(), 5).sum(),
        lambda x: (x.long().float(), torch.where(x > 1e9, 0, x.long())),
    ],
)
def test_integers_beyond_int32_that_somebody_reads_are_refused(
    backend: OpenVINOBackend, function: Callable[..., Any]
) -> None:
    """Selected, compared, added up, converted or handed out: eager's numbers are not there to give."""
    _, executable = compiled(backend, function, torch.tensor([1.0, -2.0, 3.0]))
    assert torch.equal(executable(torch.tensor([1.0, 2.0, 3.0]))[0], _first(function(torch.tensor([1.0, 2.0, 3.0]))))
    with pytest.raises(InputRefused, match="int32 range"):
        executable(torch.tensor([-1e12, 1e12, 3.0]))


def _first(value: Any) -> torch.Tensor:
    return value[0] if isinstance(value, tuple) else value


class _Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("far", torch.tensor([2**40]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.far


def test_exceptions_of_openvino_come_wrapped(
    backend: OpenVINOBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Compiling, loading and running raise the hub's errors, with OpenVINO's as their cause."""
    cluster, executable = compiled(backend, lambda x: x * 2, torch.randn(3))
    with pytest.raises(CompileError, match="load"):
        backend.load(tmp_path, cluster, SETTINGS)
    (tmp_path / runtime.META).write_text('{"fed": [0], "alarms": []}')
    (tmp_path / runtime.BLOB).write_bytes(b"no blob at all")
    with pytest.raises(CompileError, match="load") as caught:
        backend.load(tmp_path, cluster, SETTINGS)
    assert caught.value.__cause__ is not None
    monkeypatch.setattr(executable._lanes[0], "_request", object())
    with pytest.raises(RunError) as ran:
        executable(torch.randn(3))
    assert ran.value.__cause__ is not None
    assert executable(torch.ones(3))[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("error", [RuntimeError("x"), TypeError("x"), ValueError("x"), MemoryError("x")], ids=repr)
def test_whatever_compiling_raises_is_a_compile_error(
    backend: OpenVINOBackend, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """No exception of another kind leaves the plugin."""

    def fail(*_: Any) -> Any:
        raise error

    cluster, _ = whole_cluster(Of(lambda x: x * 2), (torch.randn(3),))
    monkeypatch.setattr(backend_module, "lower", fail)
    with pytest.raises(CompileError) as caught:
        backend.compile(cluster, SETTINGS)
    assert caught.value.__cause__ is error


# --- The peer ---------------------------------------------------------------------------------------------------------


def test_signals_are_handled_after_backends_are_gone() -> None:
    """OpenVINO sets the stack of signal handlers when it compiles; freed by another thread, it made Ctrl-C a crash."""
    code = """
import gc, signal, threading, torch
from plugin_openvino.backend import create
from hub.testing.single import SETTINGS, whole_cluster

cluster, inputs = whole_cluster(torch.nn.Linear(4, 4), (torch.ones(2, 4),))
kept = [create()]
kept[0].compile(cluster, SETTINGS)(*inputs)

def let_go():
    kept.clear()
    gc.collect()

thread = threading.Thread(target=let_go)
thread.start()
thread.join()
signal.signal(signal.SIGUSR1, lambda number, frame: print("handled"))
signal.raise_signal(signal.SIGUSR1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


@pytest.fixture
def root_log_level() -> Iterator[None]:
    """Restore the level of the root logger, which OpenVINO's conversion sets, for later tests."""
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_the_peer_runs_openvino_alone(root_log_level: None) -> None:
    """`hub bench` compares with OpenVINO's own conversion, which gives the model's result too."""
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    inputs: Sequence[torch.Tensor] = (torch.randn(3, 4),)
    call = peers.whole(module, inputs)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(call()[0].copy()), module(*inputs))
