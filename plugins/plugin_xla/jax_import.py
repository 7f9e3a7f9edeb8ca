"""JAX, imported without side effects on the process.

jaxlib's arrays need JAX, and its import before XLA's first client keeps XLA from logging to stderr. On import version 0.10
sets two variables, and draws from NumPy's random numbers for the waiting times of cluster setups, which are not used here:
this would change another thread's sequence.
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
    """Make this thread alone draw `numpy.random.rand` from a generator of its own."""
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
