"""What every backend does, whatever its library: whole plans, sizes, memory, threads, damaged files, wrong inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.discovery.registry import registry
from hub.errors import CompileError, InputRefused, RunError
from hub.plugin.backend import Executable
from hub.testing.single import SETTINGS, compile_and_run, whole_cluster
from hub.verification.verify import verify
from tests.functions import Attention, Of, sized

every_backend = pytest.mark.parametrize("backend", registry().available())

SMALL_SIZES = ((1, 7), (7, 1), (1, 1), (0, 5), (3, 0))
REFUSE_EMPTY = ("tvm", "xla")
N_PROGRAMS = {"iree": 0, "xla": 8}
"""How many programs for one combination of sizes are made: IREE's general program needs none, XLA has no general one."""


def compiled(backend: str, function: Callable[..., Any], *inputs: torch.Tensor) -> Executable:
    """Return the executable of a function or module."""
    module = function if isinstance(function, nn.Module) else Of(function)
    cluster, values = whole_cluster(module, inputs)
    return compile_and_run(registry().backend(backend), cluster, values)[0]


@every_backend
def test_results_outlive_later_calls(backend: str) -> None:
    """A later call writes to other memory."""
    executable = compiled(backend, lambda x: x * 2, torch.randn(3))
    results = [executable(torch.full((3,), float(index)))[0] for index in range(40)]
    assert len({result.data_ptr() for result in results}) == 40
    assert [float(result[0]) for result in results] == [2.0 * index for index in range(40)]


@every_backend
def test_results_share_no_memory_with_inputs_or_each_other(backend: str) -> None:
    """Views, copies and one value returned twice come back as tensors of their own."""
    x = torch.randn(2, 3)
    cluster, values = whole_cluster(
        Of(lambda x: (x.clone(), (y := x.relu()), y.reshape(3, 2).clone(), x.t().clone())), (x,)
    )
    _, results = compile_and_run(registry().backend(backend), cluster, values)
    assert len({result.data_ptr() for result in (*results, *values)}) == len(results) + 1
    for got, wanted in zip(results, cluster.module(*values), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(6, 4).t(),
        lambda: torch.randn(4, 12)[:, ::2],
        lambda: torch.randn(1, 6).expand(4, 6),
        lambda: torch.randn(25)[1:].view(4, 6),
        lambda: torch.randn(4, 6, requires_grad=True),
    ],
    ids=["transposed", "strided", "expanded", "offset", "requires_grad"],
)
@every_backend
def test_inputs_of_any_layout(backend: str, make: Callable[[], torch.Tensor]) -> None:
    """Inputs may be views of any stride and offset, and are left as they were."""
    executable = compiled(backend, lambda x: x * 3 + 1, torch.randn(4, 6))
    x = make()
    before = x.detach().clone()
    torch.testing.assert_close(executable(x)[0], before * 3 + 1)
    assert torch.equal(x, before)


@every_backend
def test_threads_at_once_get_their_own_results(backend: str) -> None:
    """Four threads call one executable at once."""
    layer = nn.Linear(32, 32)
    executable = compiled(backend, layer, torch.randn(4, 32))
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(50):
            x = torch.randn(4, 32, generator=generator)
            with torch.no_grad():
                if not torch.allclose(executable(x)[0], layer(x), atol=1e-5):
                    wrong.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@every_backend
def test_torch_compile_runs_on_it_alone(backend: str) -> None:
    """A plan of its clusters gives eager's result."""
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()
    options = {"tune": "off", "backends": [backend], "strict": True}
    compiled_module = torch.compile(module, backend="hub", options=options)
    x = torch.randn(3, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled_module(x), module(x))
    (plan,) = hub.plans(compiled_module)
    assert {cluster.backend for cluster in plan.clusters} == {backend}


@every_backend
def test_one_executable_serves_every_size(backend: str) -> None:
    """Attention is right at every batch and length. Below 2 Inductor need not be: the captured graph has a guard on it."""
    cluster, values = whole_cluster(Attention(), (torch.randn(3, 5, 16),), dynamic=True)
    executable, _ = compile_and_run(registry().backend(backend), cluster, values)
    with torch.no_grad():
        for sizes in ((2, 3), (3, 2), (4, 9), (3, 64), (2, 3), *(() if backend == "inductor" else SMALL_SIZES)):
            inputs = sized(cluster, torch.randn(*sizes, 16))
            if 0 not in sizes:
                verify(cluster, backend, executable, inputs, None)
            elif backend in REFUSE_EMPTY:
                with pytest.raises(InputRefused):
                    executable(*inputs)
            else:
                assert executable(*inputs)[0].shape == (*sizes, 16)
    if backend in N_PROGRAMS:
        assert len(executable._programs) == N_PROGRAMS[backend]


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "meta"])
@pytest.mark.parametrize(
    ("backend", "code", "meta"),
    [("iree", "program0.vmfb", "iree.json"), ("tvm", "cluster.so", "tvm.json"), ("xla", "program0.xla", "xla.json")],
    ids=["iree", "tvm", "xla"],
)
def test_damaged_files_are_refused(backend: str, code: str, meta: str, damage: str, tmp_path: Path) -> None:
    """Nothing is handed to a library that it did not write itself."""
    chosen = registry().backend(backend)
    cluster, values = whole_cluster(Of(lambda x: x * 2), (torch.randn(4, 3),))
    compile_and_run(chosen, cluster, values)[0].save(tmp_path)
    path = tmp_path / code
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[:-10])
    elif damage == "changed":
        path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    elif damage == "missing":
        path.unlink()
    else:
        (tmp_path / meta).write_text("{}")
    with pytest.raises(CompileError, match="cannot load"):
        chosen.load(tmp_path, cluster, SETTINGS)


@every_backend
@pytest.mark.parametrize("wrong", [torch.randn(3, 4), torch.randn(4, 3, 1)], ids=["shape", "rank"])
def test_inputs_that_do_not_fit_are_refused(backend: str, wrong: torch.Tensor) -> None:
    """The error names backend and cluster; the executable still works afterwards."""
    executable = compiled(backend, lambda x: x * 2, torch.randn(4, 3))
    says = None if backend in ("inductor", "onnxruntime") else "compiled"
    with pytest.raises(RunError, match=says) as caught:
        executable(wrong)
    assert (caught.value.backend, caught.value.cluster) == (backend, "c0")
    assert torch.equal(executable(torch.ones(4, 3))[0], torch.full((4, 3), 2.0))


@pytest.mark.parametrize("backend", [name for name in registry().available() if name != "inductor"])
def test_another_dtype_is_refused(backend: str) -> None:
    """Eager's kernels may give one that capture did not announce. As in PyTorch's own use of it, Inductor does not look."""
    executable = compiled(backend, lambda x: x * 2, torch.randn(4, 3))
    with pytest.raises(RunError, match=r"float64.* compiled") as caught:
        executable(torch.randn(4, 3).double())
    assert isinstance(caught.value, InputRefused) == (backend in ("disc", "iree", "tvm", "xla"))  # for that call alone
    assert torch.equal(executable(torch.ones(4, 3))[0], torch.full((4, 3), 2.0))
