"""Calls BladeDISC's own compiler, `disc_compiler_main`, by its command line, and reads what it writes.

What it writes needs BladeDISC's runtime library (RAL) to run, which no wheel ships and the hub does not drive. So the
files show that the cluster compiles there, and are kept for people; calls run the machine code of DISC's own compiler.
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
"""Shortens what it logs, not what it compiles."""
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
"""Of 64 bits: what else it says; where its table of sections is, the size of an entry there, their number."""


@dataclass(frozen=True)
class Constant:
    """A constant that a program reads while it runs."""

    key: str
    is_host: bool
    data: bytes


@dataclass(frozen=True)
class Foreign:
    """What the external compiler made of a cluster."""

    program: str
    """The MHLO it was given."""
    library: bytes
    metadata: bytes
    constants: tuple[Constant, ...]
    log: str

    def dump(self, folder: Path) -> None:
        """Write program, both files and the log."""
        (folder / PROGRAM_FILE).write_text(self.program)
        (folder / LIBRARY_FILE).write_bytes(self.library)
        (folder / METADATA_FILE).write_bytes(self.metadata)
        (folder / LOG_FILE).write_text(self.log)

    @classmethod
    def read(cls, folder: Path) -> Foreign | None:
        """Return what `dump` wrote; None where it wrote nothing. Raises OSError or ValueError for damaged files."""
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
    """Return what the compiler that the settings name makes of a program, with its files read and checked.

    Raises CompileError for one that is missing, fails, hangs, or writes anything but two whole files, and where the disk is
    full; the log is then kept, and nothing else.
    """
    compiler = shutil.which(settings.compiler)
    if compiler is None:
        hint = "correct HUB_DISC_COMPILER, or leave it out: DISC has a compiler of its own"
        raise CompileError(f"{settings.compiler} is no program that can be run", backend=NAME, hint=hint)
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
    """Return the variables that the compiler is run with."""
    found = {
        **environ,
        "TAO_MLIR_ENABLE_AMP": str(settings.enable_amp).lower(),
        "DISC_CPU_FAST_MATH_LEVEL": str(settings.cpu_fast_math_level),
    }
    return {**found, "TF_CPP_VMODULE": "disc_compiler=1"} if settings.debug_log else found


def constants_in(data: bytes) -> tuple[Constant, ...]:
    """Return the constants in a `.so.pbtxt`, which is no protobuf. Raises ValueError, with the place, where it is damaged.

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
    """Return bytes with a length before them, and the place behind them."""
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
    """Run the compiler with everything it says in a file; gives what went wrong, "" for nothing. Raises OSError."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(settings, os.environ),
        )  # in this process's own group, by which the hub ends a worker and all that it started
        try:
            status = process.wait(settings.compiler_timeout_s)
        except BaseException as error:
            _end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"did not end within {settings.compiler_timeout_s:g} s"
    return f"ended with status {status}" if status else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it has started, as far as the system lists that."""
    for pid in (*_descendants(process.pid), process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:  # it has ended
            continue
        for child in children:
            yield from _descendants(child)
            yield child


def _read(text: str, library: Path, log: str) -> Foreign | str:
    """Return both files, or what is wrong with them."""
    metadata = library.with_name(f"{library.name}.pbtxt")
    for path in (library, metadata):
        if not path.is_file():
            return f"wrote no {path.name}"
    content, facts = library.read_bytes(), metadata.read_bytes()
    if not content.startswith(_ELF):
        return f"wrote an {library.name} that is no shared library"
    if not _is_whole(content):
        return f"wrote an {library.name} that is cut off at byte {len(content)}"
    try:
        return Foreign(text, content, facts, constants_in(facts), log)
    except ValueError as error:
        return f"wrote an {metadata.name} that cannot be read: {error}"


def _is_whole(content: bytes) -> bool:
    """Return False for an ELF file that ends before its table of sections, which linkers write last: the disk was full."""
    if len(content) < _ELF_HEADER.size:
        return False
    _, place, size, count = _ELF_HEADER.unpack_from(content)
    return place + size * count <= len(content)
