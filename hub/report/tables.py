"""Reports in colour, for terminals. The text is that of `hub.report.text`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hub.plan import EAGER, Plan
from hub.report import text
from hub.report.picture import picture

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
_MAX_PICTURED = 12
"""Most clusters to draw: with more, a picture is longer than the table that follows it."""
_EVENT_COLOURS = {"refused": "yellow", "failed": "red", "fallback": "red", "note": "dim"}


def plan_table(plan: Plan, width: int = 100) -> RenderableType:
    """Return a plan for the terminal: heading, picture if it has several clusters, and the tables of the text report."""
    colours = backend_colours(plan)
    title, *facts = text.heading(plan)
    parts: list[RenderableType] = [_titled(title, facts)]
    if 1 < len(plan.clusters) <= _MAX_PICTURED:
        parts.append(_picture(plan, colours, width))
    parts.append(coloured_table("clusters", text.CLUSTER_HEADERS, map(text.cluster_cells, plan.clusters), colours))
    parts += _listing("comes from", text.source_lines(plan), "dim") + _listing("why not", text.why_not_lines(plan), "dim")
    parts += [_report(title, lines) for title, lines in text.reports(plan)]
    if plan.contenders:
        parts.append(coloured_table("contenders", text.CONTENDER_HEADERS, text.contender_rows(plan), colours))
    parts += [Text(text.event_line(event), style=_EVENT_COLOURS[event.kind]) for event in plan.events]
    return Group(*parts)


def backend_colours(plan: Plan) -> Mapping[str, str]:
    """Assign each backend of a plan its colour, by order of first use; eager is dim."""
    others = [name for name in plan.backends if name != EAGER]
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(others)}
    return {**colours, EAGER: "dim"}


def coloured_table(
    title: str, headers: Sequence[str], rows: Iterable[Sequence[str]], colours: Mapping[str, str]
) -> RenderableType:
    """Return a table with a title, cells with a backend's name in its colour, and right-aligned columns of numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, justify="right" if header in text.NUMBERS else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=colours.get(cell, "")) for cell in row))
    return table


def _titled(title: str, lines: Sequence[str]) -> Text:
    return Text.assemble((title, "bold"), "\n", "\n".join(lines))


def _picture(plan: Plan, colours: Mapping[str, str], width: int) -> Text:
    lines = [
        Text.assemble(*((piece.text, colours.get(piece.backend, "")) for piece in line)) for line in picture(plan, width)
    ]
    return Text("\n").join(lines)


def _report(title: str, lines: Sequence[str]) -> RenderableType:
    """Return a backend's report, line by line: its tables would be unreadable if they were wrapped."""
    text = Text.assemble((title, "italic"), "\n", "\n".join(f"  {line}" for line in lines), "\n")
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _listing(title: str, lines: Sequence[str], style: str) -> list[RenderableType]:
    return (
        [Text.assemble((title, "italic"), "\n", ("\n".join(f"  {line}" for line in lines), style), "\n")] if lines else []
    )
