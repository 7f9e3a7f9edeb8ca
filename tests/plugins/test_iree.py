"""The IREE backend: numbers, sizes, memory, threads, saving, errors. Single operators: `tests/conformance`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hub.bench.zoo import build
from hub.discovery.registry import requirement_status
from hub.errors import CompileError, InputRefused, OptionError, RunError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.conformance.sizes import symbols_of, with_sizes
from hub.testing.single import SETTINGS, compile_and_run, run, whole_cluster
from hub.toolkit import programs as programs_module
from hub.verification.verify import verify
from tests.functions import Attention, Of, sized

pytest.importorskip("iree.runtime")
pytest.importorskip("iree.compiler")
pytest.importorskip("torch_mlir")


from plugin_iree import backend as backend_module
from plugin_iree import compiler, runtime
from plugin_iree.backend import Iree, create
from plugin_iree.device import device
from plugin_iree.hooks import hub_backends
from plugin_iree.settings import Settings
from plugin_iree.sizes import needs_each

ANGLES = {f"aten.{name}.default: IREE gives infinities for huge numbers" for name in ("sin", "cos")}
MODELS = [
    "bert",
    pytest.param("gpt2", marks=pytest.mark.slow),
    pytest.param("llama", marks=pytest.mark.slow),
    "vit",
    "resnet18",
    pytest.param("mobilenetv2", marks=pytest.mark.slow),
    "convnext",
    "mlp",
]


@pytest.fixture(scope="module")
def backend() -> Iree:
    return create()


def compiled(
    backend: Iree, function: Callable[..., Any], *inputs: Any, dynamic: bool = False
) -> tuple[Cluster, runtime.IreeExecutable]:
    """Return the cluster of a function, and its executable."""
    module = function if isinstance(function, nn.Module) else Of(function)
    cluster, values = whole_cluster(module, inputs, dynamic=dynamic)
    executable, _ = compile_and_run(backend, cluster, values)
    assert isinstance(executable, runtime.IreeExecutable)
    return cluster, executable


# --- What is imported -------------------------------------------------------------------------------------------------


def test_the_table_loads_without_torch_or_iree() -> None:
    """Listing backends counts operators without importing a heavy library."""
    code = (
        "import sys, plugin_iree.support, plugin_iree.hooks, plugin_iree.settings;"
        "print({'torch', 'iree.runtime', 'iree.compiler'} & set(sys.modules))"
    )
    assert printed(code) == "set()"


def test_the_backend_is_made_without_iree() -> None:
    """IREE and torch-mlir are imported when the first cluster is compiled, no earlier."""
    code = (
        "import sys; from plugin_iree.backend import create; create();"
        "print({'iree.runtime', 'iree.compiler', 'torch_mlir'} & set(sys.modules))"
    )
    assert printed(code) == "set()"


def printed(code: str) -> str:
    """Return what a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_probe_accepts_this_machine(backend: Iree) -> None:
    """The probe compiles and runs one operator."""
    assert backend.probe().accepted


def test_a_probe_that_fails_gives_the_reason(backend: Iree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever IREE raises becomes a refusal."""
    monkeypatch.setattr(backend_module, "device", lambda target, threads: 1 / 0)
    assert "ZeroDivisionError" in backend.probe().reason


@pytest.mark.parametrize("library", ["iree-base-runtime", "iree-base-compiler"])
def test_other_versions_are_refused_with_the_range(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names what is installed and what is needed."""
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "3.9.0" if name == library else real(name))
    status = requirement_status(hub_backends()[0])
    assert status.reason == f"{library} 3.9.0 is installed, <3.14,>=3.13 is needed"


