"""Break long lines of a file of kernels where ruff and black break them: at the last brackets of a statement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

WIDTH = 120
"""Most characters of a line, if brackets allow that."""
_OPENING, _CLOSING = "([{", ")]}"
_ENDS = re.compile(r"[,:]?(  # .*)?")
"""The text that may follow the last brackets."""


def formatted(text: str) -> str:
    """Return a file's text with long lines broken."""
    return "".join(f"{part}\n" for line in text.splitlines() for part in broken(line))


def broken(line: str) -> list[str]:
    """Return a line in parts: the content of its last brackets on a separate line, or each argument on one."""
    found = _last_brackets(line) if len(line) > WIDTH else None
    if found is None:
        return [line]
    begin, end = found
    margin = " " * (len(line) - len(line.lstrip()))
    arguments = list(_split(line[begin + 1 : end]))
    together = f"{margin}    {', '.join(arguments)}"
    if not _is_tuple(line, begin) and len(together) <= WIDTH:
        parts = [together]
    else:
        parts = [part for argument in arguments for part in broken(f"{margin}    {argument},")]
    return [line[: begin + 1], *parts, margin + line[end:]]


def tuple_text(parts: Iterable[str]) -> str:
    """Return a tuple as text."""
    texts = list(parts)
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def bare(text: str) -> str:
    """Return an expression without brackets around the whole."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    inner = text[1:-1]
    depth = 0
    for character in inner:
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth < 0 or (depth == 0 and character == ","):  # two pairs, or a tuple
            return text
    return inner


def _last_brackets(line: str) -> tuple[int, int] | None:
    """Return the positions of the last outermost brackets, if at most a comma, a colon or a comment follows; else None."""
    found: tuple[int, int] | None = None
    begins: list[int] = []
    for place, character in enumerate(line):
        if character in _OPENING:
            begins.append(place)
        elif character in _CLOSING and begins:
            begin = begins.pop()
            if not begins and _ENDS.fullmatch(line, place + 1):
                found = (begin, place)
    return found


def _is_tuple(line: str, begin: int) -> bool:
    return not begin or not (line[begin - 1].isalnum() or line[begin - 1] in "_])")


def _split(text: str) -> Iterator[str]:
    """Yield the text between commas outside of inner brackets."""
    depth, begin = 0, 0
    for place, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth == 0:
            yield text[begin:place].strip()
            begin = place + 1
    if rest := text[begin:].strip():
        yield rest
