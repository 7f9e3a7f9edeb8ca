"""Compile all kernels of a model for a target, and list the resources that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hub.plugin import HubError, OptionError, columns, count, extract, group_alone
from hub.testing.single import capture
from hub.toolkit.cluster import lower

from .kernel import Kernel
from .runtime import NAME
from .source import file_of
from .support import INTERPRETED
from .targets import Needs, Target, compiled

_HEADERS = ("cluster", "kernel", "registers", "spilled", "shared", "warps", "nodes")
_MOST = 60
_NUMBERS = frozenset(("registers", "spilled", "shared", "warps"))


@dataclass(frozen=True)
class Listing:
    """The compiled kernels of a model."""

    rows: tuple[tuple[str, Kernel, Needs], ...]
    """Cluster, kernel, and the resources that the kernel needs."""
    eager: int
    """Number of nodes that stay in eager."""
    refusals: tuple[str, ...]


def listing(module: torch.nn.Module, inputs: Sequence[Any], target: Target, folder: Path) -> Listing:
    """Compile every cluster of a model that Triton would get, and write kernels and stages to `folder`/CLUSTER.

    Raise CompileError if a cluster cannot be compiled, and OptionError if the folder cannot be written.
    """
    captured = capture(module, inputs)
    groups, refusals = group_alone(captured.graph, NAME, INTERPRETED.supports)
    rows: list[tuple[str, Kernel, Needs]] = []
    for index, item in enumerate(group for group in groups if group.backend == NAME):
        cluster = extract(captured.graph, item.nodes, f"c{index}", captured.weights)
        try:
            file = file_of(cluster, lower(cluster), is_interpreted=False)
            found = compiled(file, target)
            into = folder / cluster.name
            into.mkdir(parents=True, exist_ok=True)
            (into / "kernels.py").write_text(file.text)
            for each in found:
                each.write(into)
        except HubError as error:
            error.backend, error.cluster = NAME, cluster.name
            raise
        except OSError as error:
            raise OptionError(f"{folder} cannot be written: {error.strerror or error}", backend=NAME) from error
        rows += [(cluster.name, kernel, each.needs) for kernel, each in zip(file.kernels, found, strict=True)]
    eager = sum(len(item.nodes) for item in groups if item.backend != NAME)
    return Listing(tuple(rows), eager, refusals)


def summary(found: Listing, folder: Path) -> list[str]:
    """Return the lines of a table, and the refusals."""
    rows = [
        (
            cluster,
            kernel.name,
            *map(str, (needs.registers, needs.spilled, needs.shared, needs.warps)),
            _short(", ".join(kernel.nodes)),
        )
        for cluster, kernel, needs in found.rows
    ]
    lines = columns(_HEADERS, rows, right=_NUMBERS) if rows else []
    spilling = sum(1 for _, _, needs in found.rows if needs.spilled)
    lines.append(f"{count(len(rows), 'kernel')} in {folder}, {spilling} spilling; {count(found.eager, 'node')} in eager")
    return lines + [f"not taken: {reason}" for reason in found.refusals]


def _short(text: str) -> str:
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."
