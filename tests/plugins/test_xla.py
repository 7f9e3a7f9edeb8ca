"""The XLA backend: numbers, sizes, memory, threads, saving, errors. Single operators: `tests/conformance`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.bench.zoo import build
from hub.discovery.registry import requirement_status
from hub.errors import CompileError, InputRefused, OptionError, RunError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.single import SETTINGS, compile_and_run, run, whole_cluster
from hub.toolkit import programs
from hub.verification.verify import verify
from tests.functions import Attention, Of, sized

pytest.importorskip("jaxlib")
pytest.importorskip("torch_mlir")

from plugin_xla import backend as backend_module
from plugin_xla import exchange, runtime, settings
from plugin_xla.backend import Xla, create
from plugin_xla.client import client
from plugin_xla.hooks import hub_backends
from plugin_xla.settings import Settings

MODELS = [
    "vit",
    "resnet18",
    pytest.param("mobilenetv2", marks=pytest.mark.slow),
    "mlp",
    "gpt2",
    "llama",
    "bert",
    "convnext",
    "lstm",
]


@pytest.fixture(scope="module")
def backend() -> Xla:
    return create()


def compiled(
    backend: Xla, function: Callable[..., Any], *inputs: Any, dynamic: bool = False
) -> tuple[Cluster, runtime.XlaExecutable]:
    """Return the cluster of a function, and its executable."""
    module = function if isinstance(function, nn.Module) else Of(function)
    cluster, values = whole_cluster(module, inputs, dynamic=dynamic)
    executable, _ = compile_and_run(backend, cluster, values)
    assert isinstance(executable, runtime.XlaExecutable)
    return cluster, executable


# --- Operators that PyTorch takes apart -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.t().index_fill(0, torch.tensor([2, 0]), 1.5), (4, 3)),
        (lambda x: nn.functional.adaptive_avg_pool1d(x.transpose(1, 2), 1), (2, 5, 3)),  # as in Swin
        (lambda x: nn.functional.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1), (2, 4, 5, 3)),
        (lambda x: nn.functional.adaptive_avg_pool3d(x.permute(0, 4, 1, 2, 3), 1), (2, 2, 4, 5, 3)),
        (lambda x: nn.functional.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), (2, 1)), (2, 4, 5, 3)),
    ],
)
def test_strides_that_pytorch_gives(backend: Xla, function: Any, shape: tuple[int, ...]) -> None:
    """Strides that PyTorch gives an average of everything, or what is filled, do not cost XLA the graph."""
    x = torch.randn(shape)
    _, executable = compiled(backend, function, x)
    torch.testing.assert_close(executable(x)[0], function(x))


def test_floats_become_bytes_as_in_eager(backend: Xla) -> None:
    """Floats beyond a byte keep the low bits of their integer part; XLA alone cuts them off at 0 and 255."""
    x = torch.tensor([0.0, 1.9, 254.7, 256.0, 300.5, -1.0, 1e6])
    _, executable = compiled(backend, lambda x: (x * 1).to(torch.uint8), x)
    assert torch.equal(executable(x)[0], x.to(torch.int64).to(torch.uint8))


def test_roots_of_infinities(backend: Xla) -> None:
    """The root of minus infinity is NaN however it is written."""
    x = torch.tensor([-inf, inf, 4.0, -4.0])
    _, executable = compiled(backend, lambda x: x**0.5, x)
    torch.testing.assert_close(executable(x)[0], x**0.5, equal_nan=True)


@pytest.mark.slow
def test_t5_with_a_mask_is_taken_whole() -> None:
    """Neither infinities of masks nor the empty start of a cache cost XLA a part of the graph."""
    transformers = pytest.importorskip("transformers")
    settings = {"vocab_size": 100, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    model = transformers.T5Model(transformers.T5Config(**settings)).eval()
    tokens, mask = torch.randint(0, 100, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    call = torch.compile(model, backend="hub", options={"backends": ("xla",), "tune": "off"})
    arguments = {"input_ids": tokens, "attention_mask": mask, "decoder_input_ids": tokens}
    with torch.no_grad():
        torch.testing.assert_close(call(**arguments).last_hidden_state, model(**arguments).last_hidden_state)
    (plan,) = hub.plans(call)
    assert [cluster.backend for cluster in plan.clusters] == ["xla"]


# --- What is imported -------------------------------------------------------------------------------------------------


def test_the_table_loads_without_torch_or_jax() -> None:
    """Listing backends counts operators without importing a heavy library."""
    code = "import sys, plugin_xla.support, plugin_xla.hooks; print({'torch', 'jax', 'jaxlib'} & set(sys.modules))"
    assert printed(code) == "set()"


def test_the_backend_is_made_without_jax() -> None:
    """JAX and torch-mlir are imported when the first cluster is compiled, no earlier."""
    code = "import sys; from plugin_xla.backend import create; create(); print({'jax', 'torch_mlir'} & set(sys.modules))"
    assert printed(code) == "set()"


def printed(code: str) -> str:
    """Return what a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_probe_accepts_this_machine(backend: Xla) -> None:
    """The probe compiles and runs one operator."""
    assert backend.probe().accepted


