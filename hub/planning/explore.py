"""Choice of what to measure next: only measurements that could change the decision are worth their time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hub.partition.group import Group
from hub.planning.pricebook import PriceBook
from hub.planning.sections import Section
from hub.plugin.backend import CompileSettings

MAX_FAST = 24
"""Number of pieces, the heaviest first, that are measured under `tune="fast"`."""
MIN_GAIN = 0.02
"""Share of the best known cost that a piece must be able to save; less cannot be told from noise."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A piece whose cost is not known yet."""

    piece: Group
    could_save_s: float
    """Upper bound of the seconds per call that this backend could save with all pieces of this structure."""


def worth_measuring(
    sections: Sequence[Section], book: PriceBook, settings: CompileSettings, known_s: Mapping[str, float]
) -> tuple[Wanted, ...]:
    """Return one unmeasured piece per structure and backend that might pay off, the most promising first.

    `known_s` holds the best measured cost, by a region's structure. A piece is pruned unless its lower bound is clearly
    below that: the bound is what the machine's peaks allow, or the lower end of a learned cost.
    """
    found: dict[tuple[str, str], tuple[Group, float]] = {}
    for section in sections:
        for backend, pieces in section.pieces.items():
            for piece in pieces:
                key = (book.structure(piece), backend)
                first, seconds = found.get(key, (piece, 0.0))
                found[key] = (first, seconds + _could_save_s(section, piece, book, settings, known_s))
    wanted = [
        Wanted(piece, seconds)
        for piece, seconds in found.values()
        if seconds > 0 and not book.has_failed(piece) and book.measured(piece, settings) is None
    ]
    return tuple(sorted(wanted, key=lambda item: -item.could_save_s))


def _could_save_s(
    section: Section, piece: Group, book: PriceBook, settings: CompileSettings, known_s: Mapping[str, float]
) -> float:
    if book.measured(piece, settings) is not None:
        return 0.0
    guess = book.guess(piece, settings)
    known = known_s.get(section.region.structure)
    if known is None:
        return guess.run_s
    lowest_s = book.least_s(piece, settings)
    if guess.source == "learned":
        # Learned intervals are symmetric in the logarithm: spread_s = run_s * sinh(width).
        lowest_s = max(lowest_s, guess.run_s * math.exp(-math.asinh(guess.spread_s / guess.run_s)))
    gain_s = known - lowest_s
    return gain_s if gain_s > MIN_GAIN * known else 0.0
