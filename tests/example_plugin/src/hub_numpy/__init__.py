"""Registers the backend `numpy`. Imports nothing heavy: the hub does this whenever it lists backends."""

from hub import BackendInfo, hookimpl


@hookimpl
def hub_backends():
    """One backend: its name, where to find it, and what it can do."""
    return [
        BackendInfo(
            name="numpy",
            factory="hub_numpy.backend:NumpyBackend",
            summary="NumPy, operator by operator: an example",
            requires=("numpy>=1.26",),
            operators="hub_numpy.backend:OPERATORS",
        )
    ]