def test_a_probe_that_fails_gives_the_reason(backend: Xla, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever JAX raises becomes a refusal."""
    monkeypatch.setattr(backend_module, "client", lambda target, threads: 1 / 0)
    assert "ZeroDivisionError" in backend.probe().reason


@pytest.mark.parametrize(("library", "version"), [("jaxlib", "0.4.30"), ("jax", "0.11.0")])
def test_other_versions_are_refused_with_the_range(library: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names what is installed and what is needed."""
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == library else real(name))
    status = requirement_status(hub_backends()[0])
    assert status.reason == f"{library} {version} is installed, <0.11,>=0.10 is needed"


# --- Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "words"), [("cuda", r"jax\[cuda13\]"), ("tpu", r"jax\[tpu\]")])
def test_a_target_whose_client_is_not_installed_is_refused_in_words(
    target: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe and a compilation say what to install; the CPU still works."""
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    chosen = create(Settings(target=target))
    cluster, _ = whole_cluster(Of(lambda x: x * 2), (torch.randn(3),))
    assert re.search(words, chosen.probe().reason)
    with pytest.raises(CompileError, match=words):
        chosen.compile(cluster, SETTINGS)
    with pytest.raises(CompileError, match=words):
        chosen.load(Path(), cluster, SETTINGS)
    assert create(Settings()).probe().accepted


def test_a_client_that_does_not_load_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed but broken, or finds no processor, is reported with XLA's reason."""
    (tmp_path / "libtpu.so").write_text("no library")
    monkeypatch.setattr("plugin_xla.client.library", lambda target: tmp_path / "libtpu.so")
    monkeypatch.setattr(settings, "library", lambda target: tmp_path / "libtpu.so")
    assert "libtpu.so" in create(Settings(target="tpu")).probe().reason


def test_settings_come_from_options_and_are_checked() -> None:
    """A target that XLA has not is an error that names the option."""
    options = {"tune": "off", "backends": ["xla"], "xla": {"target": "vulkan"}}
    with pytest.raises(OptionError, match=r"xla\.target"):
        torch.compile(nn.Linear(2, 2), backend="hub", options=options)(torch.randn(1, 2))


def test_a_gpus_tensors_go_to_the_gpus_client_alone(backend: Xla) -> None:
    """Each target takes the tensors that it reaches without a copy, and says where others lie."""
    cluster, _ = whole_cluster(Of(lambda x: x * 2), (torch.randn(3),))
    (node,) = cluster.nodes
    assert backend.supports(node).accepted
    assert create(Settings(target="tpu")).supports(node).accepted
    assert create(Settings(target="cuda")).supports(node).reason == "aten.mul.Tensor: device cpu, only cuda here"


@pytest.fixture
def by_copies(monkeypatch: pytest.MonkeyPatch) -> Xla:
    """Return the backend as configured for a TPU, over the CPU's client: memory is the same, its handling is not."""
    monkeypatch.setattr(settings, "library", lambda target: Path("libtpu.so"))
    monkeypatch.setattr(backend_module, "client", lambda target, threads: client("cpu", threads))
    return create(Settings(target="tpu"))


@pytest.mark.parametrize("dtype", [*exchange.DTYPES], ids=str)
@pytest.mark.parametrize("shape", [(), (3, 2), (0, 2)], ids=str)
def test_copies_for_a_device_come_and_go_whole(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Every dtype and shape keeps its values, int64 and float64 too."""
    x = (torch.randn(3, 2) * 5).to(dtype)[: shape[0] if shape else 1]
    x = x.t() if shape else x[0, 0]
    device = client("cpu", 1).local_devices()[0]
    given = exchange.sent(x, device)
    got = exchange.fetched(given)
    assert str(given.dtype) == str(dtype).removeprefix("torch.")
    assert got.dtype is dtype
    assert torch.equal(got, x)


@pytest.mark.parametrize("name", ["mlp", "bert", "resnet18"])
def test_models_by_copies(by_copies: Xla, name: str, tmp_path: Path) -> None:
    """With copies there and back, donated ones, numbers are right in every call, and after a load."""
    module, inputs = build(name, small=True)
    with torch.no_grad():
        module.eval()(*inputs)
    cluster, values = whole_cluster(module.eval(), inputs)
    kept = [value.clone() for value in values]
    executable = by_copies.compile(cluster, SETTINGS)
    with torch.no_grad():
        verify(cluster, "xla", executable, values, None)
    first = executable(*values)[0]
    assert torch.equal(executable(*values)[0], first)
    assert all(map(torch.equal, kept, values))
    executable.save(tmp_path)
    assert torch.equal(by_copies.load(tmp_path, cluster, SETTINGS)(*values)[0], first)


def test_copies_are_donated_and_weights_are_not(by_copies: Xla) -> None:
    """XLA may write a result where the copy of an input lay; a weight is there in the next call."""
    layer = nn.Linear(8, 8)
    cluster, values = whole_cluster(layer, (torch.randn(8, 8),))
    executable = by_copies.compile(cluster, SETTINGS)
    ((_, program),) = executable._programs
    donated = [executable._argument(position, values) for position in program.fed]
    program.loaded.execute(donated)
    assert [one.is_deleted() for one in donated] == [position < len(cluster.inputs) for position in program.fed]
    assert True in (one.is_deleted() for one in donated)


def test_nothing_is_donated_where_memory_is_pytorchs(backend: Xla) -> None:
    """What lies over a user's tensor, or one that eager or another backend reads next, stays."""
    _, executable = compiled(backend, nn.Linear(8, 8), torch.randn(8, 8))
    ((_, program),) = executable._programs
    assert "buffer_donor" not in program.text


@pytest.mark.parametrize("module", [nn.Linear(4, 4), nn.Conv2d(4, 4, 3)], ids=["linear", "conv2d"])
def test_products_are_as_exact_as_their_inputs(by_copies: Xla, backend: Xla, module: nn.Module) -> None:
    """If XLA would multiply in fewer bits by itself, which a TPU and a GPU do, an option forbids it."""
    shape = (2, 4) if isinstance(module, nn.Linear) else (1, 4, 6, 6)
    cluster, _ = whole_cluster(module, (torch.randn(shape),))
    ((_, program),) = by_copies.compile(cluster, SETTINGS)._programs
    assert "HIGHEST" in program.text
    ((_, program),) = backend.compile(cluster, SETTINGS)._programs
    assert "HIGHEST" not in program.text


# --- Whole models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_is_one_exact_cluster(backend: Xla, name: str) -> None:
    """Every operator is taken, and the result is as close to float64 as float32 eager is."""
    module, inputs = build(name, small=True)
    with torch.no_grad():
        module.eval()(*inputs)  # transformers installs hooks under a lock in the first call, which Dynamo cannot follow
    with torch._dynamo.config.patch(allow_rnn=True):
        cluster, values = whole_cluster(module.eval(), inputs)
    reasons = [backend.supports(node).reason for node in cluster.nodes if "getitem" not in str(node.target)]
    assert [reason for reason in reasons if reason] == []
    with torch.no_grad():
        verify(cluster, "xla", backend.compile(cluster, SETTINGS), values, None)


def test_refusals_that_the_core_would_not_give_say_why(backend: Xla) -> None:
    """An operator that comes out wrong is refused with what is wrong, not as unknown."""
    cluster, _ = whole_cluster(Of(torch.erfc), (torch.randn(3),))
    assert backend.supports(cluster.nodes[0]).reason == "aten.erfc.default: torch-mlir makes no StableHLO of it"


def test_what_torch_mlir_gets_wrong_comes_out_right(backend: Xla) -> None:
    """Remainders are exact, NaN is found, known numbers compare as in eager, and shifts repeat what is smaller."""
    x, steps = torch.tensor([6.0, -7.5, nan, inf]), torch.tensor([[1], [300]])

    def function(x: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, ...]:
        known = torch.full((), 2.0) < 0
        return (
            x.fmod(0.1),
            x % -2,
            x // 0.1,
            x.isfinite(),
            x == x,
            x.argmax(),
            *x.max(0),
            steps << steps.t(),
            x.isnan() ^ known,
        )

    cluster, executable = compiled(backend, function, x, steps)
    for got, wanted in zip(executable(x, steps), cluster.module(x, steps), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("function", [torch.amax, torch.any, torch.argmax], ids=["amax", "any", "argmax"])
def test_bytes_that_torch_mlir_takes_for_signed_are_refused(backend: Xla, function: Any) -> None:
    """200 is larger than 100, and anything but 0 is 1."""
    cluster, _ = whole_cluster(Of(lambda x: function(x) + 0), (torch.tensor([200, 100], dtype=torch.uint8),))
    assert "dtype uint8" in backend.supports(cluster.nodes[0]).reason


def test_negative_indices_count_from_the_end(backend: Xla) -> None:
    """torch-mlir reads them as they are."""
    table, index = torch.randn(5, 3), torch.tensor([-1, 0, -5])
    cluster, executable = compiled(backend, lambda x, i: x[i] + x.index_put((i,), x.new_ones(3))[0], table, index)
    verify(cluster, "xla", executable, (table, index), None)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.slow
def test_mamba_runs_whole() -> None:
    """A recurrence written out runs on XLA without a node in eager, and gives eager's result."""
    module, inputs = build("mamba", small=True)
    with torch.no_grad():
        wanted = module.eval()(*inputs)
    compiled_module = torch.compile(module, backend="hub", options={"tune": "off", "backends": ["xla"]})
    with torch.no_grad():
        torch.testing.assert_close(compiled_module(*inputs), wanted, atol=1e-5, rtol=1e-4)
    clusters = [cluster for plan in hub.plans(compiled_module) for cluster in plan.clusters]
    assert [cluster.nodes for cluster in clusters if cluster.backend == "eager"] == []


# --- Sizes ------------------------------------------------------------------------------------------------------------


def test_sizes_beyond_the_limit_run_in_eager(backend: Xla, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more programs are compiled than the limit; sizes known by then are served still."""
    monkeypatch.setattr(programs, "MAX_SIZES", 2)
    cluster, executable = compiled(backend, lambda x: x * 2, torch.randn(4, 3), dynamic=True)
    executable(*sized(cluster, torch.ones(5, 3)))
    further = sized(cluster, torch.ones(6, 3))
    with pytest.raises(InputRefused, match="2 combinations") as caught:
        executable(*further)
    assert (caught.value.backend, caught.value.cluster) == ("xla", "c0")
    assert run(executable, cluster, further)[0].tolist() == [[2.0] * 3] * 6
    assert executable(*sized(cluster, torch.ones(5, 3)))[0].shape == (5, 3)


def test_sizes_that_cannot_be_compiled_for_run_in_eager(backend: Xla, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that fails at one size costs that call, not the executable."""
    cluster, executable = compiled(backend, lambda x: x * 2, torch.randn(4, 3), dynamic=True)
    monkeypatch.setattr(backend_module, "lower", lambda cluster, sizes, target: 1 / 0)
    with pytest.raises(InputRefused, match="ZeroDivisionError"):
        executable(*sized(cluster, torch.ones(5, 3)))
    assert executable(*sized(cluster, torch.ones(4, 3)))[0].shape == (4, 3)


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_no_copies_of_contiguous_tensors(backend: Xla) -> None:
    """XLA reads where the input lies, and the result lies where XLA wrote."""
    _, executable = compiled(backend, lambda x: x.sigmoid() * 2, torch.randn(4, 8))
    x = torch.randn(4, 8)
    given = exchange.array(x, executable._device)
    assert given.unsafe_buffer_pointer() == x.data_ptr()
    ((_, program),) = executable._programs
    (result,) = program.loaded.execute([given])
    assert exchange.tensor(result).data_ptr() == result.unsafe_buffer_pointer()
    torch.testing.assert_close(exchange.tensor(result), x.sigmoid() * 2)


def test_weights_stay_where_pytorch_has_them(backend: Xla) -> None:
    """Weights are arguments over PyTorch's own memory, and no constants in the program."""
    layer = nn.Linear(64, 64)
    cluster, executable = compiled(backend, layer, torch.randn(4, 64))
    where = {weight.data_ptr() for weight in cluster.constants.values()}
    assert {weight.unsafe_buffer_pointer() for weight in executable._weights} == where
    ((_, program),) = executable._programs
    assert len(program.text) < 2000


# --- Numbers and threads ----------------------------------------------------------------------------------------------


def test_int64_keeps_all_its_bits(backend: Xla) -> None:
    """Numbers beyond 32 bits go in and come out; the options of JAX stay as they are."""
    import jax

    before = jax.config.read("jax_enable_x64")
    x = torch.tensor([2**62, -(2**62) - 1, 2**40 + 3])
    _, executable = compiled(backend, lambda x: (x + 1, torch.div(x, 3, rounding_mode="trunc")), x)
    got = executable(x)
    assert [one.tolist() for one in got] == [(x + 1).tolist(), torch.div(x, 3, rounding_mode="trunc").tolist()]
    assert jax.config.read("jax_enable_x64") == before


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_the_hub_says_how_many_threads(backend: Xla) -> None:
    """A client's pool is as large as asked, one client serves each number, and the environment is left as it was."""
    code = (
        "import os; from plugin_xla.client import client; count = lambda: len(os.listdir('/proc/self/task'))\n"
        "import jax; grown = []\n"
        "for threads in (1, 2, 4):\n"
        "    before = count(); client('cpu', threads); grown.append(count() - before)\n"
        "print(*grown)"
    )
    one, two, four = map(int, printed(code).split())
    assert four - two == 2 * (two - one) > 0
    assert client("cpu", 1) is client("cpu", 1)
    assert "NPROC" not in os.environ


# --- Saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_saved_executable_gives_equal_results(backend: Xla, tmp_path: Path, dynamic: bool) -> None:
    """Loading restores numbers to the last bit, in a backend of its own, and lowers nothing."""
    cluster, executable = compiled(backend, Attention(), torch.randn(3, 5, 16), dynamic=dynamic)
    inputs = sized(cluster, torch.randn(3, 5, 16)) if dynamic else [torch.randn(3, 5, 16)]
    executable.save(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_module, "lower", lambda cluster, sizes, target: 1 / 0)
        got = create().load(tmp_path, cluster, SETTINGS)(*inputs)
    assert torch.equal(got[0], executable(*inputs)[0])


def test_dump_writes_programs_before_and_after(backend: Xla, tmp_path: Path) -> None:
    """A person can read what was received, what it became, and what runs."""
    _, executable = compiled(backend, lambda x: x.sin(), torch.randn(3))
    executable.dump(tmp_path)
    assert "stablehlo.sine" in (tmp_path / "program0.stablehlo.mlir").read_text()
    assert "is_scheduled=true" in (tmp_path / "program0.hlo.txt").read_text()
    assert "aten.sin" in (tmp_path / "cluster.py.txt").read_text()


# --- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "said"),
    [("lower", "torch-mlir cannot make StableHLO of it"), ("client", "XLA cannot compile it")],
    ids=["torch-mlir", "XLA"],
)
def test_what_a_compiler_raises_is_wrapped(backend: Xla, monkeypatch: pytest.MonkeyPatch, stage: str, said: str) -> None:
    """A CompileError names the compiler, the cluster and the reason."""
    cluster, _ = whole_cluster(Of(lambda x: x * 2), (torch.randn(3),))
    monkeypatch.setattr(backend_module, stage, lambda *given: 1 / 0)
    with pytest.raises(CompileError, match=f"{said}: ZeroDivisionError") as caught:
        backend.compile(cluster, CompileSettings(threads=1))
    assert (caught.value.backend, caught.value.cluster) == ("xla", "c0")


def test_a_program_that_xla_does_not_parse_is_a_compile_error(backend: Xla, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's own exception does not escape."""
    cluster, _ = whole_cluster(Of(lambda x: x * 2), (torch.randn(3),))
    monkeypatch.setattr(
        backend_module, "lower", lambda cluster, sizes, target: type("Lowered", (), {"text": "no", "fed": ()})
    )
    with pytest.raises(CompileError, match="XLA cannot compile it"):
        backend.compile(cluster, SETTINGS)


def test_what_xla_raises_in_a_call_is_wrapped(backend: Xla) -> None:
    """A RunError carries XLA's text."""
    _, executable = compiled(backend, lambda x: x * 2, torch.randn(3))
    ((_, program),) = executable._programs
    object.__setattr__(program, "fed", ())
    with pytest.raises(RunError, match="JaxRuntimeError: "):
        executable(torch.randn(3))
