"""Compiles the text of a machine program: by MLIR and LLVM to an object file, and by `cc` to a shared library.

Where there is no `cc`, the code stays in MLIR's execution engine, in this process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.errors import CompileError

from .loops.program import ENTRY

NAME = "disc"
PASSES = (
    "builtin.module(convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    "convert-cf-to-llvm,reconcile-unrealized-casts)"
)
LINK_S = 60.0
"""Seconds after which a linker counts as hanging."""


@dataclass(frozen=True)
class Code:
    """Machine code that is loaded, with what keeps it alive."""

    run: Callable[[Any], None]
    """Takes a frame."""
    library: bytes | None
    """The shared library, for saving; None where there was no `cc`."""
    keeper: Any


def compile_text(text: str) -> Code:
    """Gives the machine code of a program. Raises CompileError."""
    engine = _engine(text)
    linker = _linker()
    if linker is None:
        address = engine.raw_lookup(ENTRY)
        if not address:
            raise CompileError(f"MLIR's execution engine has no {ENTRY}", backend=NAME)
        packed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        return Code(_unpacked(packed), None, engine)
    with tempfile.TemporaryDirectory(prefix="disc-") as folder:
        library = _linked(engine, linker, Path(folder))
        return loaded(library.read_bytes(), library)


def shared_library(text: str, needed: Sequence[Path] = ()) -> bytes:
    """Gives a shared library that needs some others, whose functions the program calls by name. Raises CompileError."""
    linker = _linker()
    if linker is None:
        hint = "install a C compiler, or name one in the variable CC"
        raise CompileError(f"there is no {os.environ.get('CC') or 'cc'} to link with", backend=NAME, hint=hint)
    engine = _engine(text, needed)
    with tempfile.TemporaryDirectory(prefix="disc-") as folder:
        return _linked(engine, linker, Path(folder), needed).read_bytes()


def _linker() -> str | None:
    return shutil.which(os.environ.get("CC", "") or "cc")


def _engine(text: str, needed: Sequence[Path] = ()) -> Any:
    from torch_mlir import ir  # heavy, and only compiling needs it
    from torch_mlir.execution_engine import ExecutionEngine

    try:
        with ir.Context() as context:
            module = lowered_module(text, context)
            return ExecutionEngine(module, opt_level=3, enable_object_dump=True, shared_libs=[str(each) for each in needed])
    except Exception as error:
        raise CompileError(f"MLIR refused the program: {str(error)[:2000]}", backend=NAME) from error


def lowered_module(text: str, context: Any) -> Any:
    """Gives a program as a module of MLIR's LLVM dialect, in a context that is entered. Raises what MLIR raises."""
    from torch_mlir import ir
    from torch_mlir.passmanager import PassManager

    context.enable_multithreading(False)
    module = ir.Module.parse(f"module {{\n{text}\n}}")
    PassManager.parse(PASSES).run(module.operation)
    return module


def _unpacked(packed: Any) -> Callable[[Any], None]:
    """The engine's entry takes an array of addresses of the arguments."""

    def run(frame: Any) -> None:
        address = ctypes.c_void_p(ctypes.addressof(frame))
        packed((ctypes.c_void_p * 1)(ctypes.addressof(address)))

    return run


def _linked(engine: Any, linker: str, folder: Path, needed: Sequence[Path] = ()) -> Path:
    objects, library = folder / "k.o", folder / "k.so"
    try:
        objects.write_bytes(_object_code(engine))
        command = [linker, "-shared", "-nostdlib", "-Wl,-z,notext,--no-warnings", "-o", str(library), str(objects)]
        for each in needed:
            command += [f"-L{each.parent}", f"-l:{each.name}", f"-Wl,-rpath,{each.parent}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LINK_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        hint = "see that the disk has room and that the compiler driver can be run"
        raise CompileError(f"{linker} could not be run on the object file: {error}", backend=NAME, hint=hint) from error
    if done.returncode or not library.is_file():
        tail = done.stderr.strip()[-500:]
        raise CompileError(f"{linker} ended with status {done.returncode}: {tail}", backend=NAME)
    return library


def _object_code(engine: Any) -> bytes:
    """Gives the object file, written into memory: on a full disk LLVM would end the process. Raises OSError."""
    with os.fdopen(os.memfd_create("disc"), "rb") as memory:
        engine.dump_to_object_file(f"/proc/self/fd/{memory.fileno()}")
        content = memory.read()
    if not content:
        raise CompileError("LLVM wrote no object file", backend=NAME)
    return content


def loaded(content: bytes, path: Path) -> Code:
    """Loads a shared library, which may then be deleted. Raises CompileError."""
    try:
        library = ctypes.CDLL(str(path))
        run = getattr(library, ENTRY)
    except (OSError, AttributeError) as error:
        raise CompileError(f"{path} cannot be loaded: {error}", backend=NAME) from error
    run.restype = None
    run.argtypes = [ctypes.c_void_p]
    return Code(run, content, library)
