"""Attention as a kernel: a program holds some rows of queries, loops over the keys, and rescales its softmax in each step.

Source: FlashAttention-2 (Dao 2023), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hub.toolkit.affine import identity
from hub.toolkit.sizes import Size, is_static
from hub.toolkit.tensors import Tensor

from .attention import Attention
from .blocks import Blocks, power_of_two
from .choices import Tile, Tiling
from .functions import HALVES, ITEMSIZES, TYPES, Value
from .kernel import Elements, Kernel, Scope, Writer, finished
from .products import Epilogue, finish, operand, programs, split_programs

_LOWEST = 'float("-inf")'


def attention_kernel(
    tensor: Attention, epilogue: Epilogue | None, name: str, writer: Writer, *, is_interpreted: bool
) -> Kernel:
    """Return the kernel of attention, with totals in float32; shares are rounded to the values' precision."""
    blocks = writer.chosen or _blocks(tensor, is_interpreted=is_interpreted)
    scope = Scope({}, {})
    flash = _Flash(tensor, writer)
    flash.open(scope)
    for steps in flash.steps(blocks.sizes["BK"], scope):
        flash.walk(steps, scope)
    result = "tl.div_rn(total, below)"
    result = f"tl.where(top == {_LOWEST}, 0.0, {result})" if tensor.is_safe else result
    finish(tensor, epilogue, Value(result, "f32"), scope, writer)
    tiles = f"triton.cdiv({writer.size(tensor.shape[-2])}, {blocks.sizes['BM']})"
    covered = (tensor, *tensor.between.members, *(epilogue.group.members if epilogue else ()))
    return finished(name, covered, writer, (programs(tiles, tensor.shape[:-2], writer),), blocks, _tiling(tensor))


@dataclass(frozen=True)
class _Steps:
    """The blocks of keys of one loop."""

    first: str
    end: str
    scores: Tensor
    is_masked: bool
    """True if a block may run past the last key."""


