"""JAX, imported so that nothing of the process changes.

jaxlib's arrays need it, and imported before XLA's first client it keeps XLA from logging to stderr. Version 0.10 sets two
variables when it is imported, and draws from NumPy's random numbers for waiting times of clusters that are not used here:
another thread's sequence would break.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Generator
from typing import Any

import numpy

_VARIABLES = ("TF_CPP_MIN_LOG_LEVEL", "TPU_SKIP_MDS_QUERY")


@contextlib.contextmanager
def _own_random_numbers() -> Generator[None]:
    """Let this thread, and no other, draw `numpy.random.rand` from a generator of its own."""
    own, drawn, shared = threading.get_ident(), numpy.random.RandomState(0).rand, numpy.random.rand

    def rand(*sizes: Any) -> Any:
        return (drawn if threading.get_ident() == own else shared)(*sizes)

    numpy.random.rand = rand
    try:
        yield
    finally:
        numpy.random.rand = shared


_left_out = [name for name in _VARIABLES if name not in os.environ]
try:
    with _own_random_numbers():
        jax: Any = importlib.import_module("jax")
        native: Any = importlib.import_module("jaxlib._jax")
        SingleDeviceSharding: Any = importlib.import_module("jax.sharding").SingleDeviceSharding
finally:
    for _name in _left_out:
        os.environ.pop(_name, None)
