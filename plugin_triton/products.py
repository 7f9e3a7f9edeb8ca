"""Matrix products as kernels: each program computes a tile, and fuses functions of the operands and of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from hub.toolkit.affine import Affine, Index, composed, identity, linear, variable
from hub.toolkit.groups import Group, Schedule
from hub.toolkit.nest import loop_index, memory_index
from hub.toolkit.reading import behind, reads, through_views
from hub.toolkit.sizes import Size, is_static, product, strides_of, times
from hub.toolkit.tensors import Product, Take, Tensor, arguments_of

from .blocks import Blocks, power_of_two
from .choices import Tile, Tiling
from .functions import HALVES, ITEMSIZES, TYPES, Value
from .kernel import TF32, Elements, Kernel, Scope, Writer, finished, root_of
from .prologues import Multiplied, Prologue

TOGETHER = 8
"""Number of rows of tiles that are computed together."""
ALIGNED = 16
"""Number of elements that must divide the length of rows for them to be read in large pieces.

If it does not, or the length is unknown, each element has its own pointer, and tiles twice as large spill registers
(cuda:90, Triton 3.9).
"""


@dataclass(frozen=True)
class Epilogue:
    """A group that is computed on the tiles of a product, before they are written."""

    group: Group
    loops: Mapping[int, Digit]
    """The part of the product's index that each of the group's loops is."""
    aliases: frozenset[Tensor]
    """The tensors through which the group reads the product: the product itself, or reshapes of it."""


@dataclass(frozen=True)
class Digit:
    """A loop as a digit of the index along rows, columns or the batch: index // step % size."""

    index: str
    """"m", "n" or "b"."""
    step: Size
    size: Size
    is_first: bool
    """True if it is the most significant digit, so that no remainder is needed."""


def epilogue_of(tensor: Tensor, schedule: Schedule, kept: Set[Tensor]) -> Epilogue | None:
    """Return the one group that reads a product, if it reads every element once.

    Return None if it does not, or if the product is in `kept`: those tensors are read by others, too.
    """
    if tensor in kept:
        return None
    readers: list[tuple[Group, Affine]] = []
    aliases: set[Tensor] = set()
    for stage in schedule.stages:
        if not isinstance(stage, Group):
            operands = (read for each in arguments_of(stage) for read, _ in behind(each, identity(each.shape)))
            if any(root_of(read) is tensor for read in operands):
                return None
            continue
        for member, placement in stage.members.items():
            for source, index in reads(member):
                if root_of(source) is tensor:
                    if index is None or stage.reduced or isinstance(member, Take):
                        return None
                    place = linear(composed(index, loop_index(placement)), strides_of(source.shape))
                    readers.append((stage, place))
                    aliases.add(source)
    if not readers or any(each != readers[0] for each in readers):
        return None
    group, place = readers[0]
    loops = _digits(place, group.domain, tensor)
    return None if loops is None else Epilogue(group, loops, frozenset(aliases))


def _digits(place: Affine, domain: Sequence[Size], tensor: Tensor) -> dict[int, Digit] | None:
    """Return the loops as digits of row, column and batch; None unless together they enumerate the product's memory."""
    axes = [("n", tensor.shape[-1]), ("m", tensor.shape[-2]), ("b", product(tensor.shape[:-2]))]
    found: dict[int, Digit] = {}
    expected: Size = 1
    step: Size = 1
    left = {factor: loop for loop, factor in place.terms}
    for name, size in axes:
        step = 1
        while step != size:
            loop = left.pop(expected, None)
            if loop is None or (is_static(step) and is_static(size) and step >= size):
                return None
            following = times(step, domain[loop])
            found[loop] = Digit(name, step, domain[loop], following == size)
            step, expected = following, times(expected, domain[loop])
    is_whole = not left and place.constant == 0 and len(found) == len(domain)
    return found if is_whole else None


