"""Where results are written: checked before the work that they come from."""

from __future__ import annotations

import os
from pathlib import Path

from hub.errors import OptionError


def check_output(path: Path) -> None:
    """Raise OptionError if no file can be written to `path`. Call this before minutes of work."""
    folder = path.parent
    if not folder.is_dir():
        raise OptionError(f"there is no folder {folder} for {path.name}", hint=f"make it first: mkdir -p {folder}")
    if path.exists() and not path.is_file():
        raise OptionError(f"{path} is not a file", hint="name a file, such as result.json")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OptionError(f"{path} may not be written", hint="name a file in a folder of your own")
