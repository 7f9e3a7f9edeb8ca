"""The TVM backend: numbers, sizes, memory, threads, saving, errors. Single operators: `tests/conformance`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.bench.zoo import build
from hub.discovery.registry import requirement_status
from hub.errors import CompileError, InputRefused, RunError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.single import SETTINGS, compile_and_run, run, whole_cluster
from hub.verification.verify import verify
from tests.functions import Attention, Of, sized

pytest.importorskip("tvm")

from plugin_tvm import compiler, program, runtime
from plugin_tvm.backend import Tvm, create
from plugin_tvm.hooks import hub_backends
from plugin_tvm.settings import Settings
from plugin_tvm.target import hidden_features, host_target

TAKE_LONGEST = ("gpt2", "vit", "mobilenetv2")
"""Models of many different kernels, each compiled by itself: for the long suites."""
MODELS = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in TAKE_LONGEST))
    for name in ("bert", "gpt2", "llama", "vit", "resnet50", "mobilenetv2", "convnext")
]
MAX_LEFT = 0.02
"""Share of a model's nodes that may run in eager."""


@pytest.fixture(scope="module")
def backend() -> Tvm:
    return create()


@pytest.fixture(autouse=True)
def _recurrent_layers() -> Iterator[None]:
    """Let Dynamo capture recurrent layers, which it leaves in eager by default."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def compiled(
    backend: Tvm, function: Callable[..., Any], *inputs: Any, dynamic: bool = False
) -> tuple[Cluster, runtime.TvmExecutable]:
    """Return the cluster of a function, and its executable."""
    module = function if isinstance(function, nn.Module) else Of(function)
    cluster, values = whole_cluster(module, inputs, dynamic=dynamic)
    executable, _ = compile_and_run(backend, cluster, values)
    assert isinstance(executable, runtime.TvmExecutable)
    return cluster, executable


# --- What is imported -------------------------------------------------------------------------------------------------


def test_the_table_loads_without_torch_or_tvm() -> None:
    """Listing backends counts operators without importing a heavy library."""
    code = (
        "import sys, plugin_tvm.support, plugin_tvm.hooks, plugin_tvm.settings; print({'torch', 'tvm'} & set(sys.modules))"
    )
    assert printed(code) == "set()"


def test_the_backend_is_made_without_tvm() -> None:
    """TVM is imported when the first cluster is compiled, no earlier."""
    code = "import sys; from plugin_tvm.backend import create; create(); print({'tvm', 'tvm_ffi'} & set(sys.modules))"
    assert printed(code) == "set()"


def printed(code: str) -> str:
    """Return what a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_probe_accepts_this_machine(backend: Tvm) -> None:
    """The probe compiles and runs one operator."""
    assert backend.probe().accepted


