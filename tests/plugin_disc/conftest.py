"""What DISC's tests share."""

from __future__ import annotations

import pytest

from plugin_disc import runtime


@pytest.fixture(params=["as here", "8 lanes"])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with the registers of this machine, and with those of AVX2."""
    if request.param == "8 lanes":
        monkeypatch.setattr(runtime, "lanes", lambda: 8)
