"""torch-mlir's bindings of MLIR, which come without types."""

from __future__ import annotations

import importlib
from typing import Any


def bindings(name: str) -> Any:
    """Return a module of torch-mlir by its name in there. They are heavy: for functions that need one, not for imports."""
    return importlib.import_module(f"torch_mlir.{name}")
