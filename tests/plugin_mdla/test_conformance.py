"""The software device keeps every promise of the conformance suite, with the error that it declares."""

from __future__ import annotations

import pytest
import torch

from hub.testing.conformance.suite import check_backend
from hub.testing.operators import Reference, check_close


@pytest.mark.parametrize("form", ["auto", pytest.param("q8.8", marks=pytest.mark.slow)])
def test_the_software_device_keeps_every_promise(form: str, installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared is true: support, numbers, memory, threads, saving, determinism, interruption, resources."""
    monkeypatch.setenv("HUB_MDLA_FORMAT", form)
    score = check_backend("mdla")
    assert [str(finding) for finding in score.findings if finding.verdict == "failed"] == []
    assert score.by_check()["numerics"].passed >= 28


@pytest.mark.parametrize(("error", "is_fine"), [(0.09, True), (0.11, False)])
def test_only_the_declared_error_is_granted(error: float, is_fine: bool) -> None:
    """Errors up to the class, relative to the largest value, pass; larger ones, and any without a class, fail."""
    exact = torch.tensor([1.0, -2.0, 0.5])
    reference = (Reference(exact.double(), 0.0),)
    got = (exact + 2.0 * error,)
    with pytest.raises(AssertionError, match="3 of 3 elements wrong"):
        check_close(got, (exact,), reference)
    try:
        check_close(got, (exact,), reference, max_relative_error=0.1)
    except AssertionError:
        assert not is_fine
    else:
        assert is_fine
