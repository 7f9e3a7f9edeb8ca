"""Sealed texts, which detect a change of any byte: JSON that begins with the digest of the rest."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

_FORM = '{{"sha256": "{digest}", "sealed": {body}}}\n'
_HEAD = len('{"sha256": "')
_DIGEST = 64
_BODY = _HEAD + _DIGEST + len('", "sealed": ')
_TAIL = len("}\n")


def sealed(facts: Mapping[str, Any]) -> str:
    """Return plain JSON facts as a sealed text, in ASCII."""
    body = json.dumps(facts, sort_keys=True)
    return _FORM.format(digest=_digest(body), body=body)


def write_sealed(path: Path, facts: Mapping[str, Any], partial: Path) -> None:
    """Write a sealed text atomically. Raises OSError.

    Until it is complete, it is a file whose path begins with `partial`, on the same file system.
    """
    handle, name = tempfile.mkstemp(dir=partial.parent, prefix=partial.name)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(sealed(facts))
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def unsealed(data: bytes) -> dict[str, Any] | None:
    """Return the facts in a sealed text; None unless every byte is as `sealed` wrote it. Raises nothing."""
    try:
        text = data.decode("ascii")
        body = text[_BODY:-_TAIL]
        # The whole text is rebuilt, so that no byte of it, not even a space, escapes the comparison.
        if text != _FORM.format(digest=_digest(body), body=body):
            return None
        facts = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", facts) if isinstance(facts, dict) else None


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode("ascii")).hexdigest()
