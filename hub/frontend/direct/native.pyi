"""Types of the module built from native.c."""

from collections.abc import Callable
from typing import Any

class Comparison:
    """A snapshot of what a captured program read from Python."""

    def __new__(
        cls,
        dicts: tuple[dict[Any, Any], ...],
        keyed: tuple[tuple[dict[Any, Any], tuple[Any, ...], tuple[Any, ...]], ...],
        objects: tuple[Any, ...],
        lists: tuple[list[Any], ...],
        cells: tuple[Any, ...],
        functions: tuple[Any, ...],
        classes: tuple[type, ...],
        calls: tuple[tuple[Callable[..., Any], tuple[Any, ...], object], ...],
        missing: object,
        /,
    ) -> Comparison: ...
    def holds(self) -> bool:
        """Return whether nothing has changed since."""

class Stamps:
    """A snapshot of tensors, none of which may be an inference tensor. It owns the handles that it receives."""

    def __new__(
        cls,
        tensors: tuple[Any, ...],
        handles: tuple[Any, ...],
        functions: tuple[int, ...],
        /,
    ) -> Stamps: ...
    def compare(self) -> int:
        """Return 0 if a tensor has another form, 1 if one was written to or moved, 2 if all are unchanged."""

    def renew(self) -> None:
        """Take the current write counts and addresses."""

    @property
    def n_renewals(self) -> int:
        """How often that was done."""

class Guard:
    """A function, and another one that gets the error that it raises and returns the answer in its place."""

    def __new__(cls, check: Callable[[Any], bool], on_error: Callable[[BaseException], bool], /) -> Guard: ...
    def __call__(self, scope: Any, /) -> bool:
        """Return the answer of one of the two."""

def have_no_attributes(values: tuple[Any, ...], /) -> bool:
    """Return whether no object in a tuple has attributes of its own."""
