"""The picture of the core's packages, drawn from the imports: `python -m tests.rooms` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tests.sources import ROOT, room_graph

PICTURE = ROOT / "docs" / "explanation" / "rooms.svg"
WIDTH, ROW, BOX, BEND, GAP = 800, 84, 132, 12, 44
_TEXT = "text{font:15px sans-serif;fill:#1b1f24;text-anchor:middle}"
_STYLE = _TEXT + "rect{fill:#eef3fb;stroke:#5b7db1;rx:6}polyline{fill:none;stroke:#9aa7b8}"

Graph = Mapping[str, frozenset[str]]
Way = tuple[str, ...]
"""An import: the packages at its ends, and between them one name for each row that it passes."""


def drawn(graph: Graph) -> str:
    """Return the picture as SVG: each package stands above all that it imports; lines that others imply are left out."""
    rows = _rows(graph)
    ways = _ways(graph, {name: number for number, row in enumerate(rows) for name in row})
    place = _placed(rows, ways)
    height = ROW * len(rows)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">', f"<style>{_STYLE}</style>"]
    lines.append(f'<rect width="{WIDTH}" height="{height}" style="fill:#fff;stroke:none"/>')
    for first, *bends, last in ways:
        points = [(place[first][0], place[first][1] + 18)]
        points += [(place[bend][0], place[bend][1] + side) for bend in bends for side in (-18, 18)]
        points.append((place[last][0], place[last][1] - 18))
        lines.append(f'<polyline points="{" ".join(f"{x:.0f},{y}" for x, y in points)}"/>')
    for name in sorted(graph):
        x, y = place[name]
        lines.append(f'<rect x="{x - BOX / 2:.0f}" y="{y - 18}" width="{BOX}" height="36"/>')
        lines.append(f'<text x="{x:.0f}" y="{y + 5}">{name.partition(".")[2]}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _rows(graph: Graph) -> list[list[str]]:
    """Return the packages in rows, each right below the lowest of those that import it.

    One that no other imports stands above all that it imports, as low as that allows.
    """
    height: dict[str, int] = {}
    row: dict[str, int] = {}

    def height_of(name: str) -> int:
        if name not in height:
            height[name] = 1 + max(map(height_of, graph[name]), default=-1)
        return height[name]

    highest = max(map(height_of, graph))

    def row_of(name: str) -> int:
        if name not in row:
            users = [user for user in graph if name in graph[user]]
            row[name] = 1 + max(map(row_of, users)) if users else highest - height_of(name)
        return row[name]

    return [sorted(name for name in graph if row_of(name) == number) for number in range(highest + 1)]


def _ways(graph: Graph, row: Mapping[str, int]) -> list[Way]:
    """Return the imports that do not follow from others."""
    reached: dict[str, frozenset[str]] = {}

    def reach(name: str) -> frozenset[str]:
        if name not in reached:
            reached[name] = graph[name].union(*map(reach, graph[name]))
        return reached[name]

    found: list[Way] = []
    for name in sorted(graph):
        for target in sorted(graph[name] - frozenset().union(*map(reach, graph[name]))):
            bends = (f"{name} {target} {number}" for number in range(row[name] + 1, row[target]))
            found.append((name, *bends, target))
    return found


def _placed(rows: list[list[str]], ways: list[Way]) -> Mapping[str, tuple[float, int]]:
    """Return the position of each package, and of each bend of a line; each row is ordered by what leads there."""
    above: dict[str, list[str]] = {}
    for way in ways:
        for upper, lower in pairwise(way):
            above.setdefault(lower, []).append(upper)
    place: dict[str, tuple[float, int]] = {}
    for number, row in enumerate(rows):
        bends = [way[at] for way in ways for at in range(1, len(way) - 1) if int(way[at].split()[-1]) == number]
        wanted = {name: _mean([place[user][0] for user in above.get(name, [])]) for name in (*row, *bends)}
        order = sorted(wanted, key=lambda name, wanted=wanted: (wanted[name], name))
        widths = [BEND if " " in name else BOX for name in order]
        left = (WIDTH - sum(widths) - GAP * (len(widths) - 1)) / 2
        for name, width in zip(order, widths, strict=True):
            place[name] = left + width / 2, ROW * number + ROW // 2
            left += width + GAP
    return place


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else WIDTH


if __name__ == "__main__":
    PICTURE.write_text(drawn(room_graph()), encoding="utf-8")
