"""Write one group of a schedule as a Triton kernel: the rows of a tile lie along `x`, the reduced loops along `r`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hub.toolkit.affine import Affine, Index, linear
from hub.toolkit.functions import neutral
from hub.toolkit.groups import Group, Store
from hub.toolkit.nest import Nest, inner_index, is_inner, loop_index, memory_index, nest_of, phases_of
from hub.toolkit.reading import through_views
from hub.toolkit.sizes import Size, is_static, product, strides_of
from hub.toolkit.tensors import Fill, Iota, Number, Pointwise, Reduce, Reshape, Take, Tensor, View, arguments_of

from .blocks import Blocks, blocks_of
from .choices import Tiling, tiling_of
from .formatting import bare
from .functions import TYPES, Value, cast, constant, expression, folded
from .reductions import accumulator_dtype, combined, reduced

PERSISTENT = 16384
"""Length of the longest row that one program holds whole."""
WIDE = (1 << 31) - (1 << 20)
"""Number of elements from which on offsets may not fit into 32 bits, because the last block reaches past the end."""

IEEE, TF32 = "ieee", "tf32"
"""How products read float32: unchanged, or cut to 10 bits of fraction, as tensor cores do."""

NameOf = Callable[[Tensor], str]
"""A function that returns the name of a tensor's memory."""


@dataclass(frozen=True)
class Kernel:
    """The text of a kernel, and how it is launched."""

    name: str
    text: str
    parameters: tuple[str, ...]
    """Names of its parameters, in order: memory, numbers and sizes."""
    grid: tuple[str, ...]
    """Number of programs along each dim, as Python text over sizes and block sizes."""
    blocks: Blocks
    nodes: tuple[str, ...]
    """Nodes of the cluster that it computes, or parts of them."""
    may_leave: bool = False
    """True if it reads at indices that may be out of range; it writes 1 to `flag` when one is."""
    copied: tuple[str, str] | None = None
    """The memory that it writes into, and the memory that is copied there before the launch."""
    tiling: Tiling = field(default_factory=Tiling)


@dataclass
class Scope:
    """The values and loops that are visible at one point of a kernel's text."""

    loops: dict[int, str]
    """The variable of each loop."""
    known: dict[Tensor, Value]
    indent: int = 1

    def inner(self, loops: Mapping[int, str]) -> Scope:
        """Return the scope within a loop."""
        return Scope({**self.loops, **loops}, dict(self.known), self.indent + 1)