def product_kernel(
    computed: Product | Multiplied, epilogue: Epilogue | None, name: str, writer: Writer, *, is_interpreted: bool
) -> Kernel:
    """Return the kernel of matrix products left [..., M, K] @ right [..., K, N], accumulated in float32 or float64."""
    before = (computed.left, computed.right) if isinstance(computed, Multiplied) else (None, None)
    tensor = computed.product if isinstance(computed, Multiplied) else computed
    rank = len(tensor.shape)
    rows, columns, inner = rank - 2, rank - 1, rank
    lead = tensor.shape[:-2]
    kind = "f64" if tensor.dtype == "f64" else "f32"
    sizes = {size: writer.size(size) for size in (*tensor.shape, tensor.left.shape[-1])}
    m, n, k = sizes[tensor.shape[-2]], sizes[tensor.shape[-1]], sizes[tensor.left.shape[-1]]
    blocks = writer.chosen or _blocks(tensor, writer.precision, is_interpreted=is_interpreted)
    scope = Scope({}, {})
    writer.reaches(tensor.shape)
    split_programs(lead, f"({m} + BM - 1) // BM * (({n} + BN - 1) // BN)", writer, scope)
    _open_tile(tensor, blocks, writer, scope)
    writer.line(scope, f"mmask = m < {m}")
    writer.line(scope, f"nmask = n < {n}")
    scope.loops |= {rows: "m", columns: "n"}
    writer.line(scope, f"total = tl.full((BM, BN), 0, {TYPES[kind]})")
    writer.line(scope, f"for start in range(0, {k}, BK):")
    body = scope.inner({})
    writer.line(body, f"k = start + {writer.places('BK')}")
    is_whole = is_static(tensor.left.shape[-1]) and tensor.left.shape[-1] % blocks.sizes["BK"] == 0
    if not is_whole:
        writer.line(body, f"kmask = k < {k}")
    sides = (
        _Side(tensor.left, before[0], {rows: "mmask", inner: "" if is_whole else "kmask[None, :]"}, ("BM", "BK")),
        _Side(tensor.right, before[1], {inner: "" if is_whole else "kmask[:, None]", columns: "nmask"}, ("BK", "BN")),
    )
    for operand_name, side, along in zip(("left", "right"), sides, ("k[None, :]", "k[:, None]"), strict=True):
        text = side.text(
            (*range(rank - 2), *side.masks), inner, Scope({**body.loops, inner: along}, {}, body.indent), writer
        )
        writer.line(body, f"{operand_name} = {text}")
    if tensor.left.dtype == "bf16":
        writer.line(body, "if INTERPRETED:")
        writer.line(body, "    left, right = left.to(tl.float32), right.to(tl.float32)")
    writer.line(body, f"total = tl.dot(left, right, total{writer.exactly(tensor.left)}, out_dtype={TYPES[kind]})")
    value = Value("total" if tensor.dtype == kind else f"total.to({TYPES[tensor.dtype]})", tensor.dtype)
    finish(computed, epilogue, value, scope, writer)
    tiles = f"triton.cdiv({m}, {blocks.sizes['BM']}) * triton.cdiv({n}, {blocks.sizes['BN']})"
    on_the_way = [each.group for each in (*before, epilogue) if each is not None]
    covered = (computed, *(member for group in on_the_way for member in group.members))
    return finished(name, covered, writer, (programs(tiles, lead, writer),), blocks, _tiling(tensor))


@dataclass(frozen=True)
class _Side:
    """One operand of a product."""

    tensor: Tensor
    prologue: Prologue | None
    masks: Mapping[int, str]
    """The masks of its two matrix dims, by loop; "" if none is needed."""
    tile: tuple[str, str]
    """Names of the block sizes of its tile."""

    def text(self, variables: tuple[int, ...], inner: int, scope: Scope, writer: Writer) -> str:
        """Return the text of its tile. Elements past the depth are 0, even if a fused function maps 0 to another value."""
        if self.prologue is None:
            mask = " & ".join(mask for mask in self.masks.values() if mask)
            return f"tl.load({operand(self.tensor, variables, writer, scope)}, {mask}, 0)"
        masks = {dim: mask for dim, loop in enumerate(variables) if (mask := self.masks.get(loop, ""))}
        own = Scope({dim: scope.loops[loop] for dim, loop in enumerate(variables) if loop in scope.loops}, {}, scope.indent)
        elements = Elements(writer, self.prologue.group, frozenset(), masks, {})
        text = elements.value(self.tensor, identity(self.tensor.shape), own).text
        text = text if self.prologue.is_spread else f"tl.broadcast_to({text}, ({', '.join(self.tile)}))"
        return f"tl.where({self.masks[inner]}, {text}, 0.0)" if self.masks[inner] else text


def _open_tile(tensor: Product, blocks: Blocks, writer: Writer, scope: Scope) -> None:
    """Write the rows and columns of a tile. Some rows of tiles go column by column, so that reads stay in the cache."""
    m, n = map(writer.size, tensor.shape[-2:])
    if any(
        is_static(size) and size <= blocks.sizes[name] for size, name in zip(tensor.shape[-2:], ("BM", "BN"), strict=True)
    ):
        writer.line(scope, f"columns = ({n} + BN - 1) // BN")
        row, column = "tile // columns", "tile % columns"
    else:
        writer.line(scope, f"columns = ({n} + BN - 1) // BN * {TOGETHER}")
        writer.line(scope, f"first = tile // columns * {TOGETHER}")
        writer.line(scope, f"together = tl.minimum(({m} + BM - 1) // BM - first, {TOGETHER})")
        row, column = "(first + tile % columns % together)", "tile % columns // together"
    writer.line(scope, f"m = ({row} * BM + {writer.places('BM')})[:, None]")
    writer.line(scope, f"n = ({column} * BN + {writer.places('BN')})[None, :]")