# --- Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "words"), [("cuda", "NVIDIA's driver"), ("vulkan", "Vulkan's loader")])
def test_a_target_that_the_host_lacks_is_refused_in_words(target: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe, a compilation and the list of backends name the driver; the CPU still works."""
    monkeypatch.setattr("plugin_iree.settings.find_library", lambda name: None)
    chosen = Settings(target=target)
    cluster, _ = whole_cluster(Of(lambda x: x * 2), (torch.randn(3),))
    assert words in chosen.missing
    assert words in create(chosen).probe().reason
    with pytest.raises(CompileError, match=words):
        create(chosen).compile(cluster, SETTINGS)
    assert create(Settings()).probe().accepted


def test_settings_come_from_options_and_are_checked() -> None:
    """A target that IREE has not is an error that names the option."""
    options = {"tune": "off", "backends": ["iree"], "iree": {"target": "tpu"}}
    with pytest.raises(OptionError, match=r"iree\.target"):
        torch.compile(nn.Linear(2, 2), backend="hub", options=options)(torch.randn(1, 2))


def test_flags_of_each_target() -> None:
    """The processor is the host's own, or the one that is set."""
    assert "--iree-llvmcpu-target-cpu=host" in compiler.target_flags(Settings())
    assert "--iree-llvmcpu-target-cpu=znver4" in compiler.target_flags(Settings(chip="znver4"))
    assert compiler.target_flags(Settings(target="CUDA")) == ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80")
    assert compiler.target_flags(Settings(target="vulkan")) == ("--iree-hal-target-device=vulkan",)


def test_programs_for_a_gpu_are_compiled_without_one(backend: Iree) -> None:
    """IREE compiles for CUDA on any machine; only running needs the device."""
    _, executable = compiled(backend, lambda x: x * 2 + 1, torch.randn(4, 3))
    ((_, program),) = executable._programs
    assert b"cuda-nvptx-fb" in compiler.compiled(program.text, Settings(target="cuda", chip="sm_86"))


def test_copies_for_a_device_come_and_go_whole() -> None:
    """What a GPU would get and give back is the same to the last bit, for each dtype."""
    where = device("cpu", 1)
    for dtype in runtime._ELEMENTS:
        value = torch.arange(-3, 9).reshape(3, 4).to(dtype)
        view = runtime.sent(value, where)
        back = runtime.fetched(view, dtype, where)
        assert back.dtype == dtype and torch.equal(back, value)
        assert back.data_ptr() != value.data_ptr()


# --- Whole models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_is_one_exact_cluster(backend: Iree, name: str) -> None:
    """Every operator is taken, and the result is as close to float64 as float32 eager is."""
    module, inputs = build(name, small=True)
    with torch.no_grad():
        module.eval()(*inputs)  # transformers installs hooks under a lock in the first call, which Dynamo cannot follow
    cluster, values = whole_cluster(module.eval(), inputs)
    reasons = [backend.supports(node).reason for node in cluster.nodes if "getitem" not in str(node.target)]
    assert {reason for reason in reasons if reason} <= ANGLES  # of rotary embeddings, 2 nodes
    with torch.no_grad():
        verify(cluster, "iree", backend.compile(cluster, SETTINGS), values, None)


def test_an_lstm_is_unrolled_and_exact(backend: Iree) -> None:
    """Steps are written out one by one."""
    module, inputs = build("lstm", small=True)
    with torch._dynamo.config.patch(allow_rnn=True):
        cluster, values = whole_cluster(module.eval(), inputs)
    assert [backend.supports(node).reason for node in cluster.nodes if "lstm" in str(node.target)] == [""]
    with torch.no_grad():
        verify(cluster, "iree", backend.compile(cluster, SETTINGS), values, None)


def test_refusals_that_the_core_would_not_give_say_why(backend: Iree) -> None:
    """An operator that comes out wrong is refused with what is wrong, not as unknown."""
    cluster, _ = whole_cluster(Of(lambda x: x.sin()), (torch.randn(3),))
    assert backend.supports(cluster.nodes[0]).reason == "aten.sin.default: IREE gives infinities for huge numbers"


# --- Sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (lambda x, y: x + y, ((4, 3), (5, 7), (1, 1), (0, 2))),
        (lambda x, y: torch.cat([x, y, x], 1), ((4, 3), (5, 7), (1, 1), (0, 2))),
        (lambda x, y: (x @ y.t()).reshape(-1), ((4, 3), (5, 7), (1, 1))),
        (lambda x, y: x.reshape(2, -1) * y.reshape(2, -1), ((4, 3), (6, 7), (2, 1), (8, 5))),
    ],
    ids=["sum", "cat", "products", "mixed views"],
)
def test_results_have_the_sizes_that_follow(backend: Iree, function: Any, sizes: Any) -> None:
    """Results whose sizes are expressions of symbols come from the same program."""
    cluster, executable = compiled(backend, function, torch.randn(4, 3), torch.randn(4, 3), dynamic=True)
    for rows, columns in sizes:
        inputs = with_sizes(cluster, tuple(torch.randn(4, 3) for _ in cluster.inputs), symbols_as(cluster, rows, columns))
        (want,) = cluster.module(*inputs)
        torch.testing.assert_close(executable(*inputs)[0], want)
    assert executable._programs.general is not None
    assert len(executable._programs) == 0


