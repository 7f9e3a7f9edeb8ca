"""Generated inputs have the real ones' form, hold what their kind says, and are equal in every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch.fx.experimental import _config as dynamic_shapes

from hub.plugin.graph import Cluster
from hub.testing.operators import case_cluster
from hub.testing.operators.sample import Made, at, b, bf16, call, f, f16, f64, i32, i64, pos, u8
from hub.testing.single import whole_cluster
from hub.verification.inputs import DRAWN_SIZES, KINDS, copied, generated, slightly_larger, span
from tests.functions import Of

BY_NAME = {kind.name: kind for kind in KINDS}


class Square(torch.nn.Module):
    """A module that accepts any numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def made(kind: str, cluster: Cluster, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the first attempt of a kind."""
    return next(generated(BY_NAME[kind], cluster, inputs), None)


def of_one(kind: str, sample: Any) -> torch.Tensor:
    """Return what a kind makes of one tensor."""
    cluster, inputs = case_cluster("aten.relu.default", call(sample))
    found = made(kind, cluster, inputs)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("layout", ["contiguous", "T", "strided", "expanded"])
@pytest.mark.parametrize("kind", [kind for kind in BY_NAME if "size" not in kind and "integers" not in kind])
def test_generated_inputs_lie_in_memory_as_the_real_ones(kind: str, layout: str) -> None:
    """Shape, strides, dtype and device are those of the real input, and the memory is another one."""
    sample = f(4, 6) if layout == "contiguous" else getattr(f(4, 6), layout)
    cluster, inputs = case_cluster("aten.argmax.default", call(sample))
    found = made(kind, cluster, inputs)
    if kind in ("all true", "all false"):
        assert found is None
        return
    assert found is not None
    (value,), (real,) = found, inputs
    assert (value.shape, value.stride(), value.dtype) == (real.shape, real.stride(), real.dtype)
    assert value.untyped_storage().data_ptr() != real.untyped_storage().data_ptr()


@pytest.mark.parametrize("kind", BY_NAME)
def test_generated_inputs_are_seeded(kind: str) -> None:
    """The same cluster and inputs give the same values every time."""
    cluster, inputs = case_cluster("aten.where.self", call(b(5, 3), f(5, 3), f(5, 3)))
    first, second = made(kind, cluster, inputs), made(kind, cluster, inputs)
    assert (first is None) == (second is None)
    for left, right in zip(first or (), second or (), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("make", [f, f16, f64, bf16], ids=["f32", "f16", "f64", "bf16"])
def test_kinds_hold_what_they_say(make: Any) -> None:
    """Large values are large, denormal ones below the smallest normal, infinities and NaN at some places only."""
    sample = make(16, 16)
    tiny = torch.finfo(sample.dtype).tiny
    assert of_one("large", sample).abs().median() > 30
    assert of_one("huge", sample).double().abs().max() > torch.finfo(sample.dtype).max ** 0.5 / 32
    denormal = of_one("denormal", sample)
    assert denormal.double().abs().max() <= tiny
    assert denormal.any()
    assert of_one("tiny", sample).abs().max() < 0.5
    assert of_one("tiny", sample).double().abs().median() > tiny
    assert of_one("all equal", sample).unique().numel() == 1
    assert not of_one("zeros", sample).any()
    zeros = of_one("negative zeros", sample)
    assert not zeros.any()
    assert torch.signbit(zeros).all()
    assert 0 < of_one("NaN", sample).isnan().sum() <= 3
    infinite = of_one("infinities", sample)
    assert 0 < infinite.isinf().sum() <= 3
    assert (infinite == float("inf")).any()
    assert (infinite == -float("inf")).any()


def test_values_keep_the_sign_that_all_real_ones_have() -> None:
    """Where every real value is positive, variances say, so is every generated one."""
    for kind in ("normal", "large", "tiny", "huge", "denormal", "all equal"):
        assert (of_one(kind, pos(8, 8)) >= 0).all(), kind
    assert (of_one("normal", f(8, 8)) < 0).any()


def test_integers_of_the_first_kind_stay_within_the_range_of_the_real_ones() -> None:
    """Indices stay indices, and 0 is one; the second attempt leaves 0 out, the third keeps them as they are."""
    cluster, inputs = case_cluster("aten.embedding.default", call(f(50, 4), at(8, 8, below=50)))
    inputs = (inputs[0], inputs[1].clamp(min=5))
    first, second, third = generated(BY_NAME["normal"], cluster, inputs)
    assert not torch.equal(first[1], inputs[1])
    assert first[1].min() == 0
    assert first[1].max() <= inputs[1].max()
    assert not torch.equal(second[1], inputs[1])
    assert inputs[1].min() <= second[1].min()
    assert second[1].max() <= inputs[1].max()
    assert torch.equal(third[1], inputs[1])
    assert not torch.equal(third[0], inputs[0])


def test_kinds_of_floats_leave_integers_as_they_are() -> None:
    """Only the first kind, extremes and sizes vary integers."""
    cluster, inputs = case_cluster("aten.embedding.default", call(f(50, 4), at(8, below=50)))
    found = made("large", cluster, inputs)
    assert found is not None
    assert torch.equal(found[1], inputs[1])


@pytest.mark.parametrize(("make", "end"), [(i64, 2**20), (i32, 2**20), (u8, 255)])
def test_large_integers_are_exact_in_float32(make: Any, end: int) -> None:
    """Narrow dtypes are taken to their ends, wide ones as far as everybody computes them exactly."""
    value = of_one("large integers", make(16, 16))
    assert value.max() == end
    assert value.min() in (-end, 0)


@pytest.mark.parametrize("make", [i64, i32])
def test_extreme_integers_reach_the_ends(make: Any) -> None:
    """The largest and the least number of a wide dtype, which many compilers add up in floating point."""
    value = of_one("extreme integers", make(16, 16))
    assert value.max() == torch.iinfo(value.dtype).max
    assert value.min() == torch.iinfo(value.dtype).min
    cluster, inputs = case_cluster("aten.relu.default", call(u8(4)))
    assert made("extreme integers", cluster, inputs) is None


INDEX_OR_DIVIDE = {
    "aten.remainder.Tensor": call(i64(4, low=1, high=5), i64(4, low=1, high=5)),
    "aten.div.Tensor_mode": call(i64(4, low=1, high=5), i64(4, low=1, high=5), rounding_mode="trunc"),
    "aten.embedding.default": call(f(50, 4), at(8, below=50)),
    "aten.embedding_dense_backward.default": call(f(3, 4), at(3, below=7), 7, -1, False),
}


@pytest.mark.parametrize("name", INDEX_OR_DIVIDE)
def test_extreme_integers_reach_neither_indices_nor_divisions(name: str) -> None:
    """Not every kernel of eager checks its indices, and the least number divided by -1 stops the process."""
    cluster, inputs = case_cluster(name, INDEX_OR_DIVIDE[name])
    assert made("extreme integers", cluster, inputs) is None
    assert made("large integers", cluster, inputs) is None


def test_booleans_have_kinds_of_their_own() -> None:
    """All true and all false, with everything else as it is."""
    cluster, inputs = case_cluster("aten.where.self", call(b(5, 3), f(5, 3), f(5, 3)))
    for kind, wanted in (("all true", True), ("all false", False)):
        found = made(kind, cluster, inputs)
        assert found is not None
        assert bool(found[0].all()) is wanted
        assert bool(found[0].any()) is wanted
        assert torch.equal(found[1], inputs[1])


def test_sizes_change_together() -> None:
    """Inputs that share a symbolic size get the same other size, and numbers that are sizes follow."""
    cluster, inputs = case_cluster("aten.expand.default", call(f(1, 3), [5, 3]), dynamic=True)
    found = made("another size", cluster, inputs)
    assert found is not None
    assert found[0].shape[1] == found[1] == 4
    cluster, inputs = case_cluster("aten.add.Tensor", call(f(4, 6), f(6)), dynamic=True)
    first, second = generated(BY_NAME["another size"], cluster, inputs)
    assert [tuple(value.shape) for value in first] == [(5, 7), (7,)]
    assert [tuple(value.shape) for value in second] == [(8, 12), (12,)]
    assert first[0].stride() == (7, 1)


def test_sizes_that_capture_excludes_are_not_tried() -> None:
    """Capture compiles anew for the sizes 0 and 1, so a program for other sizes is never called with them."""
    cluster, inputs = case_cluster("aten.add.Tensor", call(f(4, 6), f(6)), dynamic=True)
    assert made("size one", cluster, inputs) is None
    assert made("size zero", cluster, inputs) is None


class Masked(torch.nn.Module):
    """A model that reads rows of a mask by number, as many as the other input has: PyTorch guards no size for that."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return rows of `x` times those of `mask`."""
        return x * mask[torch.arange(x.shape[0])]


def test_drawn_sizes_that_must_be_equal_are() -> None:
    """Each combination has inputs that eager accepts, even if it accepts equal sizes only; others are tried first."""
    with dynamic_shapes.patch(use_duck_shape=False):
        cluster, inputs = whole_cluster(Masked(), (torch.randn(5, 6), torch.randn(5, 6)), dynamic=True)
    n_apart = 0
    for kind in DRAWN_SIZES:
        attempts = list(generated(kind, cluster, inputs))
        n_apart += any(len({len(value) for value in tensors(attempt)}) > 1 for attempt in attempts)
        assert any(is_accepted(cluster, attempt) for attempt in attempts), kind.name
    assert n_apart > len(DRAWN_SIZES) / 2


def tensors(attempt: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among inputs."""
    return [value for value in attempt if isinstance(value, torch.Tensor)]


def is_accepted(cluster: Cluster, attempt: Sequence[Any]) -> bool:
    """Return whether eager runs on these inputs."""
    try:
        cluster.module(*attempt)
    except (IndexError, RuntimeError):
        return False
    return True


def test_static_clusters_have_no_other_sizes() -> None:
    """Without symbolic sizes nothing can change."""
    cluster, inputs = case_cluster("aten.add.Tensor", call(f(4, 6), f(6)))
    assert made("another size", cluster, inputs) is None


def test_slightly_larger_inputs_repeat_real_values() -> None:
    """Only the long dimension grows, and an input without it is the given one."""
    cluster, inputs = case_cluster("aten.add.Tensor", call(f(4, 20), f(4, 1)), dynamic=True)
    found = list(slightly_larger(cluster, inputs))
    assert len(found) == 5
    for more, attempt in enumerate(found, 1):
        larger, same = tensors(attempt)
        assert larger.shape == (4, 20 + more)
        assert torch.equal(larger.reshape(-1)[:80], inputs[0].reshape(-1))
        assert same is inputs[1]
        assert is_accepted(cluster, attempt)


def test_short_dimensions_grow_if_there_are_no_long_ones() -> None:
    """Otherwise nothing would change."""
    cluster, inputs = case_cluster("aten.add.Tensor", call(f(4, 6), f(6)), dynamic=True)
    assert [tuple(attempt[0].shape) for attempt in slightly_larger(cluster, inputs, most=2)] == [(5, 7), (6, 8)]


def test_masked_indices_get_no_other_sizes() -> None:
    """Where a mask hides indices that are out of range, no eager operator would report those that it does not hide."""

    def function(x: torch.Tensor, mask: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._unsafe_masked_index(x, mask, [index], 0.0)

    given = torch.randn(20), torch.ones(4, 20, dtype=torch.bool), torch.arange(20)
    cluster, inputs = whole_cluster(Of(function), given, dynamic=True)
    assert list(slightly_larger(cluster, inputs)) == []


def test_copies_keep_gaps_and_overlaps() -> None:
    """A copy of a view has the view's strides, and memory of its own."""
    base = torch.arange(24.0).reshape(4, 6)
    for view in (base[:, 1::2], base.t(), base[0].expand(3, 6), base[2, 3]):
        copy = copied(view)
        assert torch.equal(copy, view)
        assert copy.stride() == view.stride()
        assert copy.untyped_storage().data_ptr() != view.untyped_storage().data_ptr()
    assert span(base[:, 1::2]) == 23
    assert span(torch.empty(0, 3)) == 0


@pytest.mark.parametrize("kind", BY_NAME)
def test_masks_and_the_indices_behind_them_stay_real(kind: str) -> None:
    """Such indices are unchecked: another mask would let one out of bounds through, and eager would read foreign memory."""
    sample = call(f(5, 3), b(4, 1), [at(4, 1, below=5), None], 0.0)
    cluster, inputs = case_cluster("aten._unsafe_masked_index.default", sample)
    attempts = list(generated(BY_NAME[kind], cluster, inputs))
    assert attempts or kind not in ("normal", "NaN", "zeros")
    for attempt in attempts:
        for value, real in zip(attempt, inputs, strict=True):
            if not real.is_floating_point():
                assert torch.equal(value, real)
            assert value.shape == real.shape


COMPLEX_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda value: value,
    "transposed": lambda value: value.T,
    "strided": lambda value: value[:, ::2],
    "expanded": lambda value: value[0].expand(4, 6),
    "conjugated": lambda value: value.conj(),
}


@pytest.mark.parametrize("view", COMPLEX_VIEWS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_inputs_vary_in_both_parts(dtype: torch.dtype, view: str) -> None:
    """Real and imaginary parts hold what their kind says, laid out in memory as the real input."""
    cluster, _ = whole_cluster(Square(), (torch.randn(4, 6, dtype=dtype),))
    real = COMPLEX_VIEWS[view](torch.randn(4, 6, dtype=dtype))

    def parts(kind: str) -> torch.Tensor:
        found = made(kind, cluster, (real,))
        assert found is not None
        (value,) = found
        assert (value.shape, value.stride(), value.dtype) == (real.shape, real.stride(), dtype)
        assert value.untyped_storage().data_ptr() != real.untyped_storage().data_ptr()
        return torch.view_as_real(value)

    normal = parts("normal")
    assert (normal != torch.view_as_real(real.resolve_conj())).all()
    assert (normal < 0).any(-1).any()
    for part in parts("large").unbind(-1):
        assert part.abs().median() > 1e3
    assert not parts("zeros").any()
    assert parts("NaN").isnan().any()
    assert parts("infinities").isinf().any()
    assert not parts("infinities").isinf().all()


def test_complex_inputs_get_other_sizes() -> None:
    """A complex input of another size is drawn anew."""
    sample = call(Made((4, 6), torch.complex64, "normal"), Made((6,), torch.complex64, "normal"))
    cluster, inputs = case_cluster("aten.add.Tensor", sample, dynamic=True)
    found = made("another size", cluster, inputs)
    assert found is not None
    assert [tuple(value.shape) for value in found] == [(5, 7), (7,)]
    assert found[0].dtype is torch.complex64
    assert found[0].imag.any()
