"""Executables: a compiled cluster, called through one frame of numbers; and their files."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hub.plugin import (
    Cluster,
    CompileError,
    CompileSettings,
    Executable,
    HubError,
    RunError,
)
from hub.toolkit.cluster import Lowered, lower, weights_of

from .assembly import hot_loop, instructions, llvm_ir
from .binding import compiled, gapped_inputs, run_source, symbols_of
from .compiler import NAME, Code, compile_text, loaded
from .external import Foreign
from .fastmath import with_fast_math
from .kept import Kept
from .loops.machine import lanes
from .loops.program import MachineProgram, machine_program
from .recording import write_cluster, write_inputs
from .stages import write_stages

_log = logging.getLogger("hub")
LIBRARY_FILE = "cluster.so"
CALL_FILE = "call.json"
LOG_FILE = "compile.log"
KEPT_BYTES = 256 << 20
"""The default for the bytes of memory that executables keep."""


@dataclass(frozen=True)
class Call:
    """The facts about a machine program that the binding needs."""

    slots: tuple[str, ...]
    workspace: str
    functions: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """How an executable was made, for people."""

    threads: int
    level: int
    """The level of fast mathematics."""
    foreign: Foreign | None
    """The result of another compiler for the cluster; None if none was called."""


class DiscExecutable(Executable):
    """One cluster as machine code."""

    uses_openmp = True

    def __init__(
        self,
        cluster: Cluster,
        call: Call,
        code: Code,
        weights: Mapping[str, torch.Tensor],
        origin: Origin,
        kept_bytes: int,
    ) -> None:
        self._cluster = cluster
        self._call = call
        self._code = code
        self.origin = origin
        self.source = run_source(
            cluster,
            slots=call.slots,
            workspace=call.workspace,
        )
        self._run = compiled(
            self.source,
            main=code.run,
            slots=len(call.slots),
            cluster=cluster,
            weights=weights,
            functions=call.functions,
            kept=Kept(kept_bytes),
        )

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """Run one call; return new packed tensors, permuted if the cluster's specs ask for it."""
        try:
            return self._run(*inputs)
        except HubError:
            raise
        except Exception as error:
            raise RunError(f"{type(error).__name__}: {error}", backend=NAME, cluster=self._cluster.name) from error

    def save(self, folder: Path) -> None:
        """Write the shared library and the facts that its binding needs, with the library's digest."""
        if self._code.library is None:
            raise CompileError("there is no cc, so the code cannot be saved", backend=NAME, cluster=self._cluster.name)
        (folder / LIBRARY_FILE).write_bytes(self._code.library)
        facts = {**asdict(self._call), "lanes": lanes(), "digest": _digest(self._code.library)}
        made = {"threads": self.origin.threads, "level": self.origin.level}
        (folder / CALL_FILE).write_text(json.dumps(facts | made))
        (folder / LOG_FILE).write_text(self._code.log)
        if self.origin.foreign is not None:
            self.origin.foreign.dump(folder)

    def dump(self, folder: Path) -> None:
        """Write the binding code, programs, machine code, and a recording, to which the next call adds its inputs."""
        (folder / "run.py").write_text(self.source)
        write_cluster(folder, self._cluster)
        self._record_into(folder)
        text = machine_text(self._cluster, self.origin.threads, self.origin.level)
        (folder / "loops.mlir").write_text(text)
        (folder / "cluster.ll").write_text(llvm_ir(text))
        if self._code.library is not None:
            self.save(folder)
            _write_assembly(folder)
        missing = write_stages(folder)
        (folder / LOG_FILE).write_text("".join((self._code.log, *(f"{line}\n" for line in missing))))

    def _record_into(self, folder: Path) -> None:
        """Make the next call, and no later one, write its inputs."""
        run = self._run

        def recording(*inputs: Any) -> tuple[torch.Tensor, ...]:
            self._run = run  # first: calls in other threads are not recorded
            try:
                write_inputs(folder, inputs)
            except Exception as error:  # noqa: BLE001 - a full disk must not cost the call
                _log.warning("%s: the inputs of %s are not recorded: %s", NAME, self._cluster.name, error)
            return run(*inputs)

        self._run = recording


