"""A picture of a plan: its clusters as boxes, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub.plan import Plan, PlannedCluster
from hub.report.numbers import count, duration

_ARROW = "─▶ "
_BOX_LINES = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """Some characters of a line, and the backend that determines their colour; "" for none."""

    text: str
    backend: str = ""


Line = tuple[Piece, ...]


def picture(plan: Plan, width: int = 100) -> tuple[Line, ...]:
    """Return the lines of the picture, boxes left to right and rows top to bottom, at most `width` characters wide."""
    return tuple(line for row in _rows(plan.clusters, width) for line in _drawn(row))


def picture_text(plan: Plan, width: int = 100) -> str:
    """Return the picture without colours."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in picture(plan, width))


def _labels(cluster: PlannedCluster) -> tuple[str, ...]:
    seconds = cluster.predicted_s if cluster.measured_s is None else cluster.measured_s
    return (cluster.name, cluster.backend, count(len(cluster.nodes), "node"), duration(seconds))


def _inner_width(cluster: PlannedCluster) -> int:
    return max(map(len, _labels(cluster)))


def _rows(clusters: Sequence[PlannedCluster], width: int) -> list[list[PlannedCluster]]:
    """Break the chain of boxes before each box that would exceed the width."""
    rows: list[list[PlannedCluster]] = []
    used = width
    for cluster in clusters:
        needed = len(_ARROW) + _inner_width(cluster) + 5
        if used + needed > width or not rows:
            rows.append([])
            used = 0
        rows[-1].append(cluster)
        used += needed
    return rows


def _drawn(row: Sequence[PlannedCluster]) -> list[Line]:
    boxes = [_box(cluster) for cluster in row]
    return [
        tuple(
            piece
            for box, cluster in zip(boxes, row, strict=True)
            for piece in (Piece(_ARROW if line == 2 else " " * len(_ARROW)), Piece(box[line] + " ", cluster.backend))
        )
        for line in range(_BOX_LINES)
    ]


def _box(cluster: PlannedCluster) -> list[str]:
    width = _inner_width(cluster)
    body = [f"│ {label:<{width}} │" for label in _labels(cluster)]
    return [f"┌{'─' * (width + 2)}┐", *body, f"└{'─' * (width + 2)}┘"]
