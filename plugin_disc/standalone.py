"""`disc-compile`: DISC's compiler as a standalone program, with the command line of BladeDISC's `disc_compiler_main`."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from hub.plugin import CompileError, OptionError
from hub.toolkit.builders import with_own_memory
from hub.toolkit.sizes import Size
from hub.toolkit.tensors import Tensor

from .addresses import library_path
from .compiler import NAME, shared_library
from .entry import Face, entry_text
from .external import MAGIC, constants_in
from .fastmath import with_fast_math
from .hlo.reader import HloProgram, read
from .loops.machine import lanes
from .loops.program import machine_program
from .settings import Settings

KEY = "disc_program"
"""The key of the library's signature in `out.so.pbtxt`."""
MULTI_REFUSED = (
    "--multi-cc-support: DISC's own compiler writes code for this processor only; run it once on each kind of machine"
)


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a compiled library, and how it was compiled, for callers."""

    inputs: tuple[tuple[tuple[int | None, ...], str], ...]
    """The sizes, None for those that are dynamic, and the dtype of each."""
    outputs: tuple[tuple[tuple[int | None, ...], str], ...]
    lanes: int
    """The number of float32 in one vector register; a machine with fewer cannot run the code."""
    threads: int
    fast_math_level: int
    enable_amp: bool
    digest: str
    """The SHA-256 of the library."""

    def described(self) -> str:
        """Return the types of inputs and outputs, for people."""
        sides = (", ".join(_typed(*each) for each in side) for side in (self.inputs, self.outputs))
        return " -> ".join(sides)

    def written(self) -> bytes:
        """Return the bytes of `out.so.pbtxt`, in BladeDISC's format for constants."""
        key, data = KEY.encode(), json.dumps(asdict(self)).encode()
        size = struct.Struct("<Q")
        return struct.pack("<Q?Q", MAGIC, True, len(key)) + key + size.pack(len(data)) + data + size.pack(1)

    @classmethod
    def read(cls, data: bytes) -> Signature:
        """Return the signature that `written` encoded. Raise ValueError if there is none."""
        facts: dict[str, Any] = next(
            (json.loads(each.data) for each in constants_in(data) if each.key == KEY), dict[str, Any]()
        )
        try:
            shapes = {name: tuple((tuple(shape), kind) for shape, kind in facts[name]) for name in ("inputs", "outputs")}
            given: dict[str, Any] = {**facts, **shapes}
            return cls(**given)
        except (KeyError, TypeError) as error:
            raise ValueError(f"it does not describe a library of disc-compile: {error}") from error


def _typed(shape: tuple[int | None, ...], kind: str) -> str:
    return f"{kind}[{', '.join('?' if size is None else str(size) for size in shape)}]"


@dataclass(frozen=True)
class Built:
    """A compiled program."""

    library: bytes
    signature: Signature
    text: str
    """The machine program."""


def compile_file(source: Path, library: Path, settings: Settings, *, threads: int) -> Signature:
    """Compile a program in StableHLO or MHLO, and write the library and its description: both files or none.

    Raise OptionError if `source` cannot be read, and CompileError if the program does not parse, if an operation is
    unsupported, if `cc` is missing or fails, or if the disk is full.
    """
    try:
        text = source.read_text()
    except (OSError, UnicodeDecodeError) as error:
        hint = "name a text file with a program in StableHLO or MHLO"
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise OptionError(f"{source} cannot be read: {words}", backend=NAME, hint=hint) from error
    try:
        built = compile_program_text(text, settings, threads=threads)
    except CompileError as error:
        error.message = f"{source}: {error.message}"
        raise
    _write_both(library, built)
    return built.signature


def compile_program_text(text: str, settings: Settings, *, threads: int) -> Built:
    """Compile a program in StableHLO or MHLO. Raise CompileError if it does not compile."""
    if not lanes():
        raise CompileError("this processor has neither AVX2 nor AVX-512", backend=NAME)
    program = read(text, enable_amp=settings.enable_amp)
    outputs: list[Tensor] = []
    for tensor in program.outputs:
        outputs.append(with_own_memory(tensor, outputs))
    try:
        machine = machine_program(
            outputs,
            inputs={name: f"{name}.data_ptr()" for name in (*_input_names(program), *program.constants)},
            symbols=program.symbols,
            lanes=lanes(),
            threads=threads,
        )
        face = Face(
            [(each.shape, each.kind) for each in program.inputs],
            [(each.shape, each.dtype) for each in outputs],
            program.symbols,
        )
        written = "\n".join((machine.text, entry_text(machine, face, program.constants)))
    except (ValueError, NotImplementedError, KeyError) as error:
        raise CompileError(f"the program cannot be lowered: {error}", backend=NAME) from error
    written = with_fast_math(written, settings.cpu_fast_math_level)
    library = shared_library(written, (library_path(),) if machine.functions else (), settings.log_dir)
    signature = Signature(
        inputs=tuple((_shown(each.shape), each.kind) for each in program.inputs),
        outputs=tuple((_shown(each.shape), each.dtype) for each in outputs),
        lanes=lanes(),
        threads=threads,
        fast_math_level=settings.cpu_fast_math_level,
        enable_amp=settings.enable_amp,
        digest=sha256(library).hexdigest(),
    )
    return Built(library, signature, written)


def _input_names(program: HloProgram) -> list[str]:
    return [f"i{place}" for place in range(len(program.inputs))]


def _shown(shape: Sequence[Size]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape)


# --- Files ------------------------------------------------------------------------------------------------------------


def metadata_path(library: Path) -> Path:
    """Return the path of a library's description."""
    return library.with_name(f"{library.name}.pbtxt")


def _write_both(library: Path, built: Built) -> None:
    """Write both files completely, or neither. Raise CompileError if they cannot be written."""
    metadata = metadata_path(library)
    try:
        with contextlib.ExitStack() as stack:
            partial = [
                _partial(each, content, stack)
                for each, content in ((metadata, built.signature.written()), (library, built.library))
            ]
            partial[0].replace(metadata)
            try:
                partial[1].replace(library)
            except OSError:
                metadata.unlink(missing_ok=True)
                raise
    except OSError as error:
        hint = "see that the folder is there, may be written to, and has room"
        raise CompileError(f"{library} cannot be written: {error.strerror or error}", backend=NAME, hint=hint) from error


def _partial(path: Path, content: bytes, stack: contextlib.ExitStack) -> Path:
    """Write a file next to its final path, under a name that is deleted unless renamed. Raise OSError if that fails."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    partial = Path(name)
    stack.callback(partial.unlink, missing_ok=True)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.chmod(0o644)
    return partial
