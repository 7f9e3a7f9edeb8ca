"""Kernels: a tensor in memory as a function in TVM's TensorIR, which computes its intermediate tensors in place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from hub.toolkit.affine import Affine
from hub.toolkit.functions import neutral
from hub.toolkit.sizes import Size, is_static, product
from hub.toolkit.tensors import (
    Fill,
    Iota,
    Join,
    Number,
    Pointwise,
    Product,
    Put,
    Reduce,
    Scan,
    Source,
    Take,
    Tensor,
    View,
)
from plugin_tvm.functions import CARRIED, MEMORY, Value, applied, cast, combined, constant, loaded, stored
from plugin_tvm.sizes import Sizes

SHORT = 64
"""Largest number of float32 terms that are summed in float32; more are summed in float64, in which the order is
irrelevant."""


@dataclass(frozen=True)
class Kernel:
    """One function in TensorIR."""

    function: Any
    reads: tuple[Tensor, ...]
    """Tensors that are its arguments, in order, before the variables of sizes."""
    sizes: tuple[Size, ...]
    """Sizes that its variables represent."""


def kernel_of(
    tensor: Tensor,
    is_memory: Callable[[Tensor], bool],
    numbers: Mapping[str, Source],
    shown: Sequence[Size],
    *,
    is_parallel: bool,
) -> Kernel:
    """Return the kernel that computes a tensor. Raise CompileError if TVM has no expression for part of it.

    `is_memory` tells which tensors are already in memory. `numbers` holds, by name, the inputs that are plain numbers.
    `shown` lists the sizes that inputs show.
    """
    from plugin_tvm.library import te

    writer = _Writer(is_memory, numbers, Sizes(shown), is_parallel=is_parallel)
    result = writer.written(tensor)
    variables = writer.sizes.variables
    function = te.create_prim_func([*writer.places.values(), *variables.values(), result], "int64")
    return Kernel(function.without_attr("global_symbol"), tuple(writer.places), tuple(variables))


class _Writer:
    """The expressions of one kernel."""

    def __init__(
        self, is_memory: Callable[[Tensor], bool], numbers: Mapping[str, Source], sizes: Sizes, *, is_parallel: bool
    ) -> None:
        self.is_memory = is_memory
        self.numbers = numbers
        self.sizes = sizes
        self.is_parallel = is_parallel
        self.places: dict[Tensor, Any] = {}

    def place(self, tensor: Tensor) -> Any:
        """Return the placeholder of a tensor in memory."""
        from plugin_tvm.library import te

        if tensor not in self.places:
            shape = self.sizes.shape(tensor.shape)
            self.places[tensor] = te.placeholder(shape, MEMORY[tensor.dtype], f"p{len(self.places)}")
        return self.places[tensor]

    def written(self, tensor: Tensor) -> Any:
        """Return the stage whose result is the tensor."""
        match tensor:
            case Reduce():
                return self._reduced(tensor)
            case Product():
                return self._product(tensor)
            case Scan():
                return self._scan(tensor)
            case Put():
                return self._put(tensor)
            case _:
                return self._stage(tensor.shape, lambda *index: stored(self._computed(tensor, index)), "computed")

    def _stage(self, shape: Sequence[Size], body: Callable[..., Any], name: str) -> Any:
        from plugin_tvm.library import te

        return te.compute(tuple(self.sizes.shape(shape)), body, name=name)

    # --- elements ---

    def element(self, tensor: Tensor, index: Sequence[Any]) -> Value:
        """Return an element of a tensor, read from memory or computed in place."""
        if self.is_memory(tensor):
            place = self.place(tensor)
            return loaded(place(*index) if tensor.shape else place(), tensor.dtype)
        return self._computed(tensor, index)

    def _computed(self, tensor: Tensor, index: Sequence[Any]) -> Value:
        match tensor:
            case Fill():
                return constant(tensor.value, tensor.dtype)
            case Number():
                if isinstance(tensor.value, str):
                    return self.element(self.numbers[tensor.value], ())
                return Value(self.sizes.of(tensor.value), "i64")
            case Iota():
                return Value(index[tensor.dim].astype("int64"), "i64")
            case View():
                return self.element(tensor.source, [self.affine(part, index) for part in tensor.index])
            case Pointwise():
                arguments = [self.element(argument, index) for argument in tensor.arguments]
                return applied(tensor.function, tensor.dtype, arguments)
            case Take():
                return self.element(tensor.source, self._taken(tensor, index))
            case Join():
                return self._joined(tensor, index)
            case _:
                raise TypeError(f"{type(tensor).__name__} is not computed in place")

    def affine(self, part: Affine, index: Sequence[Any]) -> Any:
        """Return an index expression."""
        found: Any = None
        for variable, factor in part.terms:
            term = index[variable] if factor == 1 else index[variable] * self.sizes.of(factor)
            found = term if found is None else found + term
        if found is None:
            return self.sizes.of(part.constant)
        return found if part.constant == 0 else found + self.sizes.of(part.constant)

    def _taken(self, tensor: Take, index: Sequence[Any]) -> list[Any]:
        """Return positions; those from data are clamped to the valid range, so that no foreign memory is read."""
        from plugin_tvm.library import tirx

        found: list[Any] = []
        for part, size in zip(tensor.index, tensor.source.shape, strict=True):
            if isinstance(part, Affine):
                found.append(self.affine(part, index))
                continue
            place = cast(self.element(part, index), "i64").expression
            last = self.sizes.of(size) - tirx.IntImm("int64", 1)
            found.append(tirx.max(tirx.min(place, last), tirx.IntImm("int64", 0)))
        return found

    def _joined(self, join: Join, index: Sequence[Any]) -> Value:
        """Return the piece that contains an element; each piece is read only where no earlier one contains it."""
        from plugin_tvm.library import tirx

        last: Any = None if join.fill is None else constant(join.fill, join.dtype).expression
        for piece, offsets in reversed(join.pieces):
            inside = [
                place if offset == 0 else place - self.sizes.of(offset)
                for place, offset in zip(index, offsets, strict=True)
            ]
            value = self.element(piece, inside).expression
            conditions = self._bounds(join, piece, offsets, index)
            last = value if last is None or not conditions else tirx.if_then_else(_all(conditions), value, last)
        return Value(last, join.dtype)

    def _bounds(self, join: Join, piece: Tensor, offsets: Sequence[Size], index: Sequence[Any]) -> list[Any]:
        from plugin_tvm.library import tirx

        found: list[Any] = []
        for dim, (offset, size, whole) in enumerate(zip(offsets, piece.shape, join.shape, strict=True)):
            if offset != 0:
                found.append(tirx.GE(index[dim], self.sizes.of(offset)))
            if offset + size != whole:
                found.append(tirx.LT(index[dim], self.sizes.of(offset) + self.sizes.of(size)))
        return found

    # --- stages ---

    def _reduced(self, tensor: Reduce) -> Any:
        from plugin_tvm.library import te, tirx

        source = tensor.source
        kind = _accumulated(tensor)
        zero = tirx.IntImm("int64", 0)
        axes = {dim: te.reduce_axis((zero, self.sizes.of(source.shape[dim])), f"k{dim}") for dim in tensor.dims}

        def combine(x: Any, y: Any) -> Any:
            return combined(tensor.function, Value(x, kind), Value(y, kind)).expression

        start = constant(neutral(tensor.function, kind), kind).expression

        def first(_: str) -> Any:
            return start

        reducer = te.comm_reducer(combine, first, name=tensor.function)

        def body(*index: Any) -> Any:
            place = [axes[dim].var if dim in axes else part for dim, part in enumerate(index)]
            return reducer(cast(self.element(source, place), kind).expression, axis=list(axes.values()))

        total = self._stage(tensor.shape, body, tensor.function)
        if kind == tensor.dtype and kind != "i1":
            return total
        return self._stage(tensor.shape, lambda *index: stored(cast(Value(total(*index), kind), tensor.dtype)), "narrowed")

    def _product(self, tensor: Product) -> Any:
        from plugin_tvm.library import te, tirx

        kind = "f32" if tensor.dtype in ("f16", "bf16") else tensor.dtype
        length = tensor.left.shape[-1]
        axis = te.reduce_axis((tirx.IntImm("int64", 0), self.sizes.of(length)), "k")

        def body(*index: Any) -> Any:
            *lead, row, column = index
            left = cast(self.element(tensor.left, [*lead, row, axis.var]), kind).expression
            right = cast(self.element(tensor.right, [*lead, axis.var, column]), kind).expression
            return te.sum(left * right, axis=axis)

        total = self._stage(tensor.shape, body, "product")
        if kind == tensor.dtype:
            return total
        return self._stage(tensor.shape, lambda *index: stored(cast(Value(total(*index), kind), tensor.dtype)), "narrowed")

    # --- loops of their own ---

    def _scan(self, tensor: Scan) -> Any:
        """Return running totals; float32 is summed in float64, as in PyTorch on CPUs."""
        kind = {"f32": "f64", "f16": "f32", "bf16": "f32"}.get(tensor.dtype, tensor.dtype)
        dim = tensor.dim

        def write(source: Any, target: Any) -> None:
            from tvm.script.ir_builder import tirx as script

            def read(place: tuple[Any, ...]) -> Value:
                return cast(loaded(source[place], tensor.dtype), kind)

            with self._loops(tensor.shape, without=dim, is_parallel=self.is_parallel) as index:
                before, after = tuple(index[:dim]), tuple(index[dim:])
                first = (*before, _zero(), *after)
                target[first] = read(first).expression
                with script.serial(_zero(), self.sizes.of(tensor.shape[dim]) - _one()) as k:
                    place = (*before, k + _one(), *after)
                    total = Value(target[(*before, k, *after)], kind)
                    target[place] = combined(tensor.function, total, read(place)).expression

        total = self._extern(tensor.shape, CARRIED[kind], [tensor.source], write, "scan")
        if kind == tensor.dtype:
            return total
        return self._stage(tensor.shape, lambda *index: stored(cast(Value(total(*index), kind), tensor.dtype)), "narrowed")

    def _put(self, tensor: Put) -> Any:
        """Write elements one after the other; positions out of range are skipped, so that no foreign memory is written."""
        parts = [part for part in tensor.index if isinstance(part, Tensor)]
        shape = tensor.values.shape
        kind = {"f16": "f32", "bf16": "f32"}.get(tensor.dtype, tensor.dtype)

        def write(source: Any, values: Any, *rest: Any) -> None:
            from tvm.script.ir_builder import tirx as script

            from plugin_tvm.library import tirx

            *places, target = rest
            with self._loops(tensor.shape) as index:
                each = tuple(index)
                copied = source[each]
                target[each] = copied if kind == "i1" else cast(loaded(copied, tensor.dtype), kind).expression
            with self._loops(shape) as index:
                each = tuple(index)
                found = iter(places)
                where: list[Any] = []
                inside: list[Any] = []
                for part, size in zip(tensor.index, tensor.shape, strict=True):
                    if isinstance(part, Affine):
                        where.append(self.affine(part, index))
                        continue
                    where.append(next(found)[each])
                    inside += [tirx.GE(where[-1], _zero()), tirx.LT(where[-1], self.sizes.of(size))]
                place = tuple(where)
                with script.If(_all(inside) if inside else tirx.const(True, "bool")), script.Then():
                    target[place] = self._put_in(tensor, kind, target[place], values[each])

        total = self._extern(tensor.shape, MEMORY[kind], [tensor.source, tensor.values, *parts], write, "put")
        if kind == tensor.dtype:
            return total
        return self._stage(tensor.shape, lambda *index: stored(cast(Value(total(*index), kind), tensor.dtype)), "narrowed")

    def _put_in(self, tensor: Put, kind: str, before: Any, value: Any) -> Any:
        if kind == "i1" and tensor.function == "set":
            return value
        new = cast(loaded(value, tensor.values.dtype), kind)
        if tensor.function == "set":
            return new.expression
        return stored(combined(tensor.function, loaded(before, kind), new))

    @contextmanager
    def _loops(
        self, shape: Sequence[Size], *, without: int | None = None, is_parallel: bool = False
    ) -> Generator[list[Any]]:
        """Open a loop for each dim but one, and return their variables.

        Flat loops would need divisions of positions, which TVM 0.27 cannot compile for symbolic sizes.
        """
        from tvm.script.ir_builder import tirx as script

        with ExitStack() as stack:
            index: list[Any] = []
            for dim, size in enumerate(shape):
                if dim != without:
                    loop = script.parallel if is_parallel and not index else script.serial
                    index.append(stack.enter_context(loop(_zero(), self.sizes.of(size))))
            yield index

    def _extern(
        self, shape: Sequence[Size], dtype: str, sources: Sequence[Tensor], write: Callable[..., None], name: str
    ) -> Any:
        """Return a stage of loops that `write` creates over flat memory."""
        from tvm.script.ir_builder import IRBuilder
        from tvm.script.ir_builder import tirx as script

        from plugin_tvm.library import te, tirx

        sizes = self.sizes.shape(shape)
        target = tirx.decl_buffer(sizes, dtype, name)
        inputs = [self.place(source) for source in sources]

        def made(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
            with IRBuilder() as builder, script.seq_scope():
                write(*(script.buffer_proxy(buffer) for buffer in (*ins, *outs)))
            return builder.get()

        return te.extern([sizes], inputs, made, dtype=[dtype], out_buffers=[target], name=name)


def _accumulated(tensor: Reduce) -> str:
    """Return the kind of element in which totals are accumulated."""
    kind = tensor.source.dtype
    if kind in ("f16", "bf16"):
        kind = "f32"
    if kind != "f32" or tensor.function not in ("sum", "prod"):
        return kind
    count = product(tensor.source.shape[dim] for dim in tensor.dims)
    return "f32" if is_static(count) and count <= SHORT else "f64"


def _all(conditions: Sequence[Any]) -> Any:
    from plugin_tvm.library import tirx

    found = conditions[0]
    for condition in itertools.islice(conditions, 1, None):
        found = tirx.And(found, condition)
    return found


def _zero() -> Any:
    from plugin_tvm.library import tirx

    return tirx.IntImm("int64", 0)


def _one() -> Any:
    from plugin_tvm.library import tirx

    return tirx.IntImm("int64", 1)