class _Flash:
    def __init__(self, tensor: Attention, writer: Writer) -> None:
        self.tensor = tensor
        self.writer = writer
        self.rows, self.columns, self.inner = (len(tensor.shape) - 2 + place for place in range(3))
        self.lead = tuple(range(self.rows))
        self.key_count: Size = tensor.dots.shape[-1]
        self.exp = "tl.exp" if tensor.query.dtype in HALVES else "libdevice.exp"
        """The GPU's own approximation is exact enough for half precision."""

    def open(self, scope: Scope) -> None:
        """Write which rows a program computes, and the initial values."""
        writer, tensor = self.writer, self.tensor
        rows, width = writer.size(tensor.shape[-2]), writer.size(tensor.query.shape[-1])
        tiles = f"({rows} + BM - 1) // BM"
        split_programs(tensor.shape[:-2], tiles, writer, scope)
        if tensor.is_causal:  # the longest loops first: short ones fill the idle time at the end
            writer.line(scope, f"tile = {tiles} - 1 - tile")
        writer.line(scope, f"m = (tile * BM + {writer.places('BM')})[:, None]")
        writer.line(scope, f"n = {writer.places('BN', '[None, :]')}")
        writer.line(scope, f"d = {writer.places('BD')}")
        writer.line(scope, f"mmask = m < {rows}")
        writer.line(scope, f"nmask = n < {writer.size(tensor.shape[-1])}")
        writer.line(scope, f"dmask = d < {width}")
        scope.loops |= {self.rows: "m", self.columns: "n"}
        place = operand(tensor.query, (*self.lead, self.rows, self.inner), writer, scope.inner({self.inner: "d[None, :]"}))
        self._named("query", f"tl.load({place}, mmask & dmask[None, :], 0)", tensor.query, scope)
        writer.line(scope, f"top = tl.full((BM, 1), {_LOWEST}, tl.float32)")
        writer.line(scope, "below = tl.full((BM, 1), 0, tl.float32)")
        writer.line(scope, "total = tl.full((BM, BN), 0, tl.float32)")

    def steps(self, block: int, scope: Scope) -> Iterator[_Steps]:
        """Yield the loops. No mask is needed left of the diagonal, nor if blocks divide the keys."""
        tensor, keys = self.tensor, self.key_count
        count = self.writer.size(keys)
        if tensor.is_causal:
            self.writer.line(scope, f"whole = tl.minimum(tile * BM, {count}) // BK * BK")
            yield _Steps("0", "whole", tensor.seen, is_masked=False)
            yield _Steps("whole", f"tl.minimum(tile * BM + BM, {count})", tensor.scores, is_masked=True)
            return
        # Two loops of known length, one without the mask, are unrolled until registers spill.
        yield _Steps("0", count, tensor.scores, is_masked=not is_static(keys) or keys % block != 0)

    def walk(self, steps: _Steps, scope: Scope) -> None:
        """Write one loop."""
        writer, tensor = self.writer, self.tensor
        writer.line(scope, f"for start in range({steps.first}, {steps.end}, BK):")
        body = scope.inner({self.columns: "k[None, :]"})
        writer.line(body, f"k = start + {writer.places('BK')}")
        if steps.is_masked:
            writer.line(body, f"kmask = k < {writer.size(self.key_count)}")
        across = body.inner({self.inner: "d[:, None]"})
        place = operand(tensor.key, (*self.lead, self.inner, self.columns), writer, across)
        mask = "dmask[:, None] & kmask[None, :]" if steps.is_masked else "dmask[:, None]"
        self._named("key", f"tl.load({place}, {mask}, 0)", tensor.key, body)
        dots = f"tl.dot(query, key{writer.exactly(tensor.query)})"
        body.known[tensor.dots] = Value(writer.fresh(body, dots), "f32")
        self._update(self._scores(steps, body), steps, scope, body)

    def _scores(self, steps: _Steps, body: Scope) -> str:
        """Return the argument of the softmax as text; keys past the end get minus infinity, a weight of 0."""
        masks = {self.rows: "mmask", **({self.columns: "kmask[None, :]"} if steps.is_masked else {})}
        elements = Elements(self.writer, self.tensor.between, frozenset(), masks, {})
        scores = elements.value(steps.scores, identity(self.tensor.dots.shape), body).text
        return f"tl.where(kmask[None, :], {scores}, {_LOWEST})" if steps.is_masked else scores

    def _update(self, scores: str, steps: _Steps, scope: Scope, body: Scope) -> None:
        """Write how a block of keys changes the largest score, the sum of powers, and the total."""
        writer, value = self.writer, self.tensor.value
        writer.line(body, f"scores = {scores}")
        writer.line(body, "higher = combine_max(top, row_max(scores)[:, None])")
        writer.line(body, f"base = tl.where(higher == {_LOWEST}, 0.0, higher)")
        writer.line(body, f"powers = {self.exp}(scores - base)")
        writer.line(body, f"shrink = {self.exp}(top - base)")
        writer.line(body, "below = below * shrink + row_sum(powers)[:, None]")
        down = scope.inner({self.columns: "k[:, None]", self.inner: "n"})
        place = operand(value, (*self.lead, self.columns, self.inner), writer, down)
        mask = "kmask[:, None] & nmask" if steps.is_masked else "nmask"
        self._named("value", f"tl.load({place}, {mask}, 0)", value, body)
        shares = "shares" if value.dtype in HALVES else "powers"
        if value.dtype in HALVES:
            self._named("shares", f"powers.to({TYPES[value.dtype]})", value, body)
        writer.line(body, f"total = tl.dot({shares}, value, total * shrink{writer.exactly(value)})")
        writer.line(body, "top = higher")

    def _named(self, name: str, text: str, tensor: Tensor, scope: Scope) -> None:
        """Write an operand of `tl.dot`: in the interpreter, bfloat16 becomes float32."""
        self.writer.line(scope, f"{name} = {text}")
        if tensor.dtype == "bf16":
            self.writer.line(scope, "if INTERPRETED:")
            self.writer.line(scope, f"    {name} = {name}.to(tl.float32)")


def _blocks(tensor: Attention, *, is_interpreted: bool) -> Blocks:
    """Return block sizes: as many rows and keys as the registers and shared memory of a multiprocessor hold."""
    width, columns = (power_of_two(int(each.shape[-1])) for each in (tensor.query, tensor))
    is_half = tensor.query.dtype in HALVES
    if is_interpreted:
        rows, keys = 256, 256
    elif is_half:
        rows, keys = (128, 64) if max(width, columns) <= 128 else (128, 32)
    else:
        rows, keys = (64, 16) if max(width, columns) <= 128 else (32, 16)
    sizes = {
        "BM": max(16, _within(tensor.shape[-2], rows)),
        "BK": max(16, _within(tensor.dots.shape[-1], keys)),
        "BN": max(16, columns),
        "BD": max(16, width),
    }
    return Blocks(sizes, warps=8 if sizes["BM"] >= 64 else 4)


def _tiling(tensor: Attention) -> Tiling:
    """Return how attention uses its blocks: queries, scores and the total stay in registers."""
    itemsize = ITEMSIZES[tensor.query.dtype]
    held = (Tile(("BM", "BN"), 4), Tile(("BM", "BK"), 4))
    staged = (Tile(("BK", "BD"), itemsize), Tile(("BK", "BN"), itemsize))
    return Tiling({"BM": tensor.shape[-2]}, {"BK": tensor.dots.shape[-1]}, held, staged, least=16)


def _within(size: Size, most: int) -> int:
    return min(most, power_of_two(size)) if is_static(size) else most
