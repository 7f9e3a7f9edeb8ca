"""The C interface of a compiled program, written in MLIR's text form.

```c
int64_t disc_call(void *const *inputs, const int64_t *sizes, void *const *outputs, void *workspace);
int64_t disc_workspace(void *const *inputs, const int64_t *sizes);
void disc_shapes(void *const *inputs, const int64_t *sizes, int64_t *found);
```

Inputs and outputs are packed and row-major; `sizes` are those of all inputs, one input after the other. `disc_call`
returns 0; 1 if an index was out of range, and the content of the outputs is then undefined; 2 if the sizes are not those
that were compiled. Its workspace is 64-byte aligned and has as many bytes as `disc_workspace` returns. `disc_shapes`
writes the sizes of all outputs. The functions may be called from several threads at once.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hub.toolkit.sizes import Size, python_text

from .loops.program import ENTRY, MachineProgram

CALL, WORKSPACE, SHAPES = "disc_call", "disc_workspace", "disc_shapes"
DONE, OUT_OF_RANGE, WRONG_SIZES = 0, 1, 2


@dataclass(frozen=True)
class Face:
    """The inputs and outputs of a program, as far as callers have to know."""

    inputs: Sequence[tuple[Sequence[Size], str]]
    """Shape and dtype of each."""
    outputs: Sequence[tuple[Sequence[Size], str]]
    symbols: Mapping[Any, str]
    """Size -> "zN", the N-th of all sizes of inputs, or "nN", the value of input N."""


def entry_text(program: MachineProgram, face: Face, constants: Mapping[str, bytes]) -> str:
    """Return the text of the three functions, constants, and declarations of the called functions of PyTorch's library."""
    parts = [f"llvm.func @{name}()" for name in program.functions]
    parts += [_constant(name, data) for name, data in constants.items()]
    parts += [_call(program, face), _workspace(program, face), _shapes(face)]
    return "\n".join(parts)


def _constant(name: str, data: bytes) -> str:
    return (
        f'llvm.mlir.global internal constant @{name}(dense<"0x{data.hex()}"> : tensor<{len(data)}xi8>)'
        f" {{addr_space = 0 : i32, alignment = 64 : i64}} : !llvm.array<{len(data)} x i8>"
    )


def _call(program: MachineProgram, face: Face) -> str:
    body = _Body(face)
    head = f"llvm.func @{CALL}(%inputs: !llvm.ptr, %sizes: !llvm.ptr, %outputs: !llvm.ptr, %workspace: !llvm.ptr) -> i64 {{"
    is_wrong = _wrong_sizes(body, face)
    body.line(f"%code = scf.if {is_wrong} -> (i64) {{")
    body.line(f"scf.yield {body.number(WRONG_SIZES)} : i64")
    body.line("} else {")
    body.line(f"%frame = llvm.alloca {body.number(len(program.slots))} x i64 : (i64) -> !llvm.ptr")
    for place, text in enumerate(program.slots):
        value = body.value(text)
        at = body.put(f"llvm.getelementptr %frame[{place}] : (!llvm.ptr) -> !llvm.ptr, i64")
        body.line(f"llvm.store {value}, {at} : i64, !llvm.ptr")
    body.line(f"llvm.call @{ENTRY}(%frame) : (!llvm.ptr) -> ()")
    body.line(f"scf.yield {body.put('llvm.load %frame : !llvm.ptr -> i64')} : i64")
    body.line("}")
    return "\n".join((head, *body.lines, "llvm.return %code : i64", "}"))


def _wrong_sizes(body: _Body, face: Face) -> str:
    """Write the comparison of every input size with the compiled one; return the name of "some size is wrong"."""
    is_wrong = body.put("arith.constant false")
    texts = [python_text(size, face.symbols) for shape, _ in face.inputs for size in shape]
    for place, text in enumerate(texts):
        if text == f"z{place}":  # the symbol of this very size
            continue
        values = f"{body.value(f'z{place}')}, {body.value(text)}"
        differs = body.put(f"arith.cmpi ne, {values} : i64")
        is_wrong = body.put(f"arith.ori {is_wrong}, {differs} : i1")
    return is_wrong


def _workspace(program: MachineProgram, face: Face) -> str:
    body = _Body(face)
    head = f"llvm.func @{WORKSPACE}(%inputs: !llvm.ptr, %sizes: !llvm.ptr) -> i64 {{"
    value = body.value(program.workspace)
    return "\n".join((head, *body.lines, f"llvm.return {value} : i64", "}"))


def _shapes(face: Face) -> str:
    body = _Body(face)
    head = f"llvm.func @{SHAPES}(%inputs: !llvm.ptr, %sizes: !llvm.ptr, %found: !llvm.ptr) {{"
    for place, size in enumerate(size for shape, _ in face.outputs for size in shape):
        value = body.value(python_text(size, face.symbols))
        at = body.put(f"llvm.getelementptr %found[{place}] : (!llvm.ptr) -> !llvm.ptr, i64")
        body.line(f"llvm.store {value}, {at} : i64, !llvm.ptr")
    return "\n".join((head, *body.lines, "llvm.return", "}"))