def programs(tiles: str, lead: tuple[Size, ...], writer: Writer) -> str:
    """Return the number of programs that compute a batch, as Python text."""
    batch = product(lead)
    return tiles if batch == 1 else f"{tiles} * {writer.size(batch)}"


def split_programs(lead: tuple[Size, ...], tiles: str, writer: Writer, scope: Scope) -> None:
    """Write which tile of which product in the batch a program computes, with an index for each leading dim.

    Programs are numbered along one axis, because the other axes of a grid end at 65,535.
    """
    if product(lead) == 1:
        writer.line(scope, f"tile = {writer.program}")
        return
    writer.line(scope, f"tiles = {tiles}")
    writer.line(scope, f"tile = {writer.program} % tiles")
    writer.line(scope, f"b = {writer.program} // tiles")
    step: Size = 1
    for dim, size in reversed(list(enumerate(lead))):
        if size == 1:
            continue
        by = "" if step == 1 else f" // {writer.size(step)}"
        writer.line(scope, f"b{dim} = b{by} % {writer.size(size)}")
        scope.loops[dim] = f"b{dim}"
        step = product((step, size))


def operand(tensor: Tensor, variables: tuple[int, ...], writer: Writer, scope: Scope) -> str:
    """Return the pointers to a tile of matrices, whose dims run along some of the scope's loops."""
    index: Index = tuple(
        Affine() if size == 1 and dim not in scope.loops else variable(dim)
        for dim, size in zip(variables, tensor.shape, strict=True)
    )
    tensor, index = through_views(tensor, index)
    place = memory_index(tensor, index)
    across = variables[-2:]
    missing = "".join(f" + {scope.loops[dim]} * 0" for dim in across if place.factor(dim) == 0)  # keeps the tile a matrix
    return f"{writer.memory(tensor)} + {writer.affine(place, scope)}{missing}"


def finish(tensor: Tensor, epilogue: Epilogue | None, value: Value, scope: Scope, writer: Writer) -> None:
    """Write a tile [m, n] of a result into memory, or the results of its epilogue."""
    if epilogue is None:
        index = tuple(
            Affine() if size == 1 and dim not in scope.loops else variable(dim) for dim, size in enumerate(tensor.shape)
        )
        target = f"{writer.memory(tensor)} + {writer.affine(memory_index(tensor, index), scope)}"
        writer.line(scope, f"tl.store({target}, {value.text}, mmask & nmask)")
        return
    name = writer.fresh(scope, value.text)
    after = Scope({loop: _digit(digit, writer) for loop, digit in epilogue.loops.items()}, {})
    after.known |= dict.fromkeys(epilogue.aliases, Value(name, value.dtype))
    masks = {loop: f"{digit.index}mask" for loop, digit in epilogue.loops.items() if digit.index != "b"}
    elements = Elements(writer, epilogue.group, frozenset(), masks, {"mmask": "m", "nmask": "n"})
    for store in epilogue.group.stores:
        elements.store(store, after)


def _digit(digit: Digit, writer: Writer) -> str:
    text = digit.index if digit.step == 1 else f"{digit.index} // {writer.size(digit.step)}"
    if digit.is_first:
        return text if digit.step == 1 else f"({text})"
    return f"({text} % {writer.size(digit.size)})"


def _blocks(tensor: Product, precision: str, *, is_interpreted: bool) -> Blocks:
    """Return tile sizes, each at least 16, as tensor cores require."""
    m, n, k = tensor.shape[-2], tensor.shape[-1], tensor.left.shape[-1]
    is_ragged = not all(is_static(size) and size % ALIGNED == 0 for size in (n, k))
    if is_interpreted:
        most = (256, 256, 256)
    elif tensor.left.dtype in HALVES:
        most = (128, 64, 64) if is_ragged else (128, 128, 64)
    else:
        most = (64 if is_ragged or tensor.dtype == "f64" else 128, 64, 32 if precision == TF32 else 16)
    sizes = [
        max(16, min(limit, power_of_two(size))) if is_static(size) else limit
        for size, limit in zip((m, n, k), most, strict=True)
    ]
    return Blocks(
        dict(zip(("BM", "BN", "BK"), sizes, strict=True)),
        warps=8 if sizes[0] == 128 or (is_ragged and sizes[0] == 64) else 4,
    )


def _tiling(tensor: Product) -> Tiling:
    """Return how a product uses its blocks, each at least 16, as tensor cores require."""
    itemsize = ITEMSIZES[tensor.left.dtype]
    held = Tile(("BM", "BN"), 8 if tensor.dtype == "f64" else 4)
    staged = (Tile(("BM", "BK"), itemsize), Tile(("BK", "BN"), itemsize))
    outer = {"BM": tensor.shape[-2], "BN": tensor.shape[-1]}
    return Tiling(outer, {"BK": tensor.left.shape[-1]}, (held,), staged, least=16)
