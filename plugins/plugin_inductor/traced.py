"""Writes a folder for debugging one cluster: graphs, intermediate forms, sources, guards."""

from __future__ import annotations

from pathlib import Path

from hub.plugin import Cluster, CompileSettings
from plugin_inductor.compiler import Program, build, compiling
from plugin_inductor.lower import lower


def dump(cluster: Cluster, settings: CompileSettings, program: Program, folder: Path) -> None:
    """Write the folder. Compile once more, for Inductor's own trace; kernels come from Inductor's cache of libraries.

    Any exception of Inductor's compilation propagates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "received.py", cluster.module.print_readable(print_output=False))
    _write(folder / "output_code.py", program.source)
    _write(folder / "post_grad_graph.py", program.graph)
    _write(folder / "guards.txt", guards_text(program))
    with compiling(settings, has_weights=bool(cluster.constants), trace_folder=folder / "inductor"):
        lowered = lower(cluster)
        _write(folder / "lowered.py", lowered.module.print_readable(print_output=False))
        build(lowered)


def guards_text(program: Program) -> str:
    """Return the symbols with the expression that reads each (`i` is the list of inputs), then the conditions on them."""
    guards = program.guards
    symbols = [f"{binding.symbol} = {binding.text}" for binding in guards.bindings] or ["no symbolic sizes"]
    return "\n".join([*symbols, *(f"assume {text}" for text in guards.conditions), ""])


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
