"""A writer of functions in MLIR's text form: nested blocks; each value goes as far out as its operands allow."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from hub.toolkit.sizes import Size

from .frame import Frame

SCALAR = {
    "f64": "f64",
    "f32": "f32",
    "f16": "f16",
    "bf16": "i16",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "u8": "i8",
    "i1": "i1",
}
"""dtype -> MLIR's type of a value. A bfloat16 is held as its bits: for LLVM's own type, LLVM calls a function on most CPUs
that is not linked."""

_FLOAT16_END = 65520.0
"""The least number that rounds to infinity in float16."""


@dataclass(frozen=True)
class Value:
    """One SSA value: a scalar, or a vector of the kernel's lanes."""

    name: str
    dtype: str
    is_wide: bool
    level: int
    """The depth of the block that defines it."""


@dataclass
class Block:
    """An open block: its lines so far, and the values known in it."""

    header: str
    lines: list[str] = field(default_factory=list[str])
    known: dict[Hashable, Value] = field(default_factory=dict[Hashable, Value])


class Writer:
    """A builder of one function."""

    def __init__(self, frame: Frame, lanes: int, *, rows: int = 1) -> None:
        self.frame = frame
        self.natural = lanes
        """The number of float32 elements in one register."""
        self.lanes = lanes * rows
        """The number of elements in one vector, which may be several registers."""
        self.blocks: list[Block] = []
        self._count = 0

    # --- blocks ---

    @property
    def level(self) -> int:
        """The depth of the innermost open block."""
        return len(self.blocks) - 1

    def open(self, header: str) -> None:
        """Begin a block inside the innermost one."""
        self.blocks.append(Block(header))

    def close(self, *last: str) -> None:
        """End the innermost block and put it into the one around it."""
        block = self.blocks.pop()
        text = "\n".join((block.header + " {", *block.lines, *last, "}"))
        self.blocks[-1].lines.append(text)

    def begin_part(self) -> None:
        """Begin a part of the innermost block in which values of other parts are not known."""
        self.blocks.append(Block(""))

    def end_part(self) -> None:
        """End a part; its lines follow those of the block."""
        block = self.blocks.pop()
        self.blocks[-1].lines.extend(block.lines)

    def finish(self) -> str:
        """End the function and return its text."""
        (block,) = self.blocks
        self.blocks = []
        return "\n".join((block.header + " {", *block.lines, "llvm.return", "}"))

    def line(self, text: str) -> None:
        """Add a line to the innermost block."""
        self.blocks[-1].lines.append(text)

    def fresh(self) -> str:
        """Return a new name."""
        self._count += 1
        return f"%v{self._count}"

    # --- values ---

    def type_of(self, dtype: str, *, is_wide: bool) -> str:
        """Return MLIR's type of a value."""
        return self.vector(dtype) if is_wide else SCALAR[dtype]

    def vector(self, dtype: str) -> str:
        """Return the type of a vector of all lanes."""
        return f"vector<{self.lanes}x{SCALAR[dtype]}>"

    def put(self, operation: str, dtype: str, *, is_wide: bool, level: int, key: Hashable = None) -> Value:
        """Add an operation to the block at a level, unless an equal one is known there."""
        key = (operation, dtype) if key is None else key
        if found := self.known(key):
            return found
        value = Value(self.fresh(), dtype, is_wide, level)
        self.blocks[level].lines.append(f"{value.name} = {operation}")
        self.blocks[level].known[key] = value
        return value

    def known(self, key: Hashable) -> Value | None:
        """Return the value that an open block knows under a key, None if there is none."""
        return next((block.known[key] for block in reversed(self.blocks) if key in block.known), None)

    def note(self, key: Hashable, value: Value) -> None:
        """Register a value under a key, in the block that defines it."""
        self.blocks[value.level].known[key] = value

    def constant(self, value: float, dtype: str, *, is_wide: bool = False) -> Value:
        """Return a constant."""
        text = literal(value, dtype)
        shown = f"dense<{text}>" if is_wide else text
        kind = self.type_of(dtype, is_wide=is_wide)
        if dtype == "i1" and not is_wide:
            return self.put(f"arith.constant {text}", dtype, is_wide=False, level=0)
        return self.put(f"arith.constant {shown} : {kind}", dtype, is_wide=is_wide, level=0)

    def number(self, size: Size) -> Value:
        """Return a size as an i64."""
        return self.constant(size, "i64") if isinstance(size, int) else self.slot(self.frame.size(size), "i64")

    def slot(self, place: int, kind: str) -> Value:
        """Return the value of a slot of the frame, as "i64", "f64" or "!llvm.ptr"."""
        at = self.put(f"llvm.getelementptr %frame[{place}] : (!llvm.ptr) -> !llvm.ptr, i64", "ptr", is_wide=False, level=0)
        return self.put(f"llvm.load {at.name} : !llvm.ptr -> {kind}", kind, is_wide=False, level=0)

    def scalar(self, operation: str, *arguments: Value) -> Value:
        """Return integer arithmetic on i64, as far out as its arguments allow."""
        level = max(argument.level for argument in arguments)
        names = ", ".join(argument.name for argument in arguments)
        return self.put(f"{operation} {names} : i64", "i64", is_wide=False, level=level)

    def wide(self, value: Value) -> Value:
        """Return a value broadcast to all lanes."""
        if value.is_wide:
            return value
        text = f"vector.broadcast {value.name} : {SCALAR[value.dtype]} to {self.vector(value.dtype)}"
        return self.put(text, value.dtype, is_wide=True, level=value.level)

    def loop(
        self,
        start: Value,
        end: Value,
        step: Value,
        carried: Sequence[tuple[str, str]],
        body: Callable[[Value, list[str]], list[str]],
    ) -> list[str]:
        """Write a loop and return the names of its results.

        `carried` are pairs (first value, type). `body` takes the index and the carried names, and returns the next ones.
        """
        index = self.fresh()
        names = [self.fresh() for _ in carried]
        result = self.fresh()
        kinds = ", ".join(kind for _, kind in carried)
        head = f"scf.for {index} = {start.name} to {end.name} step {step.name}"
        if carried:
            pairs = ", ".join(f"{name} = {first}" for name, (first, _) in zip(names, carried, strict=True))
            head = f"{result}:{len(carried)} = {head} iter_args({pairs}) -> ({kinds})"
        self.open(f"{head} : i64")
        following = body(Value(index, "i64", False, self.level), names)
        self.close(*([f"scf.yield {', '.join(following)} : {kinds}"] if carried else []))
        return [f"{result}#{place}" for place in range(len(carried))]

    def branch(
        self,
        condition: Value,
        carried: Sequence[tuple[str, str]],
        body: Callable[[list[str]], list[str]],
        otherwise: Callable[[list[str]], list[str]] | None = None,
    ) -> list[str]:
        """Write a branch on a condition, with an optional else branch, and return the names of its results.

        `carried` are pairs (value, type); both branches may replace the values.
        """
        result = self.fresh()
        kinds = ", ".join(kind for _, kind in carried)
        names = [name for name, _ in carried]
        header = f"scf.if {condition.name}"
        ways = [(f"{result}:{len(carried)} = {header} -> ({kinds})" if carried else header, body)]
        if carried or otherwise is not None:
            ways.append((" else", otherwise or list))
        written: list[str] = []
        for header, way in ways:
            self.blocks.append(Block(header))
            following = way(names)
            if carried:
                self.line(f"scf.yield {', '.join(following)} : {kinds}")
            block = self.blocks.pop()
            written.append("\n".join((block.header + " {", *block.lines, "}")))
        self.line("".join(written))
        return [f"{result}#{place}" for place in range(len(carried))]

    def is_less(self, left: Value, right: Value) -> Value:
        """Return left < right for two i64."""
        level = max(left.level, right.level)
        return self.put(f"arith.cmpi slt, {left.name}, {right.name} : i64", "i1", is_wide=False, level=level)


def literal(value: float, dtype: str) -> str:
    """Return MLIR's text for a number of a dtype."""
    if dtype == "i1":
        return "true" if value else "false"
    if dtype == "f64":
        return f"0x{_bits('d', value):016X}"
    if dtype == "f32":
        return f"0x{_bits('f', _as_float32(value)):08X}"
    if dtype == "f16":
        return f"0x{_bits('e', _as_float16(value)):04X}"
    if dtype == "bf16":
        return f"0x{_bits_of_bfloat16(value):04X}"
    return str(int(value))


def _bits(form: str, value: float) -> int:
    packed = struct.pack(f"<{form}", value)
    return int.from_bytes(packed, "little")


def _bits_of_bfloat16(value: float) -> int:
    if math.isnan(value):
        return 0x7FC0
    bits = _bits("f", _as_float32(value))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _as_float32(number: float) -> float:
    """Return a number rounded to float32: larger ones become infinite, as in PyTorch's kernels."""
    return ctypes.c_float(number).value


def _as_float16(number: float) -> float:
    """Return a number with those beyond float16's range as infinities."""
    return math.copysign(math.inf, number) if abs(number) >= _FLOAT16_END else number
