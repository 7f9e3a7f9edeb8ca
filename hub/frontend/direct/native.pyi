"""Types of the module built from native.c."""

from collections.abc import Callable, Mapping
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
        comparison: Comparison = ...,
        /,
    ) -> Stamps: ...
    def compare(self) -> int:
        """Return 0 if a tensor's form or the comparison has changed, 1 if a tensor was written to or moved, else 2."""

    def renew(self) -> None:
        """Take the current write counts and addresses."""

    @property
    def n_renewals(self) -> int:
        """How often that was done."""

class Form:
    """The inputs of a call that one path takes. It does not hold the tensors among them."""

    def __new__(
        cls,
        n_args: int,
        names: tuple[str, ...],
        leaves: tuple[Any, ...],
        tensor_type: type,
        strange: tuple[Any, ...],
        fit: Callable[..., bool],
        modes: Comparison,
        /,
    ) -> Form: ...
    def leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], /) -> tuple[Any, ...] | None:
        """Return a call's inputs, positional ones first, if they have this form in these modes; else None."""

    def takes(self, leaves: tuple[Any, ...] | list[Any], /) -> bool:
        """Return whether these leaves have this form in these modes."""

class Guard:
    """A function, and another one that gets the error that it raises and returns the answer in its place."""

    def __new__(cls, check: Callable[[Any], bool], on_error: Callable[[BaseException], bool], /) -> Guard: ...
    def __call__(self, scope: Any, /) -> bool:
        """Return the answer of one of the two."""
