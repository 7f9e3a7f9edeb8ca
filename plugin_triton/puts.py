"""Kernels that put values into a tensor at given indices (scatter): all values at once, or one after the other."""

from __future__ import annotations

from dataclasses import replace

from hub.toolkit.affine import linear, variable
from hub.toolkit.sizes import Size, product, strides_of
from hub.toolkit.tensors import Put, Tensor

from .blocks import blocks_of
from .choices import Tiling, tiling_of
from .functions import HALVES, Value, cast, expression
from .kernel import Kernel, Scope, Writer, finished, split

_ATOMIC = {"sum": "tl.atomic_add", "max": "tl.atomic_max", "min": "tl.atomic_min"}
_COMBINED_BY_MEMORY = {
    "sum": ("f32", "f64", "i32", "i64"),
    "max": ("i32", "i64"),
    "min": ("i32", "i64"),
}
"""Function -> dtypes with atomic operations. Atomic extremes of floats lose NaN, and there are no atomic products."""
_FUNCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def put_kernel(tensor: Put, name: str, writer: Writer, *, is_interpreted: bool) -> Kernel:
    """Return the kernel of a put, over its values; `call` copies the source into the result before the launch."""
    is_at_once = tensor.function == "set" or tensor.dtype in _COMBINED_BY_MEMORY.get(tensor.function, ())
    return (_at_once if is_at_once else _in_turn)(tensor, name, writer, is_interpreted=is_interpreted)


def _at_once(tensor: Put, name: str, writer: Writer, *, is_interpreted: bool) -> Kernel:
    """Return a kernel with a program per block of values. Atomics combine values with equal indices, in any order."""
    count = product(tensor.values.shape)
    writer.reaches((count,))
    scope = Scope({}, {})
    writer.line(scope, f"x = {writer.program} * XBLOCK + {writer.places('XBLOCK')}")
    writer.line(scope, f"xmask = x < {writer.size(count)}")
    split(scope, "x", range(len(tensor.values.shape)), tensor.values.shape, writer)
    place = _place(tensor, "x", scope, writer)
    value = f"tl.load({writer.memory(tensor.values)} + x, xmask, 0)"
    written = "tl.store" if tensor.function == "set" else _ATOMIC[tensor.function]
    writer.line(scope, f"{written}({place}, {value}, xmask)")
    blocks = writer.chosen or blocks_of("pointwise", count, 1, is_down=False, is_interpreted=is_interpreted)
    grid = (f"triton.cdiv({writer.size(count)}, {blocks.sizes['XBLOCK']})",)
    copied = (writer.name_of(tensor), writer.name_of(tensor.source))
    return finished(name, (tensor,), writer, grid, blocks, tiling_of("pointwise", count, 1), copied=copied)


def _in_turn(tensor: Put, name: str, writer: Writer, *, is_interpreted: bool) -> Kernel:
    """Return a kernel with a program per block of lines that share no index; a line's values are combined in order."""
    shape = tensor.values.shape
    lines = [dim for dim in range(len(shape)) if any(part == variable(dim) for part in tensor.index)]
    steps = [dim for dim in range(len(shape)) if dim not in lines]
    count, length = product(shape[dim] for dim in lines), product(shape[dim] for dim in steps)
    writer.reaches((count, length))
    scope = Scope({}, {})
    writer.line(scope, f"x = {writer.program} * XBLOCK + {writer.places('XBLOCK')}")
    writer.line(scope, f"xmask = x < {writer.size(count)}")
    split(scope, "x", lines, shape, writer)
    writer.line(scope, f"for step in range(0, {writer.size(length)}):")
    body = scope.inner({})
    split(body, "step", steps, shape, writer)
    read = writer.affine(linear(tuple(map(variable, range(len(shape)))), strides_of(shape)), body) + " + x * 0"
    place = writer.fresh(body, _place(tensor, read, body, writer))
    kind = "f32" if tensor.dtype in HALVES else tensor.dtype
    before, value = (
        Value(cast(Value(writer.fresh(body, f"tl.load({where}, xmask, 0)"), tensor.dtype), kind), kind)
        for where in (place, f"{writer.memory(tensor.values)} + {read}")
    )
    both = Value(expression(_FUNCTIONS[tensor.function], kind, [before, value]), kind)
    writer.line(body, f"tl.store({place}, {cast(both, tensor.dtype)}, xmask)")
    writer.line(body, "tl.debug_barrier()  # the next step may read what another thread wrote here")
    blocks = writer.chosen or blocks_of("pointwise", count, 1, is_down=False, is_interpreted=is_interpreted)
    blocks = replace(blocks, stages=1)  # a step must not load before the previous one has stored
    grid = (f"triton.cdiv({writer.size(count)}, {blocks.sizes['XBLOCK']})",)
    copied = (writer.name_of(tensor), writer.name_of(tensor.source))
    return finished(name, (tensor,), writer, grid, blocks, Tiling(), copied=copied)


def _place(tensor: Put, read: str, scope: Scope, writer: Writer) -> str:
    """Return pointers to the destinations of values whose indices lie at `read`."""
    texts: list[str] = []
    for part, size, stride in zip(tensor.index, tensor.shape, strides_of(tensor.shape), strict=True):
        is_given = isinstance(part, Tensor)
        step = _checked(part, read, size, scope, writer) if is_given else writer.affine(part, scope)
        if step != "0":
            texts.append(f"({step}) * {writer.size(stride)}")
    return " + ".join([writer.memory(tensor), *texts, "x * 0"])


def _checked(part: Tensor, read: str, size: Size, scope: Scope, writer: Writer) -> str:
    """Return an index clamped into range; write code that reports one out of range."""
    place = writer.fresh(scope, f"tl.load({writer.memory(part)} + {read}, xmask, 0)")
    inside = writer.fresh(scope, f"tl.minimum(tl.maximum({place}, 0), {writer.size(size)} - 1)")
    wrong = writer.fresh(scope, f"tl.where(xmask, {place}, {inside}) != {inside}")
    writer.line(scope, f"tl.store(flag + {wrong}.to(tl.int32) * 0, 1, {wrong})")
    writer.may_leave = True
    return inside
