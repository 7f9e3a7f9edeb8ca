"""Two figures as SVG, written without a plotting library, in colours that suit light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH = 900
_ROW = 20
_LEFT, _RIGHT, _TOP, _BOTTOM = 150, 24, 64, 48
_EMPHASIS, _AKIN = "#d1495b", "#f0898f"
"""Colours of the contender that the figure is about, and of its other forms ("hub@frozen")."""
_COLOURS = ("#3b8ea5", "#e6a117", "#7a6fb0", "#4f9d5d", "#a0705a", "#c779a8", "#5f7f95", "#9aa13c")
"""Colours that can be told apart with colour blindness; none is close to black or white."""

_STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #3d444d } .title { font-size: 15px; font-weight: 600 }
.quiet { fill: #6e7781 } .grid { stroke: #8b949e; stroke-opacity: .25 } .axis { stroke: #8b949e; stroke-opacity: .9 }
@media (prefers-color-scheme: dark) { text { fill: #d1d7e0 } .quiet { fill: #9198a1 } }
</style>"""

Speeds = Mapping[str, Mapping[str, float]]
"""Speed relative to eager by contender, by run."""


def speedup_figure(speeds: Speeds, emphasis: str, title: str) -> str:
    """Return dots of speed relative to eager, a row per run, a colour per contender; `emphasis` is larger and on top."""
    names = _emphasis_last({name: None for row in speeds.values() for name in row}, emphasis)
    values = [value for row in speeds.values() for value in row.values()] or [1.0]
    low, high = min(0.9, *values) * 0.95, max(1.1, *values) * 1.05
    height = _TOP + _ROW * max(1, len(speeds)) + _BOTTOM
    colours = _colours(names, emphasis)

    def place(value: float) -> float:
        return _LEFT + (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)) * (_WIDTH - _LEFT - _RIGHT)

    parts = [
        _text(_LEFT, 20, title, kind="title"),
        *_legend(names, colours),
        _line(place(1.0), _TOP - 6, place(1.0), height - _BOTTOM),
    ]
    for tick in _factors(low, high):
        parts.append(_line(place(tick), _TOP - 6, place(tick), height - _BOTTOM, kind="grid"))
        parts.append(_text(place(tick), height - _BOTTOM + 18, f"{tick:g}x", anchor="middle", kind="quiet"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, height - 10, "times as fast as eager (logarithmic)", anchor="middle"))
    for number, (row, found) in enumerate(speeds.items()):
        y = _TOP + _ROW * (number + 0.5)
        parts.append(_text(_LEFT - 10, y + 4, row, anchor="end"))
        parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, kind="grid"))
        parts += (
            _dot(place(found[name]), y, colours[name], f"{row}, {name}: {found[name]:.2f}x", is_large=name == emphasis)
            for name in names
            if name in found
        )
    return _document(height, parts)


def score_figure(curves: Speeds, emphasis: str, title: str) -> str:
    """Return a line of scores by tolerance (whole numbers as text) for each contender; `emphasis` is thicker."""
    names = _emphasis_last(curves, emphasis)
    ticks = sorted({int(t) for curve in curves.values() for t in curve}) or [0]
    highest = max((value for curve in curves.values() for value in curve.values()), default=1.0) * 1.08
    height, floor = 460, 460 - _BOTTOM
    colours = _colours(names, emphasis)
    left = 60

    def across(t: int) -> float:
        return left + (t - ticks[0]) / max(1, ticks[-1] - ticks[0]) * (_WIDTH - left - _RIGHT)

    def up(value: float) -> float:
        return floor - value / highest * (floor - _TOP)

    parts = [_text(left, 20, title, kind="title"), *_legend(names, colours, left=left)]
    for value in _steps(highest):
        parts.append(_line(left, up(value), _WIDTH - _RIGHT, up(value), kind="axis" if value in (0.0, 1.0) else "grid"))
        parts.append(_text(left - 8, up(value) + 4, f"{value:g}", anchor="end", kind="quiet"))
    parts += (_text(across(t), floor + 18, str(t), anchor="middle", kind="quiet") for t in ticks)
    parts.append(_text((left + _WIDTH - _RIGHT) / 2, height - 10, "tolerance t", anchor="middle"))
    for name in names:
        points = [(across(int(t)), up(value)) for t, value in sorted(curves[name].items(), key=lambda pair: int(pair[0]))]
        parts.append(_path(points, colours[name], name, width=3.5 if name == emphasis else 1.8))
    return _document(height, parts)


def _emphasis_last(names: Iterable[str], emphasis: str) -> list[str]:
    """Return the names with the emphasised one last: what is drawn last lies on top."""
    return sorted(names, key=lambda name: name == emphasis)


def _colours(names: Sequence[str], emphasis: str) -> dict[str, str]:
    akin = [name for name in names if name.startswith(f"{emphasis}@")]
    others = [name for name in names if name != emphasis and name not in akin]
    found = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(others)}
    return found | dict.fromkeys(akin, _AKIN) | {emphasis: _EMPHASIS}


def _factors(low: float, high: float) -> list[float]:
    """Return round factors between two bounds: 0.5, 1, 2, 3, 5, 10 ..."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [step * 10.0**decade for decade in decades for step in (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)]
    return [value for value in found if low <= value <= high]


def _steps(highest: float) -> list[float]:
    """Return about five round numbers from 0 up."""
    rough = highest / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * unit >= rough)
    return [round(number * step, 10) for number in range(int(highest / step) + 1)]


def _legend(names: Sequence[str], colours: Mapping[str, str], left: float = _LEFT) -> list[str]:
    parts: list[str] = []
    for name in reversed(names):
        parts.append(_dot(left + 5, 38, colours[name], name, is_large=False))
        parts.append(_text(left + 14, 42, name))
        left += 30 + 7 * len(name)
    return parts


def _text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{marked}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, *, kind: str = "axis") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _dot(x: float, y: float, colour: str, words: str, *, is_large: bool) -> str:
    size, opacity = (6.5, 1.0) if is_large else (4.5, 0.85)
    inner = f"<title>{escape(words)}</title>"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}" fill-opacity="{opacity}">{inner}</circle>'


def _path(points: Sequence[tuple[float, float]], colour: str, words: str, *, width: float) -> str:
    listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    inner = f"<title>{escape(words)}</title>"
    return f'<polyline points="{listed}" fill="none" stroke="{colour}" stroke-width="{width}">{inner}</polyline>'


def _document(height: float, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" role="img">'
    return "\n".join((head, _STYLE, *parts, "</svg>", ""))
