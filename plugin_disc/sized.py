"""What a call works out of its symbolic sizes, once for each combination of them."""

from __future__ import annotations

MOST = 256
"""Combinations about which everything is remembered."""


class Sized:
    """What depends on nothing but symbolic sizes: expressions, and the names under which a call knows their values."""

    def __init__(self, symbols: tuple[str, ...]) -> None:
        self.symbols = symbols
        self.texts: dict[str, str] = {}

    def name(self, text: str) -> str:
        """Return what a call writes for an expression over sizes: a name, or a constant as it is."""
        if not _names_in(text) & {*self.symbols}:
            return text
        return text if text in self.symbols else self.texts.setdefault(text, f"n{len(self.texts)}")

    def covers(self, text: str) -> bool:
        """Return True for an expression over sizes alone."""
        names = _names_in(text)
        return bool(names & {*self.symbols}) and names <= {*self.symbols, "int", "max", "min"}

    def look_up(self) -> list[str]:
        """Lines of a call that make all names known, symbols read before."""
        if not self.texts:
            return []
        return [
            f"known = sized.get({self._known})",
            f"if known is None: known = sized_for({', '.join(self.symbols)})",
            self.taken(),
        ]

    def taken(self) -> str:
        """The line of a call that takes symbols and names from what is known of a combination."""
        return f"{', '.join((*self.symbols, *self.texts.values()))}, = known"

    def definition(self) -> str:
        """The function that works out what was not known."""
        if not self.texts:
            return ""
        lines = [
            f"def sized_for({', '.join(self.symbols)}):",
            f"if len(sized) >= {MOST}: sized.clear()",
            f"found = ({', '.join((*self.symbols, *self.texts))},)",
            f"sized[{self._known}] = found",
            "return found",
        ]
        return "\n    ".join(lines) + "\n\n"

    @property
    def _known(self) -> str:
        return f"({', '.join(self.symbols)},)"


def _names_in(text: str) -> set[str]:
    return {*compile(text, "<size>", "eval").co_names}
