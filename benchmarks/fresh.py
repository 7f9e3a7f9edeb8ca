"""Runs one contender of a benchmark in a process of its own, whose caches are empty."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any


def answer_of(module: str, model: str, way: str) -> dict[str, Any]:
    """Return the last JSON that `python -m MODULE --one MODEL WAY` prints; {"failed": why} if it fails.

    Its caches are empty at first, and deleted after the process.
    """
    with tempfile.TemporaryDirectory() as folder:
        caches = {"HUB_CACHE_DIR": f"{folder}/hub", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        environment = {**os.environ, **caches, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", module, "--one", model, way]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        return {"failed": (done.stderr.splitlines() or ["no output"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])
