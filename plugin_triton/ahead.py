"""Compiles kernels before they are first launched, with smaller blocks where a GPU has no room for those that were chosen.

Triton would compile at the first call, and find there what does not fit. What it compiles here lies in its own cache then.
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
"""Writes a file with the blocks that are chosen."""


def fitting(write: Write, choose: Choose, machine: Machine) -> File:
    """Return a file all of whose kernels compile for a GPU and fit there. Raises CompileError with the reason."""
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
    """Compile a file; one that cannot be compiled is left for people to read."""
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