def build(
    cluster: Cluster,
    settings: CompileSettings,
    *,
    level: int = 0,
    foreign: Foreign | None = None,
    kept_bytes: int = KEPT_BYTES,
    log_dir: str = "",
) -> DiscExecutable:
    """Lower and compile a cluster, at a level of fast mathematics.

    `foreign` is the result of another compiler for it, for people to read. All executables together keep `kept_bytes` of
    large results for later calls. Raise CompileError if it does not compile; the log is kept in `log_dir`.
    """
    if not lanes():
        raise CompileError("this processor has neither AVX2 nor AVX-512", backend=NAME, cluster=cluster.name)
    program, lowered = written(cluster, settings)
    code = compile_text(with_fast_math(program.text, level), log_dir)
    call = Call(program.slots, program.workspace, program.functions)
    return DiscExecutable(cluster, call, code, lowered.weights, Origin(settings.threads, level, foreign), kept_bytes)


def _addresses(cluster: Cluster, lowered: Lowered) -> dict[str, str]:
    """Return the Python text of each source's address in the binding."""
    inputs = {f"i{place}": f"a{place}.data_ptr()" for place in range(len(cluster.inputs))}
    return inputs | {name: f"{name}.data_ptr()" for name in lowered.weights}


def written(cluster: Cluster, settings: CompileSettings) -> tuple[MachineProgram, Lowered]:
    """Return the machine program of a cluster. Raise CompileError if it cannot be lowered."""
    try:
        lowered = lower(cluster, gapped=gapped_inputs(cluster))
        texts = {symbol: f"s{place}" for place, symbol in enumerate(symbols_of(cluster))}
        program = machine_program(
            lowered.outputs, inputs=_addresses(cluster, lowered), symbols=texts, lanes=lanes(), threads=settings.threads
        )
    except HubError:
        raise
    except Exception as error:
        raise CompileError(
            f"cannot be lowered: {type(error).__name__}: {error}", backend=NAME, cluster=cluster.name
        ) from error
    return program, lowered


def restore(folder: Path, cluster: Cluster, *, kept_bytes: int = KEPT_BYTES) -> DiscExecutable:
    """Load saved files. Raise CompileError if one is missing, corrupt or for another processor."""
    try:
        facts = json.loads((folder / CALL_FILE).read_text())
        content = (folder / LIBRARY_FILE).read_bytes()
        call = Call(tuple(facts["slots"]), facts["workspace"], tuple(facts["functions"]))
        digest, width = facts["digest"], facts["lanes"]
        log = (folder / LOG_FILE).read_text()
        origin = Origin(facts["threads"], facts["level"], Foreign.read(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompileError(f"{folder} holds no saved cluster: {error}", backend=NAME, cluster=cluster.name) from error
    if digest != _digest(content):
        raise CompileError(f"{folder / LIBRARY_FILE} is not what was saved", backend=NAME, cluster=cluster.name)
    if width != lanes():
        message = f"saved for registers of {width} floats, this processor has {lanes()}"
        raise CompileError(message, backend=NAME, cluster=cluster.name)
    code = loaded(content, folder / LIBRARY_FILE, log)
    return DiscExecutable(cluster, call, code, weights_of(cluster), origin, kept_bytes)


def machine_text(cluster: Cluster, threads: int, level: int) -> str:
    """Return the text of a cluster's machine program. Raise CompileError if it cannot be lowered."""
    return with_fast_math(written(cluster, CompileSettings(threads=threads))[0].text, level)


def _write_assembly(folder: Path) -> None:
    """Write the instructions of the library in a folder and its hot loop, or the reason why that failed."""
    try:
        found = instructions(folder / LIBRARY_FILE)
    except CompileError as error:
        found = f"# {error.message}\n"
    (folder / "cluster.s").write_text(found)
    if loop := hot_loop(found):
        (folder / "hot_loop.s").write_text(loop)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