@dataclass
class Writer:
    """The lines of one kernel, and the parameters that it needs."""

    name_of: NameOf
    sizes: dict[Size, str]
    """Names of symbolic sizes, shared by all kernels of a file."""
    origins: Mapping[Tensor, str]
    """The node that each tensor is computed for."""
    chosen: Blocks | None = None
    """The blocks that were fastest when timed; None if rules choose them."""
    precision: str = IEEE
    """How products read float32: `IEEE` or `TF32`."""
    is_wide: bool = False
    """True if offsets are computed in 64 bits."""
    needs_wide: bool = False
    """True once the kernel touches a tensor whose offsets may not fit into 32 bits."""
    lines: list[str] = field(default_factory=list[str])
    parameters: dict[str, str] = field(default_factory=dict[str, str])
    """Names of its parameters, in order, each with its type if a launch would infer another one.

    Triton would infer int32 for a size that fits, and float32 for every number.
    """
    count: int = 0
    may_leave: bool = False

    def line(self, scope: Scope, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * scope.indent + text)

    def fresh(self, scope: Scope, text: str, comment: str = "") -> str:
        """Assign an expression to a new variable and return its name."""
        name = f"v{self.count}"
        self.count += 1
        self.line(scope, f"{name} = {bare(text)}" + (f"  # {comment}" if comment else ""))
        return name

    def exactly(self, operand: Tensor) -> str:
        """Return the argument of `tl.dot` for operands of this dtype; "" if their precision is not a choice."""
        return f', input_precision="{self.precision}"' if operand.dtype == "f32" else ""

    def size(self, size: Size) -> str:
        """Return a size as text: a number, or the name of a parameter."""
        if is_static(size):
            return str(size)
        name = self.sizes.setdefault(size, f"n{len(self.sizes)}")
        self.parameters[name] = TYPES["i64"]
        return name

    def memory(self, tensor: Tensor) -> str:
        """Return the parameter that holds a tensor's memory."""
        name = self.name_of(tensor)
        self.parameters[name] = ""
        self.reaches(root_of(tensor).shape)
        return name

    def reaches(self, sizes: Sequence[Size]) -> None:
        """Record that the kernel iterates over this many elements along each dim."""
        count = product(sizes)
        self.needs_wide |= not is_static(count) or count >= WIDE

    @property
    def program(self) -> str:
        """The program's index as text."""
        return "tl.program_id(0)" + (".to(tl.int64)" if self.is_wide else "")

    def places(self, block: str, across: str = "") -> str:
        """Return the offsets within a block as text, in 64 bits if the kernel needs them."""
        return f"tl.arange(0, {block}){across}" + (".to(tl.int64)" if self.is_wide else "")

    def affine(self, expression: Affine, scope: Scope, merged: frozenset[int] = frozenset()) -> str:
        """Return an index as text."""
        parts: list[str] = []
        for variable, factor in expression.terms:
            if variable not in merged:
                name = scope.loops[variable]
                parts.append(name if factor == 1 else f"{name} * {self.size(factor)}")
        if expression.constant != 0 or not parts:
            parts.append(self.size(expression.constant))
        return " + ".join(parts)


