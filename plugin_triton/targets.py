"""Compile kernels stage by stage for a GPU that need not be here, and read which resources each one needs."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hub.plugin import CompileError, OptionError

from .functions import TYPES
from .interpreter import loaded
from .kernel import Kernel
from .settings import TARGET
from .source import File, launch_options

NAME = "triton"
_POINTERS: Mapping[str, str] = {
    **{"f64": "*fp64", "f32": "*fp32", "f16": "*fp16", "bf16": "*bf16", "i64": "*i64", "i32": "*i32", "i16": "*i16"},
    **{"i8": "*i8", "u8": "*u8", "i1": "*u1"},
}
assert _POINTERS.keys() == TYPES.keys()
_WARP = {"cuda": 32, "hip": 64}
_TEXTS = ("source", "ttir", "ttgir", "llir", "ptx", "amdgcn")
_ALIGNED = ["tt.divisibility", 16]
"""The attribute of memory that begins at a multiple of 16 bytes, as PyTorch's does; launches pass it to the compiler."""
_NEAR = ["tt.pointer_range", 32]
"""The attribute of memory of less than 2^31 bytes, for AMD's compiler."""
_TOLD = 12
"""Number of last lines of Triton's error that are shown: the lines before them print the whole kernel."""
_LISTED_S = 60.0
"""Seconds after which the tool that lists a binary counts as hung."""


@dataclass(frozen=True)
class Target:
    """A GPU to compile for."""

    backend: str
    """"cuda" or "hip"."""
    arch: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse "cuda:90" or "hip:gfx942". Raise OptionError for other text."""
        backend, _, arch = text.partition(":")
        if backend == "xpu":
            wheel = "the wheel triton-xpu (pytorch-triton-xpu for older PyTorch)"
            raise OptionError(f"xpu is compiled for by {wheel}, which takes triton's place", backend=NAME)
        if re.fullmatch(TARGET, text) is None:  # LLVM would end the process for an architecture that it does not know
            hint = "write cuda: and a compute capability from 70 on (cuda:90), or hip: and an architecture (hip:gfx942)"
            raise OptionError(f"{text!r} is not a target", backend=NAME, hint=hint)
        return cls(backend, arch)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.backend}-{self.arch}"

    @property
    def triton(self) -> Any:
        """Triton's object for it."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self.backend, int(self.arch) if self.backend == "cuda" else self.arch, _WARP[self.backend])


@dataclass(frozen=True)
class Needs:
    """The resources of a multiprocessor that one kernel needs."""

    kernel: str
    registers: int
    """Number of 32-bit registers for each thread."""
    spilled: int
    """Bytes that each thread spills from registers to memory."""
    shared: int
    """Bytes of shared memory for each program."""
    warps: int


@dataclass(frozen=True)
class Stages:
    """A kernel compiled for a target: texts and binaries by stage, in order."""

    needs: Needs
    stages: Mapping[str, str | bytes]

    def write(self, folder: Path) -> None:
        """Write every stage into a folder, as KERNEL.STAGE."""
        write_stages(folder, self.needs.kernel, self.stages)


def write_stages(folder: Path, kernel: str, stages: Mapping[str, Any]) -> None:
    """Write the texts and the binary among Triton's stages of a kernel, as KERNEL.STAGE."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage, content in stages.items():
        if isinstance(content, bytes) or stage in _TEXTS:
            path = folder / f"{kernel}.{stage}"
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def compiled(file: File, target: Target) -> tuple[Stages, ...]:
    """Compile every kernel of a file. Raise CompileError with the kernel's name if one fails."""
    with tempfile.TemporaryDirectory(prefix="hub-triton-") as folder:
        path = Path(folder) / "kernels.py"
        path.write_text(file.text)
        module = loaded(path, is_interpreted=False)
        return tuple(_compiled(getattr(module, kernel.name), kernel, file, target) for kernel in file.kernels)


def _compiled(function: Any, kernel: Kernel, file: File, target: Target) -> Stages:
    import triton

    source = source_of(function, kernel, file, target)
    try:
        found = cast("Any", triton).compile(source, target=target.triton, options=launch_options(kernel.blocks))
        stages = {name: found.asm[name] for name in found.asm if name in _TEXTS or isinstance(found.asm[name], bytes)}
        registers, spilled = _counted(stages)
    except CompileError:
        raise
    except Exception as error:
        where = f"{target.backend}:{target.arch}"
        message = f"{kernel.name} cannot be compiled for {where}: {type(error).__name__}: {_end(str(error))}"
        raise CompileError(message, backend=NAME) from error
    return Stages(Needs(kernel.name, registers, spilled, found.metadata.shared, kernel.blocks.warps), stages)


def _end(text: str) -> str:
    """Return the last lines of Triton's error, which name the fault."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-_TOLD:])


def source_of(function: Any, kernel: Kernel, file: File, target: Target) -> Any:
    """Return the source that a launch compiles for sizes that are no multiples of 16."""
    from triton.compiler import ASTSource

    signature = {name: _kind(name, file) for name in kernel.parameters}
    if kernel.may_leave:
        signature["flag"] = "*i32"
    signature |= dict.fromkeys(kernel.blocks.sizes, "constexpr")
    known = {
        (place,): [_ALIGNED, _NEAR] if target.backend == "hip" and _is_near(name, file) else [_ALIGNED]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*")
    }
    known |= {(place,): [] for place, kind in enumerate(signature.values()) if kind == "constexpr"}  # as launches do
    return ASTSource(fn=function, signature=signature, constexprs=dict(kernel.blocks.sizes), attrs=known)


def _is_near(name: str, file: File) -> bool:
    """Return whether memory has less than 2^31 bytes; unknown sizes count as less."""
    dtype = file.dtypes.get(name, "i32")
    bytes_ = 1 if dtype == "i1" else int(dtype.lstrip("biuf")) // 8
    return file.counts.get(name, 1) * bytes_ < 1 << 31


def _kind(name: str, file: File) -> str:
    if name in file.dtypes:
        return _POINTERS[file.dtypes[name]]
    return file.numbers.get(name, "i64")


def _counted(stages: Mapping[str, Any]) -> tuple[int, int]:
    """Return registers and spilled bytes, from the binary for NVIDIA and from the assembly for AMD."""
    if "cubin" in stages:
        return _of_cubin(stages["cubin"])
    text = str(stages["amdgcn"])
    registers = max(map(int, re.findall(r"\.vgpr_count:\s*(\d+)", text)), default=0)
    spilled = max(map(int, re.findall(r"\.vgpr_spill_count:\s*(\d+)", text)), default=0)
    return registers, 4 * spilled


def _of_cubin(binary: bytes) -> tuple[int, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        command = [str(tool), "--dump-resource-usage", file.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LISTED_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise CompileError(f"{tool} could not be run: {error}", backend=NAME) from error
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    if found is None:
        raise CompileError(f"{tool} does not report registers: {done.stdout[-300:]}{done.stderr[-300:]}", backend=NAME)
    return int(found[1]), int(found[2])
