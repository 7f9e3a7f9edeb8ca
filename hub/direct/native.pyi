"""Types of the module that is built from native.c."""

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
        missing: object,
        /,
    ) -> Comparison: ...
    def holds(self) -> bool:
        """Return whether everything is as it was."""

def have_no_attributes(values: tuple[Any, ...], /) -> bool:
    """Return whether nothing in a tuple has attributes of its own."""
