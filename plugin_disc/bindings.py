"""torch-mlir's MLIR bindings, which come without types."""

from __future__ import annotations

import importlib
from typing import Any


def bindings(name: str) -> Any:
    """Return a module of torch-mlir by its name there. These are heavy: import them in functions, not at module level."""
    return importlib.import_module(f"torch_mlir.{name}")
