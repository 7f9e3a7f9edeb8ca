"""Writes what is put into a tensor at places that other tensors give: one program for a block of values."""

from __future__ import annotations

from hub.lowering.sizes import Size, product, strides_of
from hub.lowering.tensors import Put, Tensor

from .blocks import blocks_of
from .choices import tiling_of
from .kernel import Kernel, Scope, Writer, finished, split

_ATOMIC = {"sum": "tl.atomic_add", "max": "tl.atomic_max", "min": "tl.atomic_min"}


def put_kernel(tensor: Put, name: str, writer: Writer, *, is_interpreted: bool) -> Kernel:
    """Gives it as a kernel over the values; the launcher copies the source before.

    Several values may have one place, so they are combined there by the memory itself, in any order.
    """
    count = product(tensor.values.shape)
    writer.reaches((count,))
    scope = Scope({}, {})
    writer.line(scope, f"x = {writer.program} * XBLOCK + {writer.places('XBLOCK')}")
    writer.line(scope, f"xmask = x < {writer.size(count)}")
    split(scope, "x", range(len(tensor.values.shape)), tensor.values.shape, writer)
    texts: list[str] = []
    for part, size, stride in zip(tensor.index, tensor.shape, strides_of(tensor.shape), strict=True):
        step = _checked(part, size, scope, writer) if isinstance(part, Tensor) else writer.affine(part, scope)
        if step != "0":
            texts.append(f"({step}) * {writer.size(stride)}")
    value = f"tl.load({writer.memory(tensor.values)} + x, xmask, 0)"
    place = " + ".join([writer.memory(tensor), *texts, "x * 0"])
    written = "tl.store" if tensor.function == "set" else _ATOMIC[tensor.function]
    writer.line(scope, f"{written}({place}, {value}, xmask)")
    blocks = writer.chosen or blocks_of("pointwise", count, 1, is_down=False, is_interpreted=is_interpreted)
    grid = (f"triton.cdiv({writer.size(count)}, {blocks.sizes['XBLOCK']})",)
    copied = (writer.name_of(tensor), writer.name_of(tensor.source))
    return finished(name, (tensor,), writer, grid, blocks, tiling_of("pointwise", count, 1), copied=copied)


def _checked(part: Tensor, size: Size, scope: Scope, writer: Writer) -> str:
    """Gives an index that is in range, and reports one that was not."""
    place = writer.fresh(scope, f"tl.load({writer.memory(part)} + x, xmask, 0)")
    inside = writer.fresh(scope, f"tl.minimum(tl.maximum({place}, 0), {writer.size(size)} - 1)")
    wrong = writer.fresh(scope, f"tl.where(xmask, {place}, {inside}) != {inside}")
    writer.line(scope, f"tl.store(flag + {wrong}.to(tl.int32) * 0, 1, {wrong})")
    writer.may_leave = True
    return inside
