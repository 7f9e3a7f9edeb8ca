"""Matrix products as kernels: tiles of the result, with what follows element by element computed on the way out."""

from __future__ import annotations

from dataclasses import dataclass

from plugin_disc.affine import Affine, Index, composed, identity, variable
from plugin_disc.loops.group import Group, Schedule, behind, reads
from plugin_disc.loops.nest import loop_index
from plugin_disc.sizes import Size, is_static, product
from plugin_disc.tensors import Product, Take, Tensor, View

from .blocks import Blocks, power_of_two
from .functions import FLOATS, TYPES, Value
from .kernel import Elements, Kernel, Scope, Writer, finished, memory_index, program_id


@dataclass(frozen=True)
class Epilogue:
    """A group that is computed on the tiles of a product."""

    group: Group
    dim_of: dict[int, int]
    """The product's dim that each of the group's loops runs along."""


def epilogue_of(tensor: Product, schedule: Schedule, kept: set[Tensor]) -> Epilogue | None:
    """Gives the one group that reads a product, if it reads it element by element; `kept` is read from elsewhere, too."""
    if tensor in kept:
        return None
    readers: list[tuple[Group, Index]] = []
    for stage in schedule.stages:
        if not isinstance(stage, Group):
            if any(
                source is tensor
                for argument in _operands(stage)
                for source, _ in behind(argument, identity(argument.shape))
            ):
                return None
            continue
        for member, placement in stage.members.items():
            for source, index in reads(member):
                if source is tensor:
                    if index is None or stage.reduced or isinstance(member, Take):
                        return None
                    readers.append((stage, composed(index, loop_index(placement))))
    if not readers or any(each != readers[0] for each in readers):
        return None
    group, index = readers[0]
    dims = {part.terms[0][0]: dim for dim, part in enumerate(index) if len(part.terms) == 1}
    is_plain = all(part in (Affine(), variable(part.terms[0][0]) if part.terms else None) for part in index)
    return Epilogue(group, dims) if is_plain and len(dims) == len(group.domain) else None


def _operands(stage: object) -> tuple[Tensor, ...]:
    return (stage.left, stage.right) if isinstance(stage, Product) else (stage.source,)  # type: ignore[attr-defined]


def product_kernel(
    tensor: Product, epilogue: Epilogue | None, name: str, writer: Writer, *, is_interpreted: bool
) -> Kernel:
    """Gives matrix products left [..., M, K] times right [..., K, N] as a kernel, accumulated in float32 or float64."""
    rank = len(tensor.shape)
    rows, columns, inner = rank - 2, rank - 1, rank
    lead = tensor.shape[:-2]
    kind = "f64" if tensor.dtype == "f64" else "f32"
    sizes = {size: writer.size(size) for size in (*tensor.shape, tensor.left.shape[-1])}
    m, n, k = sizes[tensor.shape[-2]], sizes[tensor.shape[-1]], sizes[tensor.left.shape[-1]]
    scope = Scope({}, {})
    writer.line(scope, f"tile = {program_id(0, tensor.shape)}")
    writer.line(scope, f"tiles = ({n} + BN - 1) // BN")
    writer.line(scope, "m = (tile // tiles * BM + tl.arange(0, BM))[:, None]")
    writer.line(scope, "n = (tile % tiles * BN + tl.arange(0, BN))[None, :]")
    writer.line(scope, f"mmask = m < {m}")
    writer.line(scope, f"nmask = n < {n}")
    scope.loops |= {rows: "m", columns: "n"}
    _split_batch(lead, writer, scope)
    writer.line(scope, f"total = tl.full((BM, BN), 0, {TYPES[kind]})")
    writer.line(scope, f"for start in range(0, {k}, BK):")
    body = scope.inner({})
    writer.line(body, "k = start + tl.arange(0, BK)")
    writer.line(body, f"kmask = k < {k}")
    left = _operand(tensor.left, (*range(rank - 2), rows, inner), writer, body.inner({inner: "k[None, :]"}))
    right = _operand(tensor.right, (*range(rank - 2), inner, columns), writer, body.inner({inner: "k[:, None]"}))
    writer.line(body, f"left = tl.load({left}, mmask & kmask[None, :], 0)")
    writer.line(body, f"right = tl.load({right}, kmask[:, None] & nmask, 0)")
    exact = "" if kind == "f64" or tensor.dtype not in FLOATS else ', input_precision="ieee"'
    writer.line(body, f"total = tl.dot(left, right, total{exact}, out_dtype={TYPES[kind]})")
    value = Value("total" if tensor.dtype == kind else f"total.to({TYPES[tensor.dtype]})", tensor.dtype)
    _finish(tensor, epilogue, value, scope, writer)
    blocks = _blocks(tensor, is_interpreted=is_interpreted)
    tiles = f"triton.cdiv({m}, {blocks.sizes['BM']}) * triton.cdiv({n}, {blocks.sizes['BN']})"
    after = (
        ""
        if epilogue is None
        else " with " + " ".join(getattr(each, "function", "take") for each in epilogue.group.members)
    )
    return finished(name, f"product{after}"[:100], writer, (tiles, writer.size(product(lead))), blocks)


