"""Runs IREE's compiler in a process of its own, so that only that process ends if it aborts or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from plugin_iree.settings import Settings

COMMON = (
    "--iree-input-type=torch",
    "--iree-torch-emit-async-entry-points=false",  # calls wait for their results, so fences are not needed
    "--iree-input-demote-f64-to-f32=false",  # IREE's default computes float64 in float32
)
_MOST = 2000
"""Characters of the compiler's output that a message keeps; the compiler prints whole programs after an error."""


class Refused(Exception):  # noqa: N818 - IREE's refusal, which the backend wraps in an error of the hub
    """A refusal by IREE's compiler; the text has the reason."""


def target_flags(settings: Settings) -> tuple[str, ...]:
    """Return the flags for the target."""
    if settings.target == "cuda":
        return ("--iree-hal-target-device=cuda", f"--iree-cuda-target={settings.processor}")
    if settings.target == "vulkan":
        chosen = (f"--iree-vulkan-target={settings.processor}",) if settings.processor else ()
        return ("--iree-hal-target-device=vulkan", *chosen)
    return (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        f"--iree-llvmcpu-target-cpu={settings.processor}",
    )


def compiled(text: str, settings: Settings) -> bytes:
    """Return the .vmfb of a program in the torch dialect. Raise Refused with the compiler's message."""
    return _run(text, "-o", "-", *COMMON, *target_flags(settings))


def stages(text: str, settings: Settings, folder: Path) -> None:
    """Write the program after each of IREE's phases, up to the sources of its executables. Raise Refused if it fails."""
    until = ("--compile-to=executable-sources", f"--dump-compilation-phases-to={folder}")
    _run(text, "-o", os.devnull, *until, *COMMON, *target_flags(settings))


def _run(text: str, *flags: str) -> bytes:
    # Pipes, not files: a killed process leaves nothing behind.
    done = subprocess.run([_tool(), "-", *flags], input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        raise Refused(_reason(done.returncode, done.stderr.decode(errors="replace")))
    return done.stdout


def _tool() -> str:
    """Return the path of `iree-compile`. Importing `iree.compiler` loads no library."""
    import iree.compiler

    return str(Path(iree.compiler.__file__).parent / "_mlir_libs" / "iree-compile")


def _reason(status: int, said: str) -> str:
    """Return an error in a few lines: the compiler's own errors, without the programs that it prints after them."""
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    errors = [line for line in said.splitlines() if "error:" in line or "LLVM ERROR" in line or "Assertion" in line]
    return f"{how}: " + ("\n".join(errors) or said.strip() or "no message")[:_MOST]
