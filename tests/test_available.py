"""The backends of a full installation are present: tests over all available ones would otherwise thin out unnoticed."""

from __future__ import annotations

from hub.discovery.registry import registry

EVERYWHERE = frozenset({"disc", "inductor", "iree", "onnxruntime", "openvino", "tvm", "xla"})
"""Backends that need no device of their own."""
WITH_A_DEVICE = frozenset({"mdla", "triton"})


def test_every_backend_that_can_run_here_is_available() -> None:
    """With all extras installed, every backend that runs on a CPU is available; what needs a device names it."""
    entries = registry().entries
    missing = {name: entries[name].status.reason if name in entries else "not registered" for name in EVERYWHERE}
    assert set(registry().available()) >= EVERYWHERE, missing
    assert set(entries) >= EVERYWHERE | WITH_A_DEVICE
    assert all(entries[name].status.accepted or entries[name].status.reason for name in WITH_A_DEVICE)
