"""A program below MLIR: LLVM's IR, the processor's instructions, and the hot loop among them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hub.plugin import CompileError

from .bindings import bindings
from .compiler import NAME, lowered_module

DISASSEMBLER = "objdump"
DISASSEMBLE_S = 60.0
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
_VECTOR = re.compile(r"%[xyz]mm\d")


def llvm_ir(text: str) -> str:
    """Return the LLVM IR of a program, before LLVM's own passes. Raise CompileError if it cannot be lowered."""
    with bindings("ir").Context() as context:
        return bindings("dialects.llvm").translate_module_to_llvmir(lowered_module(text, context).operation)


def instructions(library: Path) -> str:
    """Return a shared library's instructions. Raise CompileError if objdump is missing or fails."""
    program = shutil.which(DISASSEMBLER)
    if program is None:
        raise CompileError(f"{DISASSEMBLER} is not installed", backend=NAME)
    command = [program, "--disassemble", "--no-show-raw-insn", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DISASSEMBLE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompileError(f"{program} failed: {error}", backend=NAME) from error
    return done.stdout


def hot_loop(assembly: str) -> str:
    """Return the innermost loop with the most vector instructions, below its function's name; "" if there is no loop."""
    loops = [(name, loop) for name, body in _functions(assembly) for loop in _innermost(body)]
    if not loops:
        return ""
    name, loop = max(loops, key=lambda item: sum(bool(_VECTOR.search(line)) for line in item[1]))
    return "\n".join((f"<{name}>:", *loop, ""))


def _functions(assembly: str) -> list[tuple[str, list[str]]]:
    """Return the name and the instruction lines of each function."""
    found: list[tuple[str, list[str]]] = []
    for line in assembly.splitlines():
        if (head := _FUNCTION.match(line)) is not None:
            found.append((head[1], []))
        elif found and _INSTRUCTION.match(line):
            found[-1][1].append(line)
    return found


def _innermost(body: Sequence[str]) -> list[Sequence[str]]:
    """Return the innermost loops of a function: the lines from the target of a backward jump to the jump."""
    places: dict[int, int] = {}
    spans: list[tuple[int, int]] = []
    for place, line in enumerate(body):
        address, operation, operands = _INSTRUCTION.findall(line)[0]
        places[int(address, 16)] = place
        target = re.match(r"[0-9a-f]+", operands) if operation.startswith("j") else None
        if target is not None and int(target[0], 16) in places:
            spans.append((places[int(target[0], 16)], place))
    inner = [span for span in spans if not any(_is_within(other, span) for other in spans)]
    return [body[begin : end + 1] for begin, end in inner]


def _is_within(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one != other and other[0] <= one[0] and one[1] <= other[1]
