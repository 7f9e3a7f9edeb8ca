"""Matrix products, written as calls of the BLAS inside PyTorch, one for each matrix of a batch."""

from __future__ import annotations

from hub.toolkit.affine import Affine, linear, variable
from hub.toolkit.builders import matrix_layout
from hub.toolkit.sizes import Size, product, strides_of
from hub.toolkit.tensors import Product, Reshape, Tensor, View

from .elements import SlotOf
from .frame import Frame
from .kernel import Kernel
from .memory import Loops, affine
from .writer import Value, Writer, literal

MIXED_PRODUCT = "gemm_bf16bf16f32_"
"""MKL's product of bfloat16 with sums in float32."""
_NORMAL, _TRANSPOSED = ord("N"), ord("T")


def product_of(tensor: Product, name: str, frame: Frame, lanes: int, slot_of: SlotOf) -> Kernel:
    """Return a batch of products as a function over a range of the batch.

    BLAS is column-major: to it, our row-major matrices are transposed, so it receives the factors in reverse order.
    """
    writer = Writer(frame, lanes)
    writer.open(f"llvm.func @{name}(%frame: !llvm.ptr, %begin: i64, %end: i64)")
    rows, columns = tensor.shape[-2:]
    inner = tensor.left.shape[-1]
    is_right_turned, right_step = matrix_layout(tensor.right) or (False, 1)
    is_left_turned, left_step = matrix_layout(tensor.left) or (False, 1)
    arguments = [
        _byte(writer, _TRANSPOSED if is_right_turned else _NORMAL),
        _byte(writer, _TRANSPOSED if is_left_turned else _NORMAL),
        *(_integer(writer, size, at_least=0) for size in (columns, rows, inner)),
        _one(writer, tensor.dtype, 1.0),
        None,
        _integer(writer, right_step, at_least=1),
        None,
        _integer(writer, left_step, at_least=1),
        _one(writer, tensor.dtype, 0.0),
        None,
        _integer(writer, columns, at_least=1),
    ]
    name_of = MIXED_PRODUCT if tensor.left.dtype == "bf16" else "sgemm_" if tensor.dtype == "f32" else "dgemm_"
    function = writer.slot(frame.function(name_of), "!llvm.ptr")
    lead = tensor.shape[:-2]

    def one(place: Value, _: list[str]) -> list[str]:
        loops = Loops({}, None)
        for dim, size in reversed(list(enumerate(lead))):
            if dim == 0:
                loops.values[dim] = place
            else:
                loops.values[dim] = writer.scalar("arith.remsi", place, writer.number(size))
                place = writer.scalar("arith.divsi", place, writer.number(size))
        matrices = [_matrix(writer, each, loops, slot_of) for each in (tensor.right, tensor.left, tensor)]
        found = iter(matrices)
        names = [argument if argument is not None else next(found) for argument in arguments]
        kinds = ", ".join("!llvm.ptr" for _ in names)
        writer.line(f"llvm.call {function.name}({', '.join(names)}) : !llvm.ptr, ({kinds}) -> ()")
        return []

    begin, end = (Value(each, "i64", False, 0) for each in ("%begin", "%end"))
    writer.loop(begin, end, writer.number(1), [], one)
    batch = product(lead)
    work = product((batch, rows, columns, inner))
    return Kernel(name, writer.finish(), batch, work, tuple(frame.slots))


def _matrix(writer: Writer, tensor: Tensor, loops: Loops, slot_of: SlotOf) -> str:
    """Return the address of the first element of one matrix of a batch."""
    rank = len(tensor.shape)
    index = tuple(variable(dim) if dim < rank - 2 and tensor.shape[dim] != 1 else Affine() for dim in range(rank))
    source = tensor
    if isinstance(tensor, View):
        source = tensor.source
        index = tuple(part.at(index) for part in tensor.index)
    place = affine(writer, linear(index, strides_of(source.shape)), loops)
    while isinstance(source, Reshape):
        source = source.source
    base = writer.slot(slot_of(source), "!llvm.ptr")
    kind = tensor.dtype
    text = f"llvm.getelementptr {base.name}[{place.name}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}"
    return writer.put(text, "ptr", is_wide=False, level=max(base.level, place.level)).name


def _cell(writer: Writer, kind: str, value: str) -> str:
    name = writer.fresh()
    writer.line(f"{name} = llvm.alloca {writer.number(1).name} x {kind} : (i64) -> !llvm.ptr")
    writer.line(f"llvm.store {value}, {name} : {kind}, !llvm.ptr")
    return name


def _byte(writer: Writer, value: int) -> str:
    return _cell(writer, "i8", writer.constant(value, "i8").name)


def _integer(writer: Writer, size: Size, *, at_least: int) -> str:
    """Return a size as BLAS takes it; a leading dimension has to be at least 1."""
    bounded = writer.scalar("arith.maxsi", writer.number(size), writer.number(at_least))
    text = f"arith.trunci {bounded.name} : i64 to i32"
    return _cell(writer, "i32", writer.put(text, "i32", is_wide=False, level=0).name)


def _one(writer: Writer, dtype: str, value: float) -> str:
    text = f"arith.constant {literal(value, dtype)} : {dtype}"
    return _cell(writer, dtype, writer.put(text, dtype, is_wide=False, level=0).name)
