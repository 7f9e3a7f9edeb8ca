"""Calls of BladeDISC's own compiler, `disc_compiler_main`, by its command line, and reading of its output files.

Those files need BladeDISC's runtime library (RAL) to run, which no wheel ships and the hub does not drive. So they only
show that the cluster compiles there, and are kept for people; calls run the machine code of DISC's own compiler.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hub.plugin import CompileError

from .compiler import NAME, ROOM_HINT
from .logs import where_kept
from .settings import Settings

PROGRAM = "disc_compiler_main"
ELIDE = "--mlir-elide-elementsattrs-if-larger=8"
"""The flag that shortens constants in its log, not in the compiled program."""
MULTI = "--multi-cc-support"
CANNOT_RUN = "calls run DISC's own code: that compiler's needs BladeDISC's RAL library, which the hub does not drive"
PROGRAM_FILE = "cluster.mhlo.mlir"
LIBRARY_FILE = "external.so"
METADATA_FILE = "external.so.pbtxt"
LOG_FILE = "external.log"
MAGIC = 0x1234567890ABCDEF
_WORD = struct.Struct("<Q")
_ELF = b"\x7fELF"
_ELF_HEADER = struct.Struct("<40sQ10xHH2x")
"""The 64-bit ELF header: other fields; then the offset of the section table, the size of an entry, their number."""


@dataclass(frozen=True)
class Constant:
    """A constant that a program reads while it runs."""

    key: str
    is_host: bool
    data: bytes


@dataclass(frozen=True)
class Foreign:
    """The result of the external compiler for a cluster."""

    program: str
    """The MHLO that was compiled."""
    library: bytes
    metadata: bytes
    constants: tuple[Constant, ...]
    log: str

    def dump(self, folder: Path) -> None:
        """Write the program, both files and the log."""
        (folder / PROGRAM_FILE).write_text(self.program)
        (folder / LIBRARY_FILE).write_bytes(self.library)
        (folder / METADATA_FILE).write_bytes(self.metadata)
        (folder / LOG_FILE).write_text(self.log)

    @classmethod
    def read(cls, folder: Path) -> Foreign | None:
        """Return what `dump` wrote, None if it wrote nothing. Raise OSError or ValueError if the files are corrupt."""
        if not (folder / METADATA_FILE).is_file():
            return None
        metadata = (folder / METADATA_FILE).read_bytes()
        return cls(
            (folder / PROGRAM_FILE).read_text(),
            (folder / LIBRARY_FILE).read_bytes(),
            metadata,
            constants_in(metadata),
            (folder / LOG_FILE).read_text(),
        )


def compile_program(text: str, settings: Settings) -> Foreign:
    """Compile a program by the compiler that the settings name, and return its files, read and checked.

    Raise CompileError if the compiler is missing, fails, hangs, or writes anything but two complete files, or if the disk
    is full. Only the log is kept then.
    """
    compiler = shutil.which(settings.compiler)
    if compiler is None:
        hint = "correct HUB_DISC_COMPILER, or leave it out: DISC has a compiler of its own"
        raise CompileError(f"{settings.compiler} is not a program that can be run", backend=NAME, hint=hint)
    try:
        with tempfile.TemporaryDirectory(prefix="disc-") as name:
            folder = Path(name)
            source, library, log = folder / "in.mlir", folder / "out.so", folder / "log"
            source.write_text(text)
            failure = _run([compiler, str(source), str(library), *_flags(settings)], log, settings)
            output = log.read_text(errors="replace")
            found = failure or _read(text, library, output)
    except OSError as error:
        raise CompileError(f"{compiler} could not be run: {error}", backend=NAME, hint=ROOM_HINT) from error
    if isinstance(found, Foreign):
        return found
    kept = where_kept(output, settings.log_dir, f"{PROGRAM}-")
    raise CompileError(f"{compiler} {found}; {kept}", backend=NAME)


def environment(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for the compiler."""
    found = {
        **environ,
        "TAO_MLIR_ENABLE_AMP": str(settings.enable_amp).lower(),
        "DISC_CPU_FAST_MATH_LEVEL": str(settings.cpu_fast_math_level),
    }
    return {**found, "TF_CPP_VMODULE": "disc_compiler=1"} if settings.debug_log else found