def _split_batch(lead: tuple[Size, ...], writer: Writer, scope: Scope) -> None:
    step: Size = 1
    for dim, size in reversed(list(enumerate(lead))):
        if size == 1:
            continue
        by = "" if step == 1 else f" // {writer.size(step)}"
        writer.line(scope, f"b{dim} = {program_id(1, lead)}{by} % {writer.size(size)}")
        scope.loops[dim] = f"b{dim}"
        step = product((step, size))


def _operand(tensor: Tensor, variables: tuple[int, ...], writer: Writer, scope: Scope) -> str:
    index: Index = tuple(
        Affine() if size == 1 and dim not in scope.loops else variable(dim)
        for dim, size in zip(variables, tensor.shape, strict=True)
    )
    while isinstance(tensor, View):
        index = composed(tensor.index, index)
        tensor = tensor.source
    return f"{writer.memory(tensor)} + {writer.affine(memory_index(tensor, index), scope)}"


def _finish(tensor: Product, epilogue: Epilogue | None, value: Value, scope: Scope, writer: Writer) -> None:
    if epilogue is None:
        index = tuple(
            Affine() if size == 1 and dim not in scope.loops else variable(dim) for dim, size in enumerate(tensor.shape)
        )
        target = f"{writer.memory(tensor)} + {writer.affine(memory_index(tensor, index), scope)}"
        writer.line(scope, f"tl.store({target}, {value.text}, mmask & nmask)")
        return
    name = writer.fresh(scope, value.text)
    after = Scope({loop: scope.loops[dim] for loop, dim in epilogue.dim_of.items()}, {tensor: Value(name, value.dtype)})
    mask_of = {len(tensor.shape) - 2: "mmask", len(tensor.shape) - 1: "nmask"}
    masks = {loop: mask_of[dim] for loop, dim in epilogue.dim_of.items() if dim in mask_of}
    elements = Elements(writer, epilogue.group, frozenset(), masks)
    for store in epilogue.group.stores:
        elements.store(store, after)


def _blocks(tensor: Product, *, is_interpreted: bool) -> Blocks:
    """Gives tile sizes, each at least the 16 of the tensor cores."""
    m, n, k = tensor.shape[-2], tensor.shape[-1], tensor.left.shape[-1]
    if is_interpreted:
        most = (256, 256, 256)
    elif tensor.dtype in ("f16", "bf16"):
        most = (128, 128, 64)
    else:
        most = (64, 64, 16) if tensor.dtype == "f64" else (64, 64, 32)
    sizes = [
        max(16, min(limit, power_of_two(size))) if is_static(size) else limit
        for size, limit in zip((m, n, k), most, strict=True)
    ]
    return Blocks(dict(zip(("BM", "BN", "BK"), sizes, strict=True)), warps=8 if most[0] == 128 else 4)