class Elements:
    """Writer of the values of a group's members, inside the loops that they are computed in."""

    def __init__(
        self, writer: Writer, group: Group, merged: frozenset[int], masks: Mapping[int, str], whole: Mapping[str, str]
    ) -> None:
        self.writer = writer
        self.group = group
        self.merged = merged
        self.masks = masks
        """The mask of each loop that may run past its end."""
        self.whole = whole
        """Mask -> index, for the dims that the tile of every result spans even if its size there is 1."""

    def member(self, tensor: Tensor, scope: Scope) -> Value:
        """Return a member's value; write it first if it is not written yet."""
        if found := scope.known.get(tensor):
            return found
        assert not isinstance(tensor, Reduce), "a reduction is read before its loop has run"
        index = loop_index(self.group.members[tensor])
        if isinstance(tensor, Take):
            text, label = self._taken(tensor, index, scope), "take"
        else:
            assert isinstance(tensor, Pointwise)
            values = [self.value(argument, index, scope) for argument in tensor.arguments]
            if (known := folded(tensor.function, values)) is not None:
                return known
            text, label = expression(tensor.function, tensor.dtype, values), tensor.function
        value = Value(self.writer.fresh(scope, text, label if label == "take" else ""), tensor.dtype)
        scope.known[tensor] = value
        return value

    def value(self, tensor: Tensor, index: Index, scope: Scope) -> Value:
        """Return the element of a tensor at an index over the group's loops."""
        tensor, index = through_views(tensor, index)
        if isinstance(tensor, Fill):
            return constant(tensor.value, tensor.dtype)
        if isinstance(tensor, Number):
            return self._number(tensor)
        if isinstance(tensor, Iota):
            self.writer.reaches((tensor.shape[tensor.dim],))
            text = self.writer.affine(index[tensor.dim], scope, self.merged)
            return Value(self._as_tensor(text, index[tensor.dim]), "i64")
        if tensor in scope.known:
            return scope.known[tensor]
        if tensor in self.group.members:
            return self.member(tensor, scope)
        return Value(self._load(tensor, memory_index(tensor, index), scope), tensor.dtype)

    def _as_tensor(self, text: str, index: Affine) -> str:
        is_plain = not any(variable not in self.merged for variable, _ in index.terms)
        return f"tl.full((), {text}, tl.int64)" if is_plain else f"({text}).to(tl.int64)"

    def _number(self, tensor: Number) -> Value:
        if isinstance(tensor.value, str):
            self.writer.parameters[tensor.value] = TYPES[tensor.dtype]
            return Value(f"tl.full((), {tensor.value}, {TYPES[tensor.dtype]})", tensor.dtype)
        return Value(f"tl.full((), {self.writer.size(tensor.value)}, tl.int64)", "i64")

    def mask(self, index: Affine) -> str:
        """Return the mask under which an index is in range; "" if it always is."""
        return self._masked(variable for variable, _ in index.terms)

    def _masked(self, loops: Iterable[int | None], also: Sequence[str] = ()) -> str:
        used = {*also, *(self.masks[loop] for loop in loops if loop is not None and loop in self.masks)}
        return " & ".join(name for name in dict.fromkeys((*self.masks.values(), *self.whole)) if name in used)

    def _load(self, tensor: Tensor, place: Affine, scope: Scope) -> str:
        text = f"{self.writer.memory(tensor)} + {self.writer.affine(place, scope, self.merged)}"
        mask = self.mask(place)
        key = f"tl.load({text}, {mask}, 0)" if mask else f"tl.load({text})"
        return self.writer.fresh(scope, key)

    def _taken(self, tensor: Take, index: Index, scope: Scope) -> str:
        writer = self.writer
        fixed = Affine()
        texts: list[str] = []
        mask = ""
        for part, size, stride in zip(tensor.index, tensor.source.shape, strides_of(tensor.source.shape), strict=True):
            if isinstance(part, Affine):
                fixed = fixed + part.at(index).scaled(stride)
                continue
            place = self.value(part, index, scope)
            inside = writer.fresh(scope, f"tl.minimum(tl.maximum({place.text}, 0), {writer.size(size)} - 1)")
            mask = self._masked(self.group.members[tensor])
            wrong = writer.fresh(scope, f"tl.where({mask or next(iter(self.whole))}, {place.text}, {inside}) != {inside}")
            writer.line(scope, f"tl.store(flag + {wrong}.to(tl.int32) * 0, 1, {wrong})")
            writer.may_leave = True
            texts.append(inside if stride == 1 else f"{inside} * {writer.size(stride)}")
        rest = writer.affine(fixed, scope, self.merged)
        place = " + ".join([*texts, *([rest] if rest != "0" else [])])
        memory = writer.memory(tensor.source)
        return f"tl.load({memory} + tl.where({mask}, {place}, 0), {mask}, 0)" if mask else f"tl.load({memory} + {place})"

    def store(self, store: Store, scope: Scope) -> None:
        """Write a member into memory."""
        placement = loop_index(self.group.members[store.member])
        place = tuple(part + Affine(offset) for part, offset in zip(placement, store.offsets, strict=True))
        index = linear(place, strides_of(store.into.shape))
        value = self.member(store.member, scope)
        mask = self._masked((variable for variable, _ in index.terms), [*self.whole])
        place_text = self.writer.affine(index, scope, self.merged)
        used = {self.masks[variable] for variable, _ in index.terms if variable in self.masks}
        missing = "".join(f" + {name} * 0" for mask_name, name in self.whole.items() if mask_name not in used)
        target = f"{self.writer.memory(store.into)} + {place_text}{missing}"
        self.writer.line(scope, f"tl.store({target}, {value.text}{f', {mask}' if mask else ''})")


def kernel_of(group: Group, name: str, writer: Writer, *, is_interpreted: bool) -> Kernel:
    """Return a group as a kernel."""
    return _GroupKernel(group, name, writer, is_interpreted=is_interpreted).written()


