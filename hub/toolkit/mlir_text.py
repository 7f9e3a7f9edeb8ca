"""Large constants in MLIR's text: MLIR prints them after the program, where some parsers do not look."""

from __future__ import annotations

import re

RESOURCE = re.compile(r"dense_resource<([^>]+)>")
_BLOB = re.compile(r"(\S+): \"0x([0-9A-Fa-f]+)\"")
_ALIGNMENT_DIGITS = 8
"""Hexadecimal digits before a blob's data, which give its alignment."""


def blobs(text: str) -> dict[str, str]:
    """Return the hexadecimal digits of large constants, which MLIR prints separately from the program, by name."""
    _, _, resources = text.partition("{-#")
    return {name: digits[_ALIGNMENT_DIGITS:] for name, digits in _BLOB.findall(resources)}


def inlined(text: str) -> str:
    """Return a program with the constants printed after it moved to where they are used."""
    program, mark, _ = text.partition("{-#")
    if not mark:
        return text
    digits = blobs(text)
    return RESOURCE.sub(lambda found: f'dense<"0x{digits[found[1]]}">' if found[1] in digits else found[0], program)