def constants_in(data: bytes) -> tuple[Constant, ...]:
    """Return the constants in a `.so.pbtxt`, which is not a protobuf. Raise ValueError, with the place, if it is corrupt.

    It holds a magic number; for each constant a bool (is it for the host?), a length and the key, a length and the data;
    and, last, the number of constants. Numbers are little-endian and have 64 bits.
    """
    if len(data) < 2 * _WORD.size or _WORD.unpack_from(data)[0] != MAGIC:
        raise ValueError("it does not begin with the magic number")
    (count,) = _WORD.unpack_from(data, len(data) - _WORD.size)
    body, place = memoryview(data)[: -_WORD.size], _WORD.size
    found: list[Constant] = []
    while place < len(body):
        if body[place] > 1:
            raise ValueError(f"byte {place} is {body[place]}, a bool expected")
        is_host = bool(body[place])
        key, place = _counted(body, place + 1)
        content, place = _counted(body, place)
        found.append(Constant(key.decode(), is_host, content))
    if len(found) != count:
        raise ValueError(f"it holds {len(found)} constants and says {count}")
    if len({constant.key for constant in found}) != count:
        raise ValueError("two constants have the same key")
    return tuple(found)


def _counted(body: memoryview, place: int) -> tuple[bytes, int]:
    """Return length-prefixed bytes, and the position after them."""
    if place + _WORD.size > len(body):
        raise ValueError(f"it ends at byte {len(body)}, within a length")
    (size,) = _WORD.unpack_from(body, place)
    begin = place + _WORD.size
    if size > len(body) - begin:
        raise ValueError(f"it ends at byte {len(body)}, {size} bytes from {begin} on expected")
    return bytes(body[begin : begin + size]), begin + size


def _flags(settings: Settings) -> list[str]:
    return [ELIDE, MULTI] if settings.compile_for_multi_cuda_targets else [ELIDE]


def _run(command: list[str], log: Path, settings: Settings) -> str:
    """Run the compiler with all its output in a file; return its failure, "" if none. Raise OSError if it cannot be run."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(settings, os.environ),
        )  # in this process's group, which the hub kills to end a worker and all that it started
        try:
            status = process.wait(settings.compiler_timeout_s)
        except BaseException as error:
            _end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"did not end within {settings.compiler_timeout_s:g} s"
    return f"ended with status {status}" if status else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants, as far as the system lists them."""
    for pid in (*_descendants(process.pid), process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:  # the task has ended
            continue
        for child in children:
            yield from _descendants(child)
            yield child


def _read(text: str, library: Path, log: str) -> Foreign | str:
    """Return both files, or the problem with them."""
    metadata = library.with_name(f"{library.name}.pbtxt")
    for path in (library, metadata):
        if not path.is_file():
            return f"wrote no {path.name}"
    content, facts = library.read_bytes(), metadata.read_bytes()
    if not content.startswith(_ELF):
        return f"wrote an {library.name} that is not a shared library"
    if not _is_whole(content):
        return f"wrote an {library.name} that is cut off at byte {len(content)}"
    try:
        return Foreign(text, content, facts, constants_in(facts), log)
    except ValueError as error:
        return f"wrote an {metadata.name} that cannot be read: {error}"


def _is_whole(content: bytes) -> bool:
    """Return False if an ELF file ends before its section table, which linkers write last: the disk was full."""
    if len(content) < _ELF_HEADER.size:
        return False
    _, place, size, count = _ELF_HEADER.unpack_from(content)
    return place + size * count <= len(content)