def finished(
    name: str,
    covered: Iterable[Tensor],
    writer: Writer,
    grid: tuple[str, ...],
    blocks: Blocks,
    tiling: Tiling,
    *,
    copied: tuple[str, str] | None = None,
) -> Kernel:
    """Return the written lines as a kernel that computes the given tensors."""
    parameters = tuple(writer.parameters)
    nodes = tuple(dict.fromkeys(writer.origins[tensor] for tensor in covered if tensor in writer.origins))
    typed = [f"{parameter}: {kind}" if kind else parameter for parameter, kind in writer.parameters.items()]
    head = [*typed, *(["flag"] if writer.may_leave else []), *(f"{block}: tl.constexpr" for block in blocks.sizes)]
    about = textwrap.wrap(", ".join(nodes) or "copies", 100)
    comment = [f"    # {line}" for line in about]
    text = "\n".join([*("@triton.jit", f"def {name}({', '.join(head)}):"), *comment, *writer.lines])
    return Kernel(name, text + "\n", parameters, grid, blocks, nodes, writer.may_leave, copied, tiling)


class _GroupKernel:
    def __init__(self, group: Group, name: str, writer: Writer, *, is_interpreted: bool) -> None:
        self.group = group
        self.is_interpreted = is_interpreted
        self.name = name
        self.writer = writer
        self.nest = nest_of(group) if group.domain else Nest((), 0, frozenset())
        loops = [loop for loop in range(len(self.nest.sizes)) if loop not in self.nest.merged]
        self.kept = [loop for loop in loops if loop not in group.reduced]
        self.inner = [loop for loop in loops if loop in group.reduced]
        self.rows = product(self.nest.sizes[loop] for loop in self.kept)
        self.columns = product(self.nest.sizes[loop] for loop in self.inner)
        self.phase = phases_of(group)
        masks = {loop: "rmask" if loop in group.reduced else "xmask" for loop in range(len(self.nest.sizes))}
        self.elements = Elements(writer, group, self.nest.merged, masks, {"xmask": "x"})

    def written(self) -> Kernel:
        is_reducing = bool(self.group.reduced)
        is_persistent = is_reducing and is_static(self.columns) and self.columns <= PERSISTENT
        scope = Scope({}, {})
        self._open_rows(scope, is_reducing=is_reducing)
        if not is_reducing:
            for store in self.group.stores:
                self.elements.store(store, scope)
        elif is_persistent:
            self._open_columns(scope, self.writer.places("RBLOCK", "[None, :]"))
            self._whole(scope)
        else:
            self._phases(scope)
        kind = "persistent" if is_persistent else "looped" if is_reducing else "pointwise"
        blocks = self.writer.chosen or blocks_of(
            kind, self.rows, self.columns, is_down=self._is_down(), is_interpreted=self.is_interpreted
        )
        tiling = tiling_of(kind, self.rows, self.columns)
        grid = (f"triton.cdiv({self.writer.size(self.rows)}, {blocks.sizes['XBLOCK']})",)
        return finished(self.name, self.group.members, self.writer, grid, blocks, tiling)

    def _is_down(self) -> bool:
        """Return whether neighbours in memory lie along loops that are not reduced, so that columns are reduced."""
        return self.nest.lane not in self.group.reduced

    # --- loops ---

    def _open_rows(self, scope: Scope, *, is_reducing: bool) -> None:
        writer = self.writer
        writer.reaches((self.rows, self.columns))
        suffix = "[:, None]" if is_reducing else ""
        writer.line(scope, f"x = {writer.program} * XBLOCK + {writer.places('XBLOCK', suffix)}")
        writer.line(scope, f"xmask = x < {writer.size(self.rows)}")
        split(scope, "x", self.kept, self.nest.sizes, writer)

    def _open_columns(self, scope: Scope, text: str) -> None:
        writer = self.writer
        writer.line(scope, f"r = {text}")
        writer.line(scope, f"rmask = r < {writer.size(self.columns)}")
        split(scope, "r", self.inner, self.nest.sizes, writer)

    # --- reductions ---

    def _whole(self, scope: Scope) -> None:
        """Hold whole rows, so that every member is computed once."""
        for member in self.group.members:
            if isinstance(member, Reduce):
                kind = accumulator_dtype(member)
                value = self._reduced_value(member, kind, scope)
                name = self.writer.fresh(scope, reduced(member.function, value), member.function)
                scope.known[member] = Value(cast(Value(name, kind), member.dtype), member.dtype)
        for store in self.group.stores:
            self.elements.store(store, scope)

    def _reduced_value(self, reduce: Reduce, kind: str, scope: Scope) -> str:
        """Return the elements of a reduction; masked elements are its neutral value."""
        index = inner_index(reduce, self.group, self.group.members[reduce])
        value = self.elements.value(reduce.source, index, scope)
        shown = cast(value, kind)
        nothing = constant(neutral(reduce.function, kind), kind).text
        return self.writer.fresh(scope, f"tl.where(xmask & rmask, {shown}, {nothing})")

    def _phases(self, scope: Scope) -> None:
        """Loop over the rows in blocks, as many times as values of whole rows require."""
        last = max(self.phase.values(), default=0)
        for phase in range(last + 1):
            stores = [store for store in self.group.stores if self.phase[store.member] == phase]
            for store in stores:
                if not is_inner(store.member, self.group):
                    self.elements.store(store, scope)
            inner = [store for store in stores if is_inner(store.member, self.group)]
            reduces = [
                member for member in self.group.members if isinstance(member, Reduce) and self.phase[member] == phase + 1
            ]
            if reduces or inner:
                self._walk(reduces, inner, scope)

    def _walk(self, reduces: Sequence[Reduce], stores: Sequence[Store], scope: Scope) -> None:
        writer = self.writer
        for member in self._needed([*reduces, *(store.member for store in stores)], scope):
            if not is_inner(member, self.group) and not isinstance(member, Reduce):
                self.elements.member(member, scope)
        totals: list[tuple[Reduce, str, str]] = []
        for reduce in reduces:
            kind = accumulator_dtype(reduce)
            start = constant(neutral(reduce.function, kind), kind).text.removeprefix("tl.full((), ")
            totals.append((reduce, kind, writer.fresh(scope, f"tl.full((XBLOCK, RBLOCK), {start}")))
        writer.line(scope, f"for start in range(0, {writer.size(self.columns)}, RBLOCK):")
        body = scope.inner({})
        self._open_columns(body, f"start + {writer.places('RBLOCK', '[None, :]')}")
        for reduce, kind, total in totals:
            value = self._reduced_value(reduce, kind, body)
            writer.line(body, f"{total} = {combined(reduce.function, total, value)}")
        for store in stores:
            self.elements.store(store, body)
        for reduce, kind, total in totals:
            name = writer.fresh(scope, reduced(reduce.function, total), reduce.function)
            scope.known[reduce] = Value(cast(Value(name, kind), reduce.dtype), reduce.dtype)

    def _needed(self, roots: Sequence[Tensor], scope: Scope) -> Iterator[Tensor]:
        """Return the members that others need and that are not yet computed here, in order."""
        needed: set[Tensor] = set()
        stack = list(roots)
        while stack:
            tensor = stack.pop()
            while isinstance(tensor, View):
                tensor = tensor.source
            if tensor not in self.group.members or tensor in needed or tensor in scope.known:
                continue
            needed.add(tensor)
            stack.extend(arguments_of(tensor))
        return (member for member in self.group.members if member in needed)


def split(scope: Scope, name: str, loops: Sequence[int], sizes: Sequence[Size], writer: Writer) -> None:
    """Write one variable for each of several loops that are flattened into one loop, `name`; the scope gets them."""
    step: Size = 1
    for place, loop in reversed(list(enumerate(loops))):
        text = name if step == 1 else f"{name} // {writer.size(step)}"
        if place:
            text = f"{text} % {writer.size(sizes[loop])}" if step == 1 else f"({text}) % {writer.size(sizes[loop])}"
        if text == name:
            scope.loops[loop] = name
        else:
            scope.loops[loop] = f"{name}{place}"
            writer.line(scope, f"{name}{place} = {text}")
        step = product((step, sizes[loop]))


def root_of(tensor: Tensor) -> Tensor:
    """Return the tensor that owns the memory of a tensor."""
    while isinstance(tensor, Reshape):
        tensor = tensor.source
    return tensor
