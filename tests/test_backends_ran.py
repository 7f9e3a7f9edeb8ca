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

@pytest.mark.parametrize("size", range(2, SIZES))
@pytest.mark.parametrize("backend", ["toy"])
def test_relu(backend, size):
    options = {"backends": (backend,), "tune": "off", "isolate": False}
    x = torch.randn(size, 3)
    assert torch.equal(torch.compile(torch.relu, backend="hub", options=options, dynamic=False)(x), torch.relu(x))
"""


@pytest.mark.parametrize(
    ("supports", "n_tests", "is_sample", "complaint"),
    [
        ("Support(True)", 4, False, ""),
        ("Support(False, 'never')", 4, False, "toy ran in 0 of 4 tests, 50% expected"),
        ("Support(False, 'never')", 7, True, ""),
        ("Support(False, 'never')", 8, True, "toy ran in none of 8 tests"),
    ],
    ids=["takes all", "refuses all", "in few of a sample", "in a sample"],
)
def test_a_backend_that_refuses_everything_fails_the_session(
    supports: str, n_tests: int, is_sample: bool, complaint: str, install_plugin: Install, tmp_path: Path
) -> None:
    """Every test passes, as eager equals eager; the session fails, and names the module, the backend and the counts."""
    install_plugin("toy", toy(supports=supports))
    marks = "pytestmark = pytest.mark.sampled\n" if is_sample else ""
    (tmp_path / "test_toy.py").write_text(TESTS.replace("SIZES", str(n_tests + 2)) + marks)
    options = ("-q", "-p", "hub.testing.backends_ran", "-p", "no:cacheprovider", "-p", "no:randomly")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options, "test_toy.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{n_tests} passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == bool(complaint), done.stdout
    assert ("backends that ran too little" in done.stdout) == bool(complaint)
    assert complaint in done.stdout
