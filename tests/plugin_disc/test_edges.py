"""Calls at the edges of what was compiled."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hub.errors import InputRefused
from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_padding_has_the_dtype_of_what_it_pads(dtype: torch.dtype) -> None:
    """What stands around a tensor of half precision is computed like everything else."""
    inputs = (torch.arange(21).reshape(1, 3, 7).to(dtype),)
    cluster, values = whole_cluster(Wrapped(lambda x: F.pad(x, (2, 2))), inputs)
    (result,) = create().compile(cluster, ONE)(*values)
    assert torch.equal(result, F.pad(inputs[0], (2, 2)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float64_becomes_half_precision_as_in_eager(dtype: torch.dtype) -> None:
    """Through float32: rounded twice."""
    inputs = (torch.randn(300, dtype=torch.float64) * 10 ** torch.linspace(-7, 5, 300, dtype=torch.float64),)
    cluster, values = whole_cluster(Wrapped(lambda x: x.to(dtype)), inputs)
    (result,) = create().compile(cluster, ONE)(*values)
    assert torch.equal(result, inputs[0].to(dtype))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_one_half_precision_becomes_the_other_as_in_eager(name: str) -> None:
    """Neither holds all that the other does: with infinities where it is too large."""
    dtypes = {"float16": torch.bfloat16, "bfloat16": torch.float16}
    inputs = ((torch.randn(300) * 10 ** torch.linspace(-7, 5, 300)).to(getattr(torch, name)),)
    cluster, values = whole_cluster(Wrapped(lambda x: x.to(dtypes[name])), inputs)
    (result,) = create().compile(cluster, ONE)(*values)
    assert torch.equal(result, inputs[0].to(dtypes[name]))


def test_every_kind_of_float32_becomes_bfloat16_as_in_eager() -> None:
    """Ties, denormal numbers, the largest ones, infinities and NaN; and back, with no instruction for either."""
    bits = torch.randint(-(2**31), 2**31, (4000,), dtype=torch.int64).to(torch.int32)
    ties = torch.arange(-(2**15), 2**15, 37, dtype=torch.int32) * 65536 + 32768
    inputs = (torch.cat((bits, ties, ties - 1, ties + 1, bits & 0x007FFFFF)).view(torch.float32),)
    cluster, values = whole_cluster(Wrapped(lambda x: (x.bfloat16(), x.bfloat16().float() * 1)), inputs)
    narrow, wide = create().compile(cluster, ONE)(*values)
    wanted = inputs[0].bfloat16()
    is_nan = wanted.isnan()
    assert torch.equal(narrow.isnan(), is_nan)
    assert torch.equal(narrow.view(torch.int16)[~is_nan], wanted.view(torch.int16)[~is_nan])
    assert torch.equal(wide[~is_nan], wanted.float()[~is_nan])


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
def test_integers_are_whole(name: str) -> None:
    """Rounding gives them as they are."""
    cluster, inputs = whole_cluster(Wrapped(getattr(torch, name)), (torch.tensor([-(2**62) - 1, 0, 7]),))
    (result,) = create().compile(cluster, ONE)(*inputs)
    assert torch.equal(result, inputs[0])


def test_an_input_of_another_dtype_is_refused() -> None:
    """Some of eager's kernels return other dtypes than fake tensors declare: such calls are no plugin's fault."""
    cluster, values = whole_cluster(Wrapped(torch.relu), (torch.ones(5),))
    executable = create().compile(cluster, ONE)
    with pytest.raises(InputRefused, match="bfloat16"):
        executable(values[0].bfloat16())


@pytest.mark.parametrize("limits", [(-0.0, None), (0.0, None), (None, -0.0), (-0.0, 1.0)], ids=str)
def test_a_limit_of_zero_keeps_its_sign(limits: tuple[float | None, float | None]) -> None:
    """What follows may divide by it."""
    source = torch.tensor([1.0, -3.0, 0.0, -0.0])
    cluster, values = whole_cluster(Wrapped(lambda x: 1 / x.clamp(*limits)), (source,))
    (found,) = create().compile(cluster, CompileSettings(threads=1))(*values)
    assert torch.equal(found, 1 / source.clamp(*limits))
