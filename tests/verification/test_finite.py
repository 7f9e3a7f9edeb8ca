"""The guard of executables that are right on finite inputs only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hub.errors import InputRefused
from hub.plugin.graph import TensorSpec
from hub.testing.operators import case_cluster
from hub.testing.operators.sample import Made, call, f, i64
from hub.verification.finite import finite_only, is_finite

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_one_element_is_enough(dtype: torch.dtype, bad: float) -> None:
    """An infinity or NaN is found anywhere, in any layout; infinities that cancel are found too."""
    for value in (torch.ones(7, 9, dtype=dtype), torch.ones(9, 7, dtype=dtype).t(), torch.ones(7, 18, dtype=dtype)[:, ::2]):
        assert is_finite(value)
        value[3, 4] = bad
        assert not is_finite(value)
        value[5, 1] = -bad
        assert not is_finite(value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_that_overflow_are_finite_inputs(dtype: torch.dtype) -> None:
    """The largest numbers are finite, however many; so are no numbers at all."""
    assert is_finite(torch.full((64,), torch.finfo(dtype).max, dtype=dtype))
    assert is_finite(torch.full((64,), torch.finfo(dtype).min, dtype=dtype))
    assert is_finite(torch.empty(0, 3, dtype=dtype))
    assert is_finite(torch.tensor(1.0, dtype=dtype))


def test_views_with_a_pending_sign_are_read() -> None:
    """A negated view, as complex numbers give, is resolved first."""
    value = torch._neg_view(torch.ones(4))
    assert is_finite(value)


def test_complex_inputs_are_guarded() -> None:
    """An infinity or NaN in either part is found."""
    value = torch.ones(3, 4, dtype=torch.complex64)
    cluster, _ = case_cluster("aten.neg.default", call(Made((3, 4), torch.complex64, "normal")))
    guarded = finite_only(lambda x: [x.neg()], cluster.inputs)
    guarded(value)
    value[1, 2] = complex(0.0, float("nan"))
    with pytest.raises(InputRefused, match="input 0 holds an infinity or NaN"):
        guarded(value)


def test_guarded_calls_are_refused_before_the_executable_runs() -> None:
    """InputRefused names the input; and finite calls go through."""
    cluster, (x, y) = case_cluster("aten.add.Tensor", call(f(3, 4), i64(4)))
    calls: list[torch.Tensor] = []

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        calls.append(inputs[0])
        return list(cluster.module(*inputs))

    guarded = finite_only(run, cluster.inputs)
    assert torch.equal(guarded(x, y)[0], x + y)
    with pytest.raises(InputRefused, match="input 0"):
        guarded(x.index_fill(0, torch.tensor([1]), float("nan")), y)
    assert len(calls) == 1


def test_extreme_integers_are_refused_too() -> None:
    """Some compilers compute integers in float32; lengths and counts stay well within that."""
    cluster, inputs = case_cluster("aten.add.Tensor", call(f(3, 4), i64(4)))
    x, y = inputs
    guarded = finite_only(cluster.module, cluster.inputs)
    assert torch.equal(guarded(x, y * 0 + 2**20)[0], x + 2**20)
    for far in (2**20 + 1, -(2**63)):
        with pytest.raises(InputRefused, match="input 1 holds integers"):
            guarded(x, y * 0 + far)


class Reads(TorchDispatchMode):
    """A counter of how often a value is read back into Python, which waits for an accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def on(device: str, *values: torch.Tensor) -> list[TensorSpec]:
    """Return the specs of such tensors on another device; operations on the specs run on these tensors."""
    return [replace(TensorSpec.of(value), device=torch.device(device)) for value in values]


@pytest.fixture
def no_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record no CUDA graph: a build for GPUs calls the driver, which is missing here."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.mark.usefixtures("no_recording")
def test_an_accelerator_is_waited_for_once() -> None:
    """However many inputs lie on it; the one at fault is still named, and numbers on the CPU are read as ever."""
    x, y, z, near = torch.ones(3), torch.ones(4, dtype=torch.float16), torch.ones(2, dtype=torch.int64), torch.ones(())
    specs = [*on("cuda:0", x, y, z), TensorSpec.of(near)]
    guarded = finite_only(lambda *inputs: list(inputs), specs)
    with Reads() as reads:
        assert len(guarded(x, y, z, near)) == 4
    assert reads.number == 1
    with pytest.raises(InputRefused, match="input 1 holds an infinity or NaN"):
        guarded(x, y / 0, z, near)
    with pytest.raises(InputRefused, match="input 2 holds integers beyond"):
        guarded(x, y, z * 2**21, near)
    with pytest.raises(InputRefused, match="input 3 holds an infinity"):
        guarded(x, y, z, near / 0)


@pytest.mark.usefixtures("no_recording")
def test_two_accelerators_are_waited_for_once_each() -> None:
    """Their answers cannot be put into one tensor."""
    x = torch.ones(3)
    guarded = finite_only(lambda *inputs: list(inputs), [*on("cuda:0", x, x), *on("cuda:1", x, x)])
    with Reads() as reads:
        guarded(x, x, x, x)
    assert reads.number == 2


def test_nothing_is_read_while_a_cuda_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading would end the recording with an error: eager runs, which is right for all numbers."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    x = torch.ones(3)
    with Reads() as reads, pytest.raises(InputRefused, match="a CUDA graph is being recorded"):
        finite_only(lambda *inputs: list(inputs), on("cuda:0", x))(x)
    assert reads.number == 0
    assert len(finite_only(lambda *inputs: list(inputs), on("cpu", x))(x)) == 1


def test_gradients_do_not_disturb() -> None:
    """An input that requires gradients is read all the same."""
    assert is_finite(torch.ones(3, requires_grad=True))


def test_the_executable_behind_it_can_be_dumped(tmp_path: Path) -> None:
    """Debug output is the executable's own, where it has any."""
    cluster, _ = case_cluster("aten.relu.default", call(f(3, 4)))

    class Run:
        def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x.relu()]

        def dump(self, folder: Path) -> None:
            (folder / "program.txt").write_text("relu")

    finite_only(Run(), cluster.inputs).dump(tmp_path)
    assert (tmp_path / "program.txt").read_text() == "relu"
    finite_only(cluster.module, cluster.inputs).dump(tmp_path)
