"""Environment variables, read and set so that other threads of the process are not disturbed."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager


def environment_now() -> dict[str, str]:
    """Return all variables. Other threads may write and delete some meanwhile, over which `dict(os.environ)` raises."""
    found = ((name, os.environ.get(name)) for name in list(os.environ))
    return {name: value for name, value in found if value is not None}


@contextmanager
def seen_by_libraries(values: Mapping[str, str]) -> Generator[None]:
    """Set variables for what asks the C library (`getenv`), and reset them at the end; `os.environ` stays as it is.

    For native libraries that can be configured in no other way. Other threads of Python neither see these values nor lose
    one that they set meanwhile: what is restored is what `os.environ` says then.
    """
    for name, value in values.items():
        os.putenv(name, value)
    try:
        yield
    finally:
        for name in values:
            if (value := os.environ.get(name)) is None:
                os.unsetenv(name)
            else:
                os.putenv(name, value)
