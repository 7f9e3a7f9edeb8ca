"""Tests named after a backend fail, together, if it ran too little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Install
from tests.toys import toy

TESTS = """
import pytest
import torch

@pytest.mark.parametrize("size", range(2, 6))
@pytest.mark.parametrize("backend", ["toy"])
def test_relu(backend, size):
    options = {"backends": (backend,), "tune": "off", "isolate": False}
    x = torch.randn(size, 3)
    assert torch.equal(torch.compile(torch.relu, backend="hub", options=options, dynamic=False)(x), torch.relu(x))
"""


@pytest.mark.parametrize(("supports", "status"), [("Support(True)", 0), ("Support(False, 'never')", 1)])
def test_a_backend_that_refuses_everything_fails_the_session(
    supports: str, status: int, install_plugin: Install, tmp_path: Path
) -> None:
    """Every test passes, as eager equals eager; the session fails, and names the module, the backend and the counts."""
    install_plugin("toy", toy(supports=supports))
    (tmp_path / "test_toy.py").write_text(TESTS)
    options = ("-q", "-p", "hub.testing.backends_ran", "-p", "no:cacheprovider", "-p", "no:randomly")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options, "test_toy.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == status, done.stdout
    assert ("test_toy.py: toy ran in 0 of 4 tests, 50% expected" in done.stdout) == bool(status)
