"""Scans, which are running totals: one row after the other, each from its beginning."""

from __future__ import annotations

from hub.toolkit.affine import linear, variable
from hub.toolkit.functions import neutral
from hub.toolkit.sizes import product, strides_of
from hub.toolkit.tensors import Reshape, Scan

from .elements import SlotOf
from .frame import Frame
from .functions import emitted
from .kernel import Kernel
from .memory import Loops, read, write
from .writer import SCALAR, Value, Writer


def scan_of(tensor: Scan, name: str, frame: Frame, lanes: int, slot_of: SlotOf) -> Kernel:
    """Return a scan as a function over a range of rows. Float32 is added in float64, as in PyTorch."""
    writer = Writer(frame, lanes)
    writer.open(f"llvm.func @{name}(%frame: !llvm.ptr, %begin: i64, %end: i64)")
    others = [dim for dim in range(len(tensor.shape)) if dim != tensor.dim]
    kind = "f64" if tensor.dtype == "f32" else tensor.dtype
    place = linear(tuple(variable(dim) for dim in range(len(tensor.shape))), strides_of(tensor.shape))
    source = tensor.source
    while isinstance(source, Reshape):
        source = source.source
    base, into = (writer.slot(slot_of(each), "!llvm.ptr") for each in (source, tensor))

    def row(task: Value, _: list[str]) -> list[str]:
        values: dict[int, Value] = {}
        for number, dim in reversed(list(enumerate(others))):
            if number == 0:
                values[dim] = task
            else:
                values[dim] = writer.scalar("arith.remsi", task, writer.number(tensor.shape[dim]))
                task = writer.scalar("arith.divsi", task, writer.number(tensor.shape[dim]))

        def step(index: Value, names: list[str]) -> list[str]:
            loops = Loops({**values, tensor.dim: index}, None)
            element = emitted(writer, "cast", kind, (read(writer, base, place, tensor.dtype, loops),))
            total = Value(names[0], kind, False, writer.level)
            total = emitted(writer, "add" if tensor.function == "sum" else "mul", kind, (total, element))
            write(writer, into, place, emitted(writer, "cast", tensor.dtype, (total,)), loops)
            return [total.name]

        first = writer.constant(neutral(tensor.function, kind), kind)
        size = writer.number(tensor.shape[tensor.dim])
        writer.loop(writer.number(0), size, writer.number(1), [(first.name, SCALAR[kind])], step)
        return []

    begin, end = (Value(each, "i64", False, 0) for each in ("%begin", "%end"))
    writer.loop(begin, end, writer.number(1), [], row)
    tasks = product(tensor.shape[dim] for dim in others)
    return Kernel(name, writer.finish(), tasks, product(tensor.shape), tuple(frame.slots))
