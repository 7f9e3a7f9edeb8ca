"""Values that a call computes from its symbolic sizes, once for each combination of sizes."""

from __future__ import annotations

MOST = 256
"""Number of combinations whose values are remembered."""


class Sized:
    """Expressions that depend only on symbolic sizes, and the names of their values in a call."""

    def __init__(self, symbols: tuple[str, ...]) -> None:
        self.symbols = symbols
        self.texts: dict[str, str] = {}

    def name(self, text: str) -> str:
        """Return the text that stands for an expression over sizes in a call: a name, or a constant itself."""
        if not _names_in(text) & {*self.symbols}:
            return text
        return text if text in self.symbols else self.texts.setdefault(text, f"n{len(self.texts)}")

    def covers(self, text: str) -> bool:
        """Return True if an expression depends only on sizes."""
        names = _names_in(text)
        return bool(names & {*self.symbols}) and names <= {*self.symbols, "int", "max", "min"}

    def look_up(self) -> list[str]:
        """Return the lines of a call that assign all names, after it has read the symbols."""
        if not self.texts:
            return []
        return [
            f"known = sized.get({self._known})",
            f"if known is None: known = sized_for({', '.join(self.symbols)})",
            self.taken(),
        ]

    def taken(self) -> str:
        """Return the line of a call that unpacks symbols and names from the known values of a combination."""
        return f"{', '.join((*self.symbols, *self.texts.values()))}, = known"

    def definition(self) -> str:
        """Return the text of the function that computes the values of a new combination."""
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
        return f"({''.join(f'{symbol}, ' for symbol in self.symbols)})"  # (): each symbol may have one possible value


def _names_in(text: str) -> set[str]:
    return {*compile(text, "<size>", "eval").co_names}
