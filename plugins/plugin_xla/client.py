"""XLA's clients: one per process for each target, for the CPU one per number of threads. JAX is imported with the first
one."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from hub.plugin import seen_by_libraries
from plugin_xla.settings import library

_LOCK = threading.Lock()
_THREADS = "NPROC"
"""Variable from which XLA reads the size of a client's thread pool; its API has no option for it (jaxlib 0.10)."""
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # Otherwise XLA reserves three quarters of the GPU's memory at once, which PyTorch needs.
    "cuda": {"platform_name": "cuda", "allocator": "default", "preallocate": False},
    "tpu": {},
}
"""Options of clients that come as libraries."""


def client(target: str, threads: int) -> Any:
    """Return the client with a pool of so many threads. It is created on first use and kept, because its threads never end.

    It is separate from JAX's own clients, so that neither its threads nor its options (`jax_enable_x64`) affect users of
    JAX. XLA's exception propagates if there is no such processor.
    """
    with _LOCK:
        return _of_cpu(threads) if target == "cpu" else _of_library(target)


@cache
def _of_cpu(threads: int) -> Any:
    native = importlib.import_module("plugin_xla.jax_import").native
    with seen_by_libraries({_THREADS: str(threads)}):
        # Calls run in the calling thread and end with their results: inputs need not be kept alive any longer.
        return native.get_tfrt_cpu_client(asynchronous=False)


@cache
def _of_library(target: str) -> Any:
    importlib.import_module("plugin_xla.jax_import")
    from jaxlib import xla_client as untyped

    xla_client: Any = untyped
    if not xla_client.pjrt_plugin_loaded(target):  # a user of JAX may have loaded it
        xla_client.load_pjrt_plugin_dynamically(target, str(library(target)))
    if not xla_client.pjrt_plugin_initialized(target):
        xla_client.initialize_pjrt_plugin(target)
    return xla_client.make_c_api_client(target, dict(_OPTIONS[target]))


def options() -> Any:
    """Return the options of a compilation. They take precedence over `XLA_FLAGS`.

    Without options `compile_and_load` (jaxlib 0.10.2) uses defaults under which `maximum` loses NaN.
    """
    from jaxlib import xla_client as untyped

    xla_client: Any = untyped
    found = xla_client.CompileOptions()
    found.env_option_overrides = [("xla_cpu_enable_fast_math", False), ("xla_cpu_enable_fast_min_max", False)]
    return found
