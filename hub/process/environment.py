"""Environment variables, read and set without disturbing other threads of the process."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager


def environment_now() -> dict[str, str]:
    """Return all variables. Other threads may set and delete some meanwhile, on which `dict(os.environ)` raises."""
    found = ((name, os.environ.get(name)) for name in list(os.environ))
    return {name: value for name, value in found if value is not None}


@contextmanager
def variables_set(values: Mapping[str, str]) -> Generator[None]:
    """Set variables for this process, with all its threads, and those that it starts; restore them at the end.

    For processes that belong to the hub, such as a command.
    """
    earlier = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in earlier.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def seen_by_libraries(values: Mapping[str, str]) -> Generator[None]:
    """Set variables for code that reads them with the C library (`getenv`), and reset them at the end.

    For native libraries that cannot be configured otherwise. `os.environ` is unchanged. Other Python threads neither see
    these values nor lose one that they set meanwhile: values are restored to what `os.environ` then holds.
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
