"""Index assignment, written as sequential loops: in order, because several values may go to the same place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hub.toolkit.affine import Affine, linear, variable
from hub.toolkit.sizes import Size, product, strides_of
from hub.toolkit.tensors import Put, Reshape, Tensor

from .combine import combined
from .elements import SlotOf
from .frame import Frame
from .functions import emitted
from .kernel import Kernel
from .memory import Loops, read, write
from .writer import Value, Writer


def put_of(tensor: Put, name: str, frame: Frame, lanes: int, slot_of: SlotOf) -> Kernel:
    """Return an index assignment as a function over a range of one task: a copy, and then one value after the other."""
    writer = Writer(frame, lanes)
    writer.open(f"llvm.func @{name}(%frame: !llvm.ptr, %begin: i64, %end: i64)")
    source, values, into = (_base(writer, each, slot_of) for each in (tensor.source, tensor.values, tensor))
    places = {part: _base(writer, part, slot_of) for part in tensor.index if isinstance(part, Tensor)}

    def copied(loops: Loops) -> None:
        write(writer, into, variable(0), read(writer, source, variable(0), tensor.dtype, loops), loops)

    def put(loops: Loops) -> None:
        packed = _packed(tensor.values.shape)
        at = writer.number(0)
        for part, size, stride in zip(tensor.index, tensor.shape, strides_of(tensor.shape), strict=True):
            if isinstance(part, Affine):
                step = _counted(writer, part, loops)
            else:
                step = _checked(writer, read(writer, places[part], packed, "i64", loops), size)
            at = writer.scalar("arith.addi", at, writer.scalar("arith.muli", step, writer.number(stride)))
        here = Loops({0: at}, None)
        value = read(writer, values, packed, tensor.dtype, loops)
        if tensor.function != "set":
            value = _combined(writer, tensor, read(writer, into, variable(0), tensor.dtype, here), value)
        write(writer, into, variable(0), value, here)

    def once(_task: Value, _: list[str]) -> list[str]:
        _nest(writer, [product(tensor.shape)], lambda values: copied(Loops({0: values[0]}, None)))
        _nest(writer, tensor.values.shape, lambda values: put(Loops(dict(enumerate(values)), None)))
        return []

    begin, end = (Value(each, "i64", False, 0) for each in ("%begin", "%end"))
    writer.loop(begin, end, writer.number(1), [], once)
    work = product((*tensor.shape, *tensor.values.shape))
    return Kernel(name, writer.finish(), 1, work, tuple(frame.slots))


def _nest(writer: Writer, sizes: Sequence[Size], body: Callable[[tuple[Value, ...]], None]) -> None:
    """Write nested loops, one for each size."""

    def run(outer: tuple[Value, ...]) -> list[str]:
        if len(outer) == len(sizes):
            body(outer)
        else:
            last = writer.number(sizes[len(outer)])
            writer.loop(writer.number(0), last, writer.number(1), [], lambda index, _: run((*outer, index)))
        return []

    run(())


def _base(writer: Writer, tensor: Tensor, slot_of: SlotOf) -> Value:
    while isinstance(tensor, Reshape):
        tensor = tensor.source
    return writer.slot(slot_of(tensor), "!llvm.ptr")


def _packed(shape: Sequence[Size]) -> Affine:
    return linear(tuple(variable(dim) for dim in range(len(shape))), strides_of(shape))


def _counted(writer: Writer, part: Affine, loops: Loops) -> Value:
    """Return the value of an index over the loops."""
    total = writer.number(part.constant)
    for dim, factor in part.terms:
        step = writer.scalar("arith.muli", loops.values[dim], writer.number(factor))
        total = writer.scalar("arith.addi", total, step)
    return total


def _checked(writer: Writer, place: Value, size: Size) -> Value:
    """Return an index clamped to the valid range, and report one that was out of range."""
    last = writer.scalar("arith.subi", writer.number(size), writer.number(1))
    inside = emitted(writer, "max", "i64", (emitted(writer, "min", "i64", (place, last)), writer.number(0)))
    wrong = emitted(writer, "ne", "i1", (place, inside))
    writer.line(f"scf.if {wrong.name} {{\nllvm.store {writer.number(1).name}, %frame : i64, !llvm.ptr\n}}")
    return inside


def _combined(writer: Writer, tensor: Put, before: Value, value: Value) -> Value:
    kind = "f32" if tensor.dtype in ("f16", "bf16") else tensor.dtype
    left, right = (emitted(writer, "cast", kind, (each,)) for each in (before, value))
    return emitted(writer, "cast", tensor.dtype, (combined(writer, tensor.function, left, right),))
