"""Interpreted kernels keep every promise of the conformance suite."""

from __future__ import annotations

import pytest

from hub.discovery.registry import registry
from hub.testing.conformance.suite import check_backend


@pytest.mark.slow
def test_interpreted_kernels_keep_every_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared is true: support, numbers, memory, threads, saving, determinism, interruption, resources."""
    monkeypatch.setenv("HUB_TRITON_INTERPRET", "1")
    registry.cache_clear()
    score = check_backend("triton")
    assert [str(finding) for finding in score.findings if finding.verdict == "failed"] == []
    assert score.by_check()["numerics"].passed >= 350
    registry.cache_clear()