def symbols_as(cluster: Cluster, *sizes: int) -> dict[Any, int]:
    """Return sizes of a cluster's symbols, in order of appearance."""
    return dict(zip(symbols_of(cluster), sizes, strict=True))


def test_inputs_that_disagree_on_a_size_reach_no_program_for_all(backend: Iree) -> None:
    """One symbol has one value: IREE would read beyond the shorter tensor."""
    _, executable = compiled(backend, lambda x, y: x + y, torch.randn(4), torch.randn(4), dynamic=True)
    inputs = [torch.randn(5), torch.randn(3)]
    with pytest.raises(InputRefused, match="cannot be compiled for"):
        executable(*inputs) if len(executable._dtypes) == 2 else executable(5, *inputs)


def test_a_symbol_that_is_1_is_squeezed_as_in_eager(backend: Iree) -> None:
    """A size that an operator treats otherwise gets a program of its own."""
    cluster, executable = compiled(backend, lambda x: x.squeeze(0) * 2, torch.randn(4, 3), dynamic=True)
    assert executable(*sized(cluster, torch.ones(5, 3)))[0].shape == (5, 3)
    assert len(executable._programs) == 0
    assert executable(*sized(cluster, torch.ones(1, 3)))[0].shape == (3,)
    assert len(executable._programs) == 1


def test_operators_that_one_program_does_not_serve_say_why(backend: Iree) -> None:
    """The table tells which calls need a program for each combination of sizes, which is compiled when it is met."""
    cluster, executable = compiled(backend, _each, torch.randn(4, 3), dynamic=True)
    assert any("roundings" in needs_each(node) for node in cluster.nodes)
    assert [executable._programs.general, len(executable._programs)] == [None, 1]
    executable(*sized(cluster, torch.ones(5, 3)))
    assert len(executable._programs) == 2


def _each(x: torch.Tensor) -> torch.Tensor:
    return x + x.sum()