_OPERATIONS: dict[type[ast.operator], str] = {ast.Add: "arith.addi", ast.Sub: "arith.subi", ast.Mult: "arith.muli"}
_EXTREMES = {"max": "arith.maxsi", "min": "arith.minsi", "Max": "arith.maxsi", "Min": "arith.minsi"}


class _Body:
    """The lines of one function. It turns the Python texts of a frame's slots into arithmetic on i64."""

    def __init__(self, face: Face) -> None:
        self.lines: list[str] = []
        self._face = face
        self._count = 0

    def line(self, text: str) -> None:
        self.lines.append(text)

    def put(self, operation: str) -> str:
        self._count += 1
        self.lines.append(f"%e{self._count} = {operation}")
        return f"%e{self._count}"

    def number(self, value: int) -> str:
        return self.put(f"arith.constant {value} : i64")

    def value(self, text: str) -> str:
        """Return the value of a Python expression. Raise ValueError if no slot holds such an expression."""
        return self._of(ast.parse(text, mode="eval").body)

    def _of(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=int(value)):
                return self.number(value)
            case ast.Name(id="w"):
                return self.put("llvm.ptrtoint %workspace : !llvm.ptr to i64")
            case ast.Name(id=name):
                return self._named(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.put(f"arith.subi {self.number(0)}, {self._of(operand)} : i64")
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))):
                return self._power(self._of(left), power)
            case ast.BinOp(left=left, op=operation, right=right):
                return self._two(operation, self._of(left), self._of(right))
            case ast.Call(func=ast.Name(id="int"), args=[inner]):
                return self._of(inner)
            case ast.Call(func=ast.Name(id=name), args=[first, *rest]) if name in _EXTREMES:
                value = self._of(first)
                for each in rest:
                    value = self.put(f"{_EXTREMES[name]} {value}, {self._of(each)} : i64")
                return value
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="data_ptr")):
                return self._address(name)
            case ast.Subscript(value=ast.Name(id="address"), slice=ast.Constant(value=name)):
                return self._integer(self.put(f"llvm.mlir.addressof @{name} : !llvm.ptr"))
            case _:
                raise ValueError(f"{ast.unparse(node)} is not a number that C callers can give")

    def _two(self, operation: ast.operator, left: str, right: str) -> str:
        if type(operation) in _OPERATIONS:
            return self.put(f"{_OPERATIONS[type(operation)]} {left}, {right} : i64")
        if not isinstance(operation, (ast.FloorDiv, ast.Mod)):
            raise ValueError(f"{type(operation).__name__} of sizes")
        quotient = self.put(f"arith.divsi {left}, {right} : i64")
        rest = self.put(f"arith.remsi {left}, {right} : i64")
        is_below = self.put(f"arith.cmpi slt, {rest}, {self.number(0)} : i64")  # divisors are positive
        if isinstance(operation, ast.Mod):
            return self.put(f"arith.select {is_below}, {self.put(f'arith.addi {rest}, {right} : i64')}, {rest} : i64")
        lower = self.put(f"arith.subi {quotient}, {self.number(1)} : i64")
        return self.put(f"arith.select {is_below}, {lower}, {quotient} : i64")

    def _power(self, base: str, power: int) -> str:
        value = base
        for _ in range(power - 1):
            value = self.put(f"arith.muli {value}, {base} : i64")
        return value

    def _named(self, name: str) -> str:
        place = int(name[1:])
        if name.startswith("z"):
            at = self.put(f"llvm.getelementptr %sizes[{place}] : (!llvm.ptr) -> !llvm.ptr, i64")
            return self.put(f"llvm.load {at} : !llvm.ptr -> i64")
        at = self._element("%inputs", place)
        kind = self._face.inputs[place][1]
        value = self.put(f"llvm.load {at} : !llvm.ptr -> {kind}")
        return value if kind == "i64" else self.put(f"arith.extsi {value} : {kind} to i64")

    def _address(self, name: str) -> str:
        if name.startswith("c"):
            return self._integer(self.put(f"llvm.mlir.addressof @{name} : !llvm.ptr"))
        return self._integer(self._element("%inputs" if name.startswith("i") else "%outputs", int(name[1:])))

    def _element(self, array: str, place: int) -> str:
        at = self.put(f"llvm.getelementptr {array}[{place}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        return self.put(f"llvm.load {at} : !llvm.ptr -> !llvm.ptr")

    def _integer(self, pointer: str) -> str:
        return self.put(f"llvm.ptrtoint {pointer} : !llvm.ptr to i64")
