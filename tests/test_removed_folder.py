"""A program whose working directory was removed is planned as any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
import sys
import tempfile

import torch
import torch._dynamo
import torch._inductor.config

import hub

folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
model, x = torch.nn.Linear(8, 8).eval(), torch.randn(2, 8)
options = {"start": "wait", "tune": "off", "backends": sys.argv[1:]}
for run in (torch.compile(model, backend="hub", options=options), hub.compile(model, options=options)):
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), model(x))
    assert hub.plans(run)[-1].backends == tuple(sys.argv[1:]), hub.plans(run)[-1]
"""


@pytest.mark.parametrize("backend", ["inductor", "onnxruntime", "disc"])
def test_plans_are_made(backend: str, tmp_path: Path) -> None:
    """PyTorch itself must be imported before: its compiler looks for the folder when it is imported."""
    done = subprocess.run(
        [sys.executable, "-W", "error::hub.HubWarning", "-c", PROGRAM, backend],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