def test_sizes_beyond_the_limit_run_in_eager(backend: Iree, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more programs are compiled than the limit; sizes known by then are served still."""
    monkeypatch.setattr(programs_module, "MAX_SIZES", 2)
    cluster, executable = compiled(backend, _each, torch.randn(4, 3), dynamic=True)
    executable(*sized(cluster, torch.ones(5, 3)))
    further = sized(cluster, torch.ones(6, 3))
    with pytest.raises(InputRefused, match="2 combinations") as caught:
        executable(*further)
    assert (caught.value.backend, caught.value.cluster) == ("iree", "c0")
    assert run(executable, cluster, further)[0].tolist() == [[19.0] * 3] * 6
    assert executable(*sized(cluster, torch.ones(5, 3)))[0].shape == (5, 3)


def test_sizes_that_cannot_be_compiled_for_run_in_eager(backend: Iree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that fails at one size costs that call, not the executable."""
    cluster, executable = compiled(backend, _each, torch.randn(4, 3), dynamic=True)
    monkeypatch.setattr(backend_module, "lower", lambda cluster, sizes: 1 / 0)
    with pytest.raises(InputRefused, match="ZeroDivisionError"):
        executable(*sized(cluster, torch.ones(5, 3)))
    assert executable(*sized(cluster, torch.ones(4, 3)))[0].shape == (4, 3)


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_no_copies_of_contiguous_tensors(backend: Iree) -> None:
    """IREE reads where the input lies, and the result lies where IREE wrote."""
    _, executable = compiled(backend, lambda x: x.sigmoid() * 2, torch.randn(4, 8))
    x = torch.randn(4, 8)
    assert runtime.placed(x) is x
    view = runtime.shared(x, executable._device)
    assert address(view) == x.data_ptr()
    ((_, program),) = executable._programs
    (result,) = runtime.invoked(program, [view], 1)
    got = runtime.mapped(result, torch.float32, executable._device)
    assert got.data_ptr() == address(result)
    torch.testing.assert_close(got, x.sigmoid() * 2)


def address(view: Any) -> int:
    """Return the address of the memory of one of IREE's views."""
    return view.map().asarray(view.shape, np.dtype("float32")).ctypes.data


def test_inputs_that_are_not_aligned_are_copied(backend: Iree) -> None:
    """IREE refuses memory that is not aligned to 64 bytes; the copy is aligned."""
    x = torch.randn(25)[1:]
    with pytest.raises(IndexError, match="aligned to 64"):
        runtime.shared(x, device("cpu", 1))
    copy = runtime.placed(x)
    assert copy.data_ptr() % 64 == 0
    assert torch.equal(copy, x)


def test_weights_stay_where_pytorch_has_them(backend: Iree) -> None:
    """Weights are parameters over PyTorch's own memory, and no constants in the program."""
    weight = nn.Parameter(torch.randn(64, 64), requires_grad=False)
    module = Of(lambda x: x * module.weight)
    module.weight = weight
    cluster, executable = compiled(backend, module, torch.randn(64, 64))
    (held,) = executable._weights.tensors
    assert held.data_ptr() == next(iter(cluster.constants.values())).data_ptr()
    ((_, program),) = executable._programs
    assert len(program.text) < 2000
    held.fill_(3.0)  # behind the hub's back, to see that IREE has no copy of its own
    assert torch.equal(executable(torch.ones(64, 64))[0], torch.full((64, 64), 3.0))


# --- Numbers and threads ----------------------------------------------------------------------------------------------


def test_large_integers_are_negated(backend: Iree) -> None:
    """Nothing goes through floating point."""
    x = torch.tensor([2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 7, 0])
    _, executable = compiled(backend, lambda x: -x, x)
    assert torch.equal(executable(x)[0], -x)


def test_wide_numbers_keep_all_their_bits(backend: Iree) -> None:
    """int64 beyond 32 bits and float64 beyond float32's precision go in and come out; IREE's default narrows float64."""
    x, y = torch.tensor([2**62, -(2**62) - 1, 2**40 + 3]), torch.tensor([1.0 + 2**-40], dtype=torch.float64)
    _, executable = compiled(backend, lambda x, y: (x + 1, y * 3), x, y)
    assert [one.tolist() for one in executable(x, y)] == [(x + 1).tolist(), (y * 3).tolist()]


def test_indices_out_of_range_read_no_foreign_memory(backend: Iree) -> None:
    """Where eager raises, the last place is read: IREE's code looks at nothing."""
    table = torch.arange(12.0).reshape(4, 3)
    _, executable = compiled(backend, lambda x, i: x[i], table, torch.tensor([0, -1]))
    got = executable(table, torch.tensor([10**12, -(10**12)]))[0]
    assert torch.equal(got, table[[3, 0]])


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_the_hub_says_how_many_threads() -> None:
    """One thread needs no workers; a pool is as large as asked, and one device serves each number."""
    code = (
        "import os; from plugin_iree.device import device; count = lambda: len(os.listdir('/proc/self/task'))\n"
        "device('cpu', 1); grown = []\n"
        "for threads in (2, 3, 5):\n"
        "    before = count(); device('cpu', threads); grown.append(count() - before)\n"
        "print(*grown)"
    )
    two, three, five = map(int, printed(code).split())
    assert (three - two, five - three) == (1, 2)
    assert device("cpu", 1) is device("cpu", 1)


IDLE = """
import os, time, torch
from pathlib import Path
from torch import nn
from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_iree.backend import create

def is_asleep(task):
    return Path(f"/proc/self/task/{task}/stat").read_text().rpartition(")")[2].split()[0] == "S"

torch.set_grad_enabled(False)
cluster, values = whole_cluster(nn.Linear(64, 64), (torch.randn(32, 64),))
before = set(os.listdir("/proc/self/task"))
executable = create().compile(cluster, CompileSettings(threads=2))
for _ in range(20):
    executable(*values)
pool = set(os.listdir("/proc/self/task")) - before
for _ in range(600):
    if all(map(is_asleep, pool)):
        break
    time.sleep(0.05)
print(len(pool) >= 2, all(map(is_asleep, pool)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads in /proc which threads wait")
def test_idle_workers_do_not_spin() -> None:
    """Between calls every thread of a pool waits: a busy-waiting one would run during any measurement."""
    assert printed(IDLE) == "True True"


def test_several_threads_compute_the_same(backend: Iree) -> None:
    """A pool of three gives the result of one thread."""
    module, x = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).eval(), torch.randn(32, 64)
    cluster, values = whole_cluster(module, (x,))
    _, (got,) = compile_and_run(backend, cluster, values, CompileSettings(threads=3))
    with torch.no_grad():
        torch.testing.assert_close(got, module(x))


# --- Saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_saved_executable_gives_equal_results(backend: Iree, tmp_path: Path, dynamic: bool) -> None:
    """Loading restores numbers to the last bit, in a backend of its own, and lowers nothing."""
    cluster, executable = compiled(backend, Attention(), torch.randn(3, 5, 16), dynamic=dynamic)
    inputs = sized(cluster, torch.randn(3, 5, 16)) if dynamic else [torch.randn(3, 5, 16)]
    executable.save(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_module, "lower", lambda cluster, sizes: 1 / 0)
        patch.setattr(backend_module, "lower_open", lambda cluster, least: 1 / 0)
        got = create().load(tmp_path, cluster, SETTINGS)(*inputs)
    assert torch.equal(got[0], executable(*inputs)[0])


def test_dump_writes_every_stage(backend: Iree, tmp_path: Path) -> None:
    """A person can read what was received, what it became, and what each executable computes."""
    _, executable = compiled(backend, lambda x: x.sin(), torch.randn(3))
    executable.dump(tmp_path)
    assert "aten.sin" in (tmp_path / "cluster.py.txt").read_text()
    assert "torch.aten.sin" in (tmp_path / "program0.torch.mlir").read_text()
    stages = sorted(path.name.split(".")[2] for path in (tmp_path / "program0.stages").glob("*.mlir"))
    assert {"input", "flow", "stream", "executable-sources"} <= set(stages)
    (sources,) = (tmp_path / "program0.stages").glob("*.executable-sources.mlir")
    assert "math.sin" in sources.read_text()


# --- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "said"),
    [("lower", "torch-mlir cannot read it"), ("device", "IREE cannot compile it")],
    ids=["torch-mlir", "IREE"],
)
def test_what_a_compiler_raises_is_wrapped(backend: Iree, monkeypatch: pytest.MonkeyPatch, stage: str, said: str) -> None:
    """A CompileError names the compiler, the cluster and the reason."""
    cluster, _ = whole_cluster(Of(lambda x: x * 2), (torch.randn(3),))
    monkeypatch.setattr(backend_module, stage, lambda *given: 1 / 0)
    with pytest.raises(CompileError, match=f"{said}: ZeroDivisionError") as caught:
        backend.compile(cluster, CompileSettings(threads=1))
    assert (caught.value.backend, caught.value.cluster) == ("iree", "c0")


def test_the_compilers_own_words_are_told(backend: Iree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that IREE does not compile costs one error with its first lines, and no process."""
    cluster, _ = whole_cluster(Of(lambda x: x * 2), (torch.randn(3),))
    lowered = type("Lowered", (), {"text": "func.func @main( {", "fed": ()})
    monkeypatch.setattr(backend_module, "lower", lambda cluster, sizes: lowered)
    with pytest.raises(CompileError, match=r"IREE cannot compile it: status 1: .*error: ") as caught:
        backend.compile(cluster, SETTINGS)
    assert len(str(caught.value)) < 3000


def test_a_compiler_that_dies_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler that a signal ends names the signal."""
    tool = tmp_path / "iree-compile"
    tool.write_text("#!/bin/sh\nkill -SEGV $$\n")
    tool.chmod(0o755)
    monkeypatch.setattr(compiler, "_tool", lambda: str(tool))
    with pytest.raises(compiler.Refused, match="SIGSEGV"):
        compiler.compiled("", Settings())


def test_what_iree_raises_in_a_call_is_wrapped(backend: Iree) -> None:
    """A RunError carries IREE's text."""
    _, executable = compiled(backend, lambda x, y: x + y, torch.randn(3), torch.randn(3))
    ((_, program),) = executable._programs
    object.__setattr__(program, "fed", (0,))
    with pytest.raises(RunError, match="Error: "):
        executable(torch.randn(3), torch.randn(3))