def test_a_probe_that_fails_gives_the_reason(backend: Tvm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever TVM raises becomes a refusal."""
    monkeypatch.setattr(compiler, "built", lambda *given, **named: 1 / 0)
    assert "ZeroDivisionError" in backend.probe().reason


def test_other_versions_are_refused_with_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names what is installed and what is needed."""
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.26.0" if name == "apache-tvm" else real(name))
    assert requirement_status(hub_backends()[0]).reason == "apache-tvm 0.26.0 is installed, <0.28,>=0.27 is needed"


# --- Targets ----------------------------------------------------------------------------------------------------------


def test_the_target_is_this_cpu() -> None:
    """Code is made for the host's CPU, and for as many cores as a call may use."""
    target = host_target(2)
    assert str(target.attrs["mcpu"]) not in ("", "generic")
    assert int(target.attrs["num-cores"]) == 2


def test_what_a_virtual_machine_hides_is_not_used() -> None:
    """A CPU's name promises instructions that the machine may not show; those are switched off."""
    features = {"avx512f", "avx512vbmi2", "amx-tile", "fast-bextr", "bmi", "sse4.1"}
    assert hidden_features(features, {"avx512f", "avx512_vbmi2", "bmi1", "sse4_1"}) == ("amx-tile",)
    assert hidden_features(features, set()) == ()


def test_a_target_that_the_host_lacks_is_refused_in_words() -> None:
    """CUDA is refused by listing, by each node and by compiling, each with the reason."""
    settings = Settings(target="cuda")
    cluster, _ = whole_cluster(Of(lambda x: x * 2), (torch.randn(3),))
    assert "CUDA" in settings.missing
    assert "CUDA" in create(settings).supports(cluster.nodes[0]).reason
    with pytest.raises(CompileError, match="CUDA"):
        create(settings).compile(cluster, SETTINGS)


# --- Whole models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_is_one_exact_cluster(backend: Tvm, name: str) -> None:
    """Every operator is taken, and the result is as close to float64 as float32 eager is."""
    module, inputs = build(name, small=True)
    with torch.no_grad():
        module.eval()(*inputs)  # transformers installs hooks under a lock in the first call, which Dynamo cannot follow
    cluster, values = whole_cluster(module.eval(), inputs)
    reasons = [backend.supports(node).reason for node in cluster.nodes if "getitem" not in str(node.target)]
    assert [reason for reason in reasons if reason] == []
    with torch.no_grad():
        verify(cluster, "tvm", backend.compile(cluster, SETTINGS), values, None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_mamba_is_exact() -> None:
    """A recurrence written out runs on TVM but for a few nodes, and gives eager's result."""
    module, inputs = build("mamba", small=True)
    with torch.no_grad():
        wanted = module.eval()(*inputs)
    compiled_module = torch.compile(module, backend="hub", options={"tune": "off", "backends": ["tvm"]})
    with torch.no_grad():
        torch.testing.assert_close(compiled_module(*inputs), wanted, atol=1e-5, rtol=1e-4)
    clusters = [cluster for plan in hub.plans(compiled_module) for cluster in plan.clusters]
    left = sum(len(cluster.nodes) for cluster in clusters if cluster.backend == "eager")
    assert left <= MAX_LEFT * sum(len(cluster.nodes) for cluster in clusters)


def test_an_lstm_runs_whole(backend: Tvm, tmp_path: Path) -> None:
    """Its steps are written out: nothing runs in eager, saved or not."""
    module, inputs = build("lstm", small=True)
    with torch._dynamo.config.patch(allow_rnn=True):
        cluster, values = whole_cluster(module.eval(), inputs)
    assert all(backend.supports(node).accepted for node in cluster.nodes if "getitem" not in str(node.target))
    with torch.no_grad():
        executable = backend.compile(cluster, SETTINGS)
        verify(cluster, "tvm", executable, values, None)
        executable.save(tmp_path)
        verify(cluster, "tvm", backend.load(tmp_path, cluster, SETTINGS), values, None)


# --- Sizes ------------------------------------------------------------------------------------------------------------


def test_empty_tensors_run_in_eager(backend: Tvm) -> None:
    """A size of 0 is refused for that call alone."""
    cluster, executable = compiled(backend, lambda x: x * 2, torch.randn(4, 3), dynamic=True)
    with pytest.raises(InputRefused, match="no elements"):
        executable(*sized(cluster, torch.ones(0, 3)))
    assert run(executable, cluster, sized(cluster, torch.ones(0, 3)))[0].shape == (0, 3)
    assert executable(*sized(cluster, torch.ones(5, 3)))[0].shape == (5, 3)


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_no_copies_of_contiguous_tensors(backend: Tvm) -> None:
    """TVM reads where the input lies, and the result lies where TVM wrote."""
    _, executable = compiled(backend, lambda x: x.sigmoid() * 2, torch.randn(4, 8))
    x = torch.randn(4, 8)
    given = runtime.array(x)
    assert given.data_ptr() == x.data_ptr()
    (result,) = executable._run([given])
    assert runtime.tensor(result).data_ptr() == result.data_ptr()
    torch.testing.assert_close(runtime.tensor(result), x.sigmoid() * 2)


def test_weights_stay_where_pytorch_has_them(backend: Tvm) -> None:
    """Weights are bound once, over PyTorch's own memory, and are no constants in the program."""
    cluster, executable = compiled(backend, nn.Linear(64, 64), torch.randn(4, 64))
    where = {weight.data_ptr() for weight in cluster.constants.values()}
    assert {weight.data_ptr() for weight in executable.weights.values()} == where
    assert "metadata" not in executable.texts.relax


# --- Numbers and threads ----------------------------------------------------------------------------------------------


def test_int64_keeps_all_its_bits(backend: Tvm) -> None:
    """Numbers beyond 32 bits go in and come out."""
    x = torch.tensor([2**62, -(2**62) - 1, 2**40 + 3])
    _, executable = compiled(backend, lambda x: (x + 1, torch.div(x, 3, rounding_mode="floor")), x)
    got = executable(x)
    assert [one.tolist() for one in got] == [(x + 1).tolist(), torch.div(x, 3, rounding_mode="floor").tolist()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_rounded_as_by_pytorch(backend: Tvm, dtype: torch.dtype) -> None:
    """Halves are rounded to the nearest, of two to the even one; infinities and NaN stay."""
    x = torch.tensor([1.00390625, 1.01171875, -0.0, float("inf"), float("nan"), 3.0e38, 1e-40, 65519.0, 65520.0])
    _, executable = compiled(backend, lambda x: (x.to(dtype), x.to(dtype).float()), x)
    got, back = executable(x)
    assert torch.equal(got.view(torch.int16)[x == x], x.to(dtype).view(torch.int16)[x == x])
    assert torch.equal(back.isnan(), x.isnan())


def test_zero_times_infinity_is_no_number(backend: Tvm) -> None:
    """TVM would take x * 0 for 0."""
    x = torch.tensor([float("inf"), float("nan"), 1.0])
    _, executable = compiled(backend, lambda x: (x * 0.0, x.relu(), torch.maximum(x, x.flip(0))), x)
    for got, wanted in zip(executable(x), (x * 0.0, x.relu(), torch.maximum(x, x.flip(0))), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_the_hub_says_how_many_threads() -> None:
    """Kernels run in as many threads as asked, and the environment is left as it was."""
    code = (
        "import os, tvm; from plugin_tvm.pool import use_threads; before = dict(os.environ)\n"
        "import tvm_ffi; count = tvm_ffi.get_global_func('runtime.NumThreads', allow_missing=True)\n"
        "found = []\n"
        "for threads in (1, 2):\n"
        "    use_threads(threads); found.append(tvm.runtime.num_threads())\n"
        "print(*found, dict(os.environ) == before)"
    )
    assert printed(code) == "1 2 True"


def test_threads_have_begun_before_the_environment_is_put_back() -> None:
    """A pool's threads read how long to busy-wait when they begin; late ones would do so between other backends' calls."""
    code = (
        "import ctypes, threading, tvm; from plugin_tvm import pool; found = {}; both = threading.Barrier(2)\n"
        "getenv = ctypes.CDLL(None).getenv; getenv.restype = ctypes.c_char_p\n"
        "def busy_waits(): return getenv(b'TVM_THREAD_POOL_SPIN_COUNT')\n"
        "def task(*_): both.wait(60); found[threading.get_ident()] = busy_waits(); return 0\n"
        "pool._NOTHING = pool._TASK(task)\n"
        "pool.use_threads(2)\n"
        "print(*found.values(), busy_waits())"
    )
    assert printed(code) == "b'0' b'0' None"


def test_large_kernels_are_shared_between_threads(backend: Tvm) -> None:
    """With two threads loops with much to do are parallel, and the result is the same."""
    cluster, values = whole_cluster(Of(lambda x: (x @ x).sum(-1)), (torch.randn(64, 64),))
    executable = backend.compile(cluster, CompileSettings(threads=2))
    assert "T.parallel" in executable.texts.scheduled
    with torch.no_grad():
        verify(cluster, "tvm", executable, values, None)


WOKEN = """
import os, time, torch
from pathlib import Path
from torch import nn
from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_tvm.backend import create

def facts(task):
    return dict(line.split(":\\t", 1) for line in Path(f"/proc/self/task/{task}/status").read_text().splitlines())

def waits(task):
    for _ in range(6000):
        found = facts(task)
        if found["State"].startswith("S"):
            return int(found["voluntary_ctxt_switches"])
        time.sleep(0.01)
    raise RuntimeError("a thread of the pool never sleeps")

torch.set_num_threads(2); torch.set_grad_enabled(False)
cluster, values = whole_cluster(nn.Linear(512, 512), (torch.randn(512, 512),))
executable = create().compile(cluster, CompileSettings(threads=2))
before = set(os.listdir("/proc/self/task"))
executable(*values)
pool, woken = set(os.listdir("/proc/self/task")) - before, {}
for _ in range(5):
    seen = {task: waits(task) for task in pool}
    executable(*values)
    for task in pool:
        woken[task] = woken.get(task, 0) + (waits(task) > seen[task])
print(sum(count == 5 for count in woken.values()), sum(0 < count < 5 for count in woken.values()))
"""
"""Prints how many threads of the pool every call wakes, and how many only some do. A thread that waits has nothing to do:
each time it begins to is counted by the system, on however slow or busy a machine."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads in /proc which threads wait")
def test_no_variable_has_to_be_set_for_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM by itself takes half of the CPUs, and on two would launch nothing in parallel."""
    for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert printed(WOKEN) == "1 0"


PLANES = (torch.randn(2, 4, 64, 32), torch.randn(2, 4, 1, 1))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("function", "loop"),
    [
        pytest.param(lambda x, y: (x * 2.0).relu() + y.sum(), "i0_i1_i2_i3_fused", id="whole"),
        pytest.param(lambda x, y: x * y, "i2_i3_fused", id="a factor for each plane"),
        pytest.param(lambda x, y: x.transpose(2, 3) * y + x.reshape(2, 4, 32, 64), "i3", id="transposed"),
        pytest.param(lambda x, y: x[:, :, 1:, 1:] * y, "i3", id="sliced"),
    ],
)
def test_rows_that_follow_each_other_are_one_loop(
    backend: Tvm, function: Callable[..., Any], loop: str, threads: int
) -> None:
    """Inner loops that walk through memory as one would are one, so that vectors are not cut off at each row's end."""
    cluster, values = whole_cluster(Of(function), PLANES)
    executable = backend.compile(cluster, CompileSettings(threads=threads))
    assert re.search(rf"for [\w, ]*\b{loop} in ", executable.texts.scheduled), executable.texts.scheduled
    with torch.no_grad():
        verify(cluster, "tvm", executable, values, None)


def test_what_windows_read_again_is_computed_once(backend: Tvm) -> None:
    """What stands before a depthwise convolution is computed before it, padding too, not once for each of its weights."""
    module = nn.Sequential(nn.ReLU6(), nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False))
    cluster, values = whole_cluster(module.eval(), (torch.randn(1, 32, 32, 32),))
    executable = backend.compile(cluster, SETTINGS)
    (name,) = (line for line in executable.texts.relax.splitlines() if "def reduce" in line)
    body = executable.texts.relax.partition(name)[2].partition("def ")[0]
    assert "llvm.minimum" not in body
    assert "if_then_else" not in body
    with torch.no_grad():
        verify(cluster, "tvm", executable, values, None)


def test_what_follows_from_weights_alone_is_computed_once(backend: Tvm, tmp_path: Path) -> None:
    """A batch norm's factor is computed when an executable is made or loaded, not at every call."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    module[1].running_var.uniform_(0.5, 2.0)
    cluster, values = whole_cluster(module.eval(), (torch.randn(1, 3, 9, 9),))
    executable = backend.compile(cluster, SETTINGS)
    assert "llvm.sqrt" in executable.texts.relax
    called = executable.texts.relax.partition("def main(i0")[2]
    kernels = [executable.texts.relax.partition(f"def {name}(")[2].partition("def ")[0] for name in calls_of(called)]
    assert kernels
    assert not any("llvm.sqrt" in kernel for kernel in kernels)
    executable.save(tmp_path)
    restored = create().load(tmp_path, cluster, SETTINGS)
    with torch.no_grad():
        verify(cluster, "tvm", executable, values, None)
        verify(cluster, "tvm", restored, values, None)


def calls_of(function: str) -> list[str]:
    """Return the names of the kernels that a Relax function calls."""
    return re.findall(r"call_tir\(cls\.(\w+)", function)


class _Narrow(nn.Module):
    """A layer with weights of 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-9, 9, (1024, 1100), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.float() * 0.1)


def test_small_weights_stay_small(backend: Tvm) -> None:
    """What would be four times as large as the weights that it is made of is made anew, and not kept."""
    cluster, values = whole_cluster(_Narrow(), (torch.randn(2, 1024),))
    executable = backend.compile(cluster, SETTINGS)
    assert not executable.facts.names.bind
    with torch.no_grad():
        verify(cluster, "tvm", executable, values, None)


def test_scans_with_two_threads(backend: Tvm) -> None:
    """A scan's loops lie inside of one block, which is no schedule's to share."""
    cluster, values = whole_cluster(Of(lambda x: x.cumsum(1)), (torch.randint(0, 9, (1, 128)),))
    executable = backend.compile(cluster, CompileSettings(threads=2))
    assert torch.equal(run(executable, cluster, values)[0], values[0].cumsum(1))


# --- Saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_saved_executable_gives_equal_results(backend: Tvm, tmp_path: Path, dynamic: bool) -> None:
    """Loading restores numbers to the last bit, in a backend of its own, and lowers nothing."""
    cluster, executable = compiled(backend, Attention(), torch.randn(3, 5, 16), dynamic=dynamic)
    inputs = sized(cluster, torch.randn(3, 5, 16)) if dynamic else [torch.randn(3, 5, 16)]
    executable.save(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "program_of", lambda *given, **named: 1 / 0)
        got = create().load(tmp_path, cluster, SETTINGS)(*inputs)
    assert torch.equal(got[0], executable(*inputs)[0])


def test_no_linker_is_a_compile_error(backend: Tvm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C++ compiler an executable runs and cannot be saved, in words."""
    _, executable = compiled(backend, lambda x: x * 2, torch.randn(4, 3))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="cannot link"):
        executable.save(tmp_path)


def test_dump_writes_programs_before_and_after(backend: Tvm, tmp_path: Path) -> None:
    """A person can read what was received, what it became, and what runs."""
    _, executable = compiled(backend, lambda x: x.sin(), torch.randn(3))
    executable.dump(tmp_path)
    assert "R.call_tir" in (tmp_path / "relax.py.txt").read_text()
    assert "sinf" in (tmp_path / "scheduled.py.txt").read_text()
    assert "aten.sin" in (tmp_path / "cluster.py.txt").read_text()
    assert (tmp_path / "tuning.txt").read_text() == "0 of 1 kernels are tuned\n"


# --- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [program, compiler], ids=["lowering", "TVM"])
def test_what_a_compiler_raises_is_wrapped(backend: Tvm, monkeypatch: pytest.MonkeyPatch, place: Any) -> None:
    """A CompileError names the cluster and the reason."""
    cluster, _ = whole_cluster(Of(lambda x: x * 2), (torch.randn(3),))
    name = "program_of" if place is program else "built"
    monkeypatch.setattr(place, name, lambda *given, **named: 1 / 0)
    with pytest.raises(CompileError, match="TVM cannot compile it: ZeroDivisionError") as caught:
        backend.compile(cluster, SETTINGS)
    assert (caught.value.backend, caught.value.cluster) == ("tvm", "c0")


def test_what_tvm_raises_in_a_call_is_wrapped(backend: Tvm) -> None:
    """A RunError carries TVM's text."""
    _, executable = compiled(backend, nn.Linear(3, 3), torch.randn(3))
    executable._fixed = {name: runtime.array(torch.randn(7)) for name in executable.weights}
    with pytest.raises(RunError) as caught:
        executable(torch.randn(3))
    assert (caught.value.backend, caught.value.cluster) == ("tvm", "c0")
