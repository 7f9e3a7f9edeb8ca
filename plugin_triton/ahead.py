"""Compile kernels before they are first launched, with smaller blocks if the chosen ones do not fit on the GPU.

Triton would compile at the first call, and find only then that a kernel does not fit. Kernels compiled here are in its
own cache by that call.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hub.plugin import CompileError, count

from .blocks import Blocks
from .choices import smaller_than
from .kernel import Kernel
from .machine import Machine
from .source import Choose, File
from .targets import NAME, Needs, Stages, compiled

Write = Callable[[Choose], File]
"""A function that writes a file with the chosen blocks."""


def fitting(write: Write, choose: Choose, machine: Machine) -> File:
    """Return a file with kernels that all compile for a GPU and fit there. Raise CompileError with the reason otherwise."""
    smaller: dict[str, Blocks] = {}
    tried: dict[str, int] = {}

    def chosen(kernel: Kernel, dtypes: Mapping[str, str]) -> Blocks | None:
        return smaller[kernel.name] if kernel.name in smaller else choose(kernel, dtypes)

    while True:
        file = write(chosen)
        too_large = list(_too_large(file, machine))
        if not too_large:
            return file
        for kernel, needs in too_large:
            following = smaller_than(kernel.blocks, kernel.tiling, machine.limits, needs.shared)
            tried[kernel.name] = tried.get(kernel.name, 0) + 1
            if following is None:
                raise CompileError(_refusal(kernel, needs, machine, tried[kernel.name]), backend=NAME)
            smaller[kernel.name] = following


def _too_large(file: File, machine: Machine) -> Iterator[tuple[Kernel, Needs]]:
    for kernel, each in zip(file.kernels, _compiled(file, machine), strict=True):
        if each.needs.shared > machine.limits.shared:
            yield kernel, each.needs


def _compiled(file: File, machine: Machine) -> tuple[Stages, ...]:
    """Compile a file; if that fails, keep its text in a folder that the error names."""
    try:
        return compiled(file, machine.target)
    except CompileError as error:
        path = Path(tempfile.mkdtemp(prefix="hub-triton-refused-")) / "kernels.py"
        path.write_text(file.text)
        raise CompileError(f"{error.message}\nThe kernels are in {path}", backend=NAME) from error


def _refusal(kernel: Kernel, needs: Needs, machine: Machine, tried: int) -> str:
    about = f"{kernel.name} ({', '.join(kernel.nodes) or 'copies'})"
    blocks = ", ".join(f"{name} {size}" for name, size in kernel.blocks.sizes.items())
    return (
        f"{about} needs {needs.shared:,} bytes of shared memory with the smallest of {count(tried, 'choice')} of blocks "
        f"({blocks}), {machine.limits.shared:,} are allowed on {machine.name}"
    )
