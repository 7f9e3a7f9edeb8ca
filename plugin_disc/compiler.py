"""Compilation of a machine program's text: by MLIR and LLVM to an object file, and by `cc` to a shared library.

Without a `cc`, the code stays in MLIR's execution engine, in this process.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.plugin import CompileError

from .bindings import bindings
from .logs import Log, logged
from .loops.program import ENTRY

NAME = "disc"
PASSES = (
    "builtin.module(convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    "convert-cf-to-llvm,reconcile-unrealized-casts)"
)
ROOM_HINT = "see that the disk has room and that the compiler driver can be run"
LINK_S = 60.0
"""Timeout of the linker in seconds."""


@dataclass(frozen=True)
class Code:
    """Loaded machine code, with the object that keeps it alive."""

    run: Callable[[Any], None]
    """The code's entry, which takes a frame."""
    library: bytes | None
    """The shared library, for saving; None if there was no `cc`."""
    keeper: Any
    log: str = ""
    """The output of MLIR, LLVM and the linker."""


def compile_text(text: str, log_dir: str = "") -> Code:
    """Return the machine code of a program. Raise CompileError if it does not compile; the log is kept in `log_dir`."""
    with logged(log_dir) as log:
        engine = _engine(text, log)
        linker = _linker()
        if linker is None:
            log.say("there is no cc: the code stays in MLIR's execution engine")
            address = engine.raw_lookup(ENTRY)
            if not address:
                raise CompileError(f"MLIR's execution engine has no {ENTRY}", backend=NAME)
            packed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
            return Code(_unpacked(packed), None, engine, log.text)
        with _scratch() as folder:
            library = _linked(engine, linker, folder, log)
            return loaded(_content(library), library, log.text)


def shared_library(text: str, needed: Sequence[Path] = (), log_dir: str = "") -> bytes:
    """Return a shared library that is linked to the `needed` ones, whose functions the program calls by name.

    Raise CompileError if the program does not compile; the log is kept in `log_dir`.
    """
    linker = _linker()
    if linker is None:
        hint = "install a C compiler, or name one in the variable CC"
        raise CompileError(f"there is no {os.environ.get('CC') or 'cc'} to link with", backend=NAME, hint=hint)
    with logged(log_dir) as log:
        engine = _engine(text, log, needed)
        with _scratch() as folder:
            return _content(_linked(engine, linker, folder, log, needed))


@contextmanager
def _scratch() -> Generator[Path]:
    """Yield a temporary folder. Raise CompileError if none can be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="disc-")
    except OSError as error:
        raise CompileError(f"no temporary folder can be made: {error}", backend=NAME, hint=ROOM_HINT) from error
    with folder as name:
        yield Path(name)


def _content(library: Path) -> bytes:
    try:
        return library.read_bytes()
    except OSError as error:
        raise CompileError(f"{library} cannot be read: {error}", backend=NAME) from error


def _linker() -> str | None:
    return shutil.which(os.environ.get("CC", "") or "cc")


def _engine(text: str, log: Log, needed: Sequence[Path] = ()) -> Any:
    engine = bindings("execution_engine").ExecutionEngine
    try:
        with bindings("ir").Context() as context, _heard(context, log):
            log.say(f"passes: {PASSES}")
            module = lowered_module(text, context)
            log.say("machine code by LLVM")
            return engine(module, opt_level=3, enable_object_dump=True, shared_libs=[str(each) for each in needed])
    except Exception as error:
        log.say(f"{type(error).__name__}: {error}")
        raise CompileError(f"MLIR refused the program: {str(error)[:2000]}", backend=NAME) from error


@contextmanager
def _heard(context: Any, log: Log) -> Generator[None]:
    """Log MLIR's diagnostics for a program, including warnings and remarks, which raise nothing."""

    def hear(diagnostic: Any) -> bool:
        log.say(f"{diagnostic.severity} {diagnostic.location}: {diagnostic.message}")
        return True

    handler = context.attach_diagnostic_handler(hear)
    try:
        yield
    finally:
        handler.detach()


def lowered_module(text: str, context: Any) -> Any:
    """Return a program as a module of MLIR's LLVM dialect, in an entered context. MLIR's exceptions pass through."""
    context.enable_multithreading(False)
    module = bindings("ir").Module.parse(f"module {{\n{text}\n}}")
    bindings("passmanager").PassManager.parse(PASSES).run(module.operation)
    return module


def _unpacked(packed: Any) -> Callable[[Any], None]:
    """Return the engine's entry as a function of a frame: the entry takes an array of its arguments' addresses."""

    def run(frame: Any) -> None:
        address = ctypes.c_void_p(ctypes.addressof(frame))
        packed((ctypes.c_void_p * 1)(ctypes.addressof(address)))

    return run


def _linked(engine: Any, linker: str, folder: Path, log: Log, needed: Sequence[Path] = ()) -> Path:
    objects, library = folder / "k.o", folder / "k.so"
    try:
        objects.write_bytes(_object_code(engine))
        command = [linker, "-shared", "-nostdlib", "-Wl,-z,notext,--no-warnings", "-o", str(library), str(objects)]
        for each in needed:
            command += [f"-L{each.parent}", f"-l:{each.name}", f"-Wl,-rpath,{each.parent}"]
        log.say(f"$ {shlex.join(command)}")
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LINK_S, check=False, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.say(_said(error))
        message = f"{linker} could not be run on the object file: {error}"
        raise CompileError(message, backend=NAME, hint=ROOM_HINT) from error
    log.say(done.stdout)
    log.say(f"status {done.returncode}")
    if done.returncode or not library.is_file():
        what = f"ended with status {done.returncode}" if done.returncode else "wrote no library"
        raise CompileError(f"{linker} {what}", backend=NAME, hint=ROOM_HINT)
    return library


def _said(error: Exception) -> str:
    """Return a linker's output up to the error, and the error."""
    said = error.output if isinstance(error, subprocess.TimeoutExpired) else None
    return f"{said.decode(errors='replace') if isinstance(said, bytes) else said or ''}\n{error}"


def _object_code(engine: Any) -> bytes:
    """Return the object file, written into memory: on a full disk LLVM would end the process. Raise OSError on failure."""
    with os.fdopen(os.memfd_create("disc"), "rb") as memory:
        engine.dump_to_object_file(f"/proc/self/fd/{memory.fileno()}")
        content = memory.read()
    if not content:
        raise CompileError("LLVM wrote no object file", backend=NAME)
    return content


def loaded(content: bytes, path: Path, log: str = "") -> Code:
    """Load a shared library, whose file may then be deleted. Raise CompileError if it cannot be loaded."""
    library = opened(path)
    run = function_of(library, ENTRY, path)
    run.restype = None
    run.argtypes = [ctypes.c_void_p]
    return Code(run, content, library, log)


def opened(path: Path) -> ctypes.CDLL:
    """Map a shared library while the result or one of its functions is held. Raise CompileError if it cannot be loaded."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileError(f"{path} cannot be loaded: {error}", backend=NAME) from error
    # Python never unmaps a library by itself. At exit it stays mapped: threads may still run its code.
    weakref.finalize(library, _ctypes.dlclose, library._handle).atexit = False
    return library


def function_of(library: ctypes.CDLL, name: str, path: Path) -> Any:
    """Return a function, which holds the library. Raise CompileError if the library has none of this name."""
    try:
        return library[name]  # attribute access would cache it on the library: a reference cycle
    except AttributeError as error:
        raise CompileError(f"{path} cannot be loaded: {error}", backend=NAME) from error
