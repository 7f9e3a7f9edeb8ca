"""Scans (running totals) as kernels: rows in blocks, from left to right."""

from __future__ import annotations

from hub.toolkit.affine import linear, variable
from hub.toolkit.sizes import product, strides_of
from hub.toolkit.tensors import Scan

from .blocks import Blocks
from .choices import tiling_of
from .functions import TYPES, Value, cast
from .kernel import Kernel, Scope, Writer, finished, split


def scan_kernel(tensor: Scan, name: str, writer: Writer, *, is_interpreted: bool) -> Kernel:
    """Return the kernel of a scan. Float32 is accumulated in float64, as PyTorch does on CPUs."""
    kind = "f64" if tensor.dtype == "f32" else "f32" if tensor.dtype in ("f16", "bf16") else tensor.dtype
    others = [dim for dim in range(len(tensor.shape)) if dim != tensor.dim]
    rows = product(tensor.shape[dim] for dim in others)
    length = writer.size(tensor.shape[tensor.dim])
    scope = Scope({}, {})
    writer.line(scope, f"x = {writer.program} * XBLOCK + {writer.places('XBLOCK', '[:, None]')}")
    writer.line(scope, f"xmask = x < {writer.size(rows)}")
    split(scope, "x", others, tensor.shape, writer)
    start = 0 if tensor.function == "sum" else 1
    writer.line(scope, f"total = tl.full((XBLOCK, 1), {start}, {TYPES[kind]})")
    writer.line(scope, f"for start in range(0, {length}, RBLOCK):")
    body = scope.inner({tensor.dim: "r"})
    writer.line(body, f"r = start + {writer.places('RBLOCK', '[None, :]')}")
    writer.line(body, f"mask = xmask & (r < {length})")
    place = linear(tuple(variable(dim) for dim in range(len(tensor.shape))), strides_of(tensor.shape))
    shown = writer.affine(place, body) + ("" if others else " + x * 0")  # a tile has two dims, even for one row
    loaded = cast(Value(f"tl.load({writer.memory(tensor.source)} + {shown}, mask, {start})", tensor.dtype), kind)
    writer.line(body, f"tile = {loaded}")
    sign, run, whole = ("+", "running_sum", "row_sum(tile)") if start == 0 else ("*", "running_prod", "row_prod(tile)")
    result = cast(Value(f"({run}(tile) {sign} total)", kind), tensor.dtype)
    writer.line(body, f"tl.store({writer.memory(tensor)} + {shown}, {result}, mask)")
    writer.line(body, f"total = total {sign} {whole}[:, None]")
    default = Blocks({"XBLOCK": 64, "RBLOCK": 1024} if is_interpreted else {"XBLOCK": 1, "RBLOCK": 1024})
    blocks = writer.chosen or default
    grid = (f"triton.cdiv({writer.size(rows)}, {blocks.sizes['XBLOCK']})",)
    return finished(name, (tensor,), writer, grid, blocks, tiling_of("looped", rows, tensor.shape[tensor.dim]))
