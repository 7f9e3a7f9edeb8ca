"""Inputs with gaps, or that repeat elements, are read where they lie; nothing is copied."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hub.errors import InputRefused
from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from plugin_disc.guarded import VARIABLE
from plugin_disc.runtime import DiscExecutable
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)
BASE = torch.linspace(-2, 2, 12 * 20 * 9).reshape(12, 20, 9)
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows with gaps": lambda base: base[0][:, 1:8],
    "every other row": lambda base: base[1][::2],
    "every third element": lambda base: base[:, :, 4][:, ::3],
    "transposed, with gaps": lambda base: base[2][1:, :5].t(),
    "expanded rows": lambda base: base[0, 0].expand(7, base.shape[2]),
    "expanded columns": lambda base: base[0, :, :1].expand(20, 6),
    "windows": lambda base: base.flatten().as_strided((5, 8), (3, 1)),
    "three dims": lambda base: base[1::4, ::5, 2:7],
    "one element": lambda base: base[3:4, 5, ::9],
}
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pointwise": lambda x: torch.tanh(x) * 2.0,
    "softmax": lambda x: torch.softmax(x, -1),
    "columns": lambda x: x.sum(0),
    "transposed": lambda x: x.transpose(-1, -2).contiguous() + 1.0,
    "joined": lambda x: torch.cat([x, x * 2.0], -1),
    "reshaped": lambda x: x.reshape(-1).exp(),
    "product": lambda x: torch.matmul(x, x.transpose(-1, -2)),
}


def compiled(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> tuple[DiscExecutable, Any]:
    """Return the executable of a function of such inputs, and its program in eager."""
    cluster, captured = whole_cluster(Wrapped(function), inputs, dynamic=dynamic)
    assert [value.stride() for value in captured] == [value.stride() for value in inputs]
    executable = create().compile(cluster, ONE)
    assert isinstance(executable, DiscExecutable)
    return executable, cluster.module


class _Anywhere(list[int]):
    """A list that contains every address: guarded memory copies inputs."""

    def __contains__(self, _: object) -> bool:
        return True


def addresses(executable: DiscExecutable, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each call adds the addresses that the machine code receives."""
    found: list[int] = _Anywhere() if os.environ.get(VARIABLE) else []
    names: dict[str, Any] = executable._run.__globals__  # pyright: ignore[reportAttributeAccessIssue]
    pack = names["pack_into"]
    monkeypatch.setitem(names, "pack_into", lambda frame, at, *slots: found.extend(slots) or pack(frame, at, *slots))
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gaps_are_stepped_over(program: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are eager's, and the code gets the tensor's own address, wherever that lies in its memory."""
    value = LAYOUTS[layout](BASE)
    executable, module = compiled(PROGRAMS[program], value)
    found = addresses(executable, monkeypatch)
    (result,) = executable(value)
    torch.testing.assert_close(result, module(value)[0])
    assert value.data_ptr() in found
    other = LAYOUTS[layout](BASE.flip(0).contiguous())
    torch.testing.assert_close(executable(other)[0], module(other)[0])


@pytest.mark.parametrize("layout", ["rows with gaps", "every other row", "transposed, with gaps", "expanded rows"])
def test_symbolic_sizes_are_read_from_strides(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One executable serves slices of other tensors, of other sizes, in place too."""
    value = LAYOUTS[layout](BASE)
    executable, module = compiled(PROGRAMS["softmax"], value, dynamic=True)
    found = addresses(executable, monkeypatch)
    for base in (BASE, torch.linspace(-1, 3, 4 * 31 * 15).reshape(4, 31, 15)):
        other = LAYOUTS[layout](base)
        torch.testing.assert_close(executable(other)[0], module(other)[0])
        assert other.shape != value.shape or other.data_ptr() in found


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool])
def test_gaps_in_every_dtype(dtype: torch.dtype) -> None:
    """Elements of any size are stepped over."""
    value = (BASE[0] * 30).to(dtype)[::2, 1:8]
    executable, module = compiled(lambda x: torch.where(x > 0, x, x + x), value)
    assert torch.equal(executable(value)[0], module(value)[0])


def test_other_strides_at_a_call_are_copied() -> None:
    """Packed elements in place of those with gaps, and the other way round."""
    gapped, packed = BASE[0][:, 1:8], BASE[0][:, 1:8].contiguous()
    for given, other in ((gapped, packed), (packed, gapped)):
        executable, module = compiled(PROGRAMS["softmax"], given)
        torch.testing.assert_close(executable(other)[0], module(given)[0])


def test_what_was_repeated_may_come_in_memory_of_its_own() -> None:
    """Another backend gives what was expanded row by row; NaN stands for itself."""
    row = torch.where(BASE[0, 0] < -1.9, float("nan"), BASE[0, 0]).expand(7, 9)
    executable, module = compiled(PROGRAMS["softmax"], row)
    torch.testing.assert_close(executable(row.contiguous())[0], module(row)[0], equal_nan=True)
    assert executable(row)[0].shape == (7, 9)


@pytest.mark.parametrize("layout", ["expanded rows", "windows"])
def test_what_was_repeated_and_is_not_any_more_is_refused(layout: str) -> None:
    """Code for one row that is read many times cannot read many rows: that call is eager's."""
    value = LAYOUTS[layout](BASE)
    executable, _ = compiled(PROGRAMS["pointwise"], value)
    with pytest.raises(InputRefused, match="strides"):
        executable(torch.arange(value.numel(), dtype=torch.float32).reshape(value.shape))


def test_saved_code_reads_gaps_too(tmp_path) -> None:
    """What an input looks like is known from the cluster."""
    from plugin_disc.runtime import restore

    value = LAYOUTS["every other row"](BASE)
    cluster, _ = whole_cluster(Wrapped(PROGRAMS["pointwise"]), (value,))
    create().compile(cluster, ONE).save(tmp_path)
    torch.testing.assert_close(restore(tmp_path, cluster)(value)[0], cluster.module(value)[0])
