"""What is known of an executable beyond that its first calls were right; kept in its seal from process to process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Standing:
    """How far an executable was verified."""

    untried: tuple[str, ...] = ()
    """Kinds of generated inputs for which no time was left before the first answer."""
    differs: bool = False
    """True where unusual inputs give other results than eager, so that `finite_only` guards it for good."""
    later: str = ""
    """What was found out after a first answer, in this process or an earlier one; "" where nothing was tried yet."""
    is_sure_of_sizes: bool = False
    """True where enough combinations of sizes were right while it served."""

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Standing:
        """Read what `facts` gives."""
        return cls(
            tuple(map(str, about.get("untried", ()))),
            bool(about.get("differs")),
            str(about.get("later", "")),
            bool(about.get("is_sure_of_sizes")),
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The same in plain JSON."""
        return {
            "untried": list(self.untried),
            "differs": self.differs,
            "later": self.later,
            "is_sure_of_sizes": self.is_sure_of_sizes,
        }


UNKNOWN = Standing()
"""Of an executable that nobody has looked at."""
