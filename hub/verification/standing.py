"""Verification results of an executable beyond its first calls, kept in its seal across processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Standing:
    """Extent to which an executable was verified."""

    untried: tuple[str, ...] = ()
    """Kinds of generated inputs that were skipped before the first answer for lack of time."""
    differs: bool = False
    """True if unusual inputs give results unlike eager's, so that `finite_only` guards it permanently."""
    later: str = ""
    """Findings after a first answer, in this process or an earlier one; "" if nothing has been tried yet."""
    is_sure_of_sizes: bool = False
    """True if enough combinations of sizes were right while the model ran."""

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Standing:
        """Read the form that `facts` returns."""
        return cls(
            tuple(map(str, about.get("untried", ()))),
            bool(about.get("differs")),
            str(about.get("later", "")),
            bool(about.get("is_sure_of_sizes")),
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The same in plain JSON."""
        return asdict(self)


UNKNOWN = Standing()
"""Standing of an executable that has not been verified."""
