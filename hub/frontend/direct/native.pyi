"""Types of the module that is built from native.c."""

from collections.abc import Callable
from typing import Any

class Comparison:
    """What a captured program read from Python, as it was when this was made."""

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
        """Return whether everything is as it was."""

class Stamps:
    """Tensors as they were when this was made. None may be an inference tensor. Frees the handles that it is given."""

    def __new__(
        cls,
        tensors: tuple[Any, ...],
        handles: tuple[Any, ...],
        functions: tuple[int, int, int, int, int, int, int, int],
        /,
    ) -> Stamps: ...
    def compare(self) -> int:
        """Return 0 where a tensor has another form, 1 where one was written to or moved, 2 where all are as they were."""

    def renew(self) -> int:
        """Take counts of writes and addresses anew; return how often that was done."""

def have_no_attributes(values: tuple[Any, ...], /) -> bool:
    """Return whether nothing in a tuple has attributes of its own."""
