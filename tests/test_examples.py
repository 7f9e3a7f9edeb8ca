"""Every example runs as it is, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path) -> None:
    """It ends well, as `make demo` and a reader run it, and prints a plan in which a backend other than eager runs."""
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "onnxruntime" in done.stdout or "openvino" in done.stdout, done.stdout


def test_there_are_examples() -> None:
    """The one of `make demo` and the README's are among them."""
    assert {path.stem for path in EXAMPLES} >= {"minilm_demo", "mixed"}
