"""The programs in examples/, and what `make demo` runs, do what the README says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
LIMIT_S = 900.0
ROUNDING = 1e-5
"""Allowed difference from eager of outputs of about 1 in float32: some hundred times the actual one."""
AS_IT_IS = pytest.param({}, id="as it is", marks=pytest.mark.slow)
"""Every backend bids, and plans are timed: a minute or two."""


def estimated(backends: str) -> object:
    """Return variables with which planning takes seconds: these backends, by estimates, with nothing in the background."""
    at_once = {"HUB_START": "wait", "HUB_BACKGROUND": "0"}
    return pytest.param({"HUB_TUNE": "off", "HUB_BACKENDS": backends, **at_once}, id="estimated")


def printed(command: list[str], settings: Mapping[str, str]) -> str:
    """Run a command from the repository's root; return what it prints. Raise AssertionError if it fails."""
    users = {name: value for name, value in os.environ.items() if name not in ("HUB_BACKGROUND", "HUB_START")}
    environment = {**users, "COLUMNS": "200", "HUB_PROGRESS": "off", **settings}  # without a terminal, tables need a width
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stdout


def difference(text: str) -> float:
    """Return the largest difference from eager that a program prints."""
    found = re.search(r"^largest difference from eager: ([0-9.e+-]+)", text, re.MULTILINE)
    assert found, text
    return float(found[1].rstrip("."))


def test_every_example_is_run_here() -> None:
    """An added example needs a test of what it prints."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"minilm_demo.py", "mixed.py"}


@pytest.mark.parametrize("settings", [estimated("onnxruntime,openvino"), AS_IT_IS])
def test_mixed(settings: Mapping[str, str]) -> None:
    """A convolution runs on OpenVINO, attention on ONNX Runtime, a Fourier transform in eager; the answer is eager's."""
    text = printed([sys.executable, str(EXAMPLES / "mixed.py")], settings)
    assert difference(text) < ROUNDING
    clusters = [line for line in text.splitlines() if re.match(r"  [ce]\d+ ", line)]
    forced = {line.split()[1] for line in clusters if "forced by the options" in line}
    assert {"openvino", "onnxruntime"} == forced, text
    assert any(re.search(r"openvino +\d+ +conv2d .* forced by the options", line) for line in clusters), text
    assert any(re.search(r"eager +\d+ +fft_rfft", line) for line in clusters), text
    assert "failed at" not in text, text


def demo() -> tuple[list[str], dict[str, str]]:
    """Return the command that `make demo` runs, with this Python, and the variables that it sets."""
    recipe = re.search(r"^demo:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    words = shlex.split(recipe[1].replace("$(BIN)/python", shlex.quote(sys.executable)))
    variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
    return words[len(variables) :], dict(word.split("=", 1) for word in variables)


@pytest.mark.parametrize("settings", [estimated("onnxruntime"), AS_IT_IS])
def test_demo(settings: Mapping[str, str]) -> None:
    """It shows the plan, sensible nearest sentences of a trained encoder, the difference from eager, and times."""
    command, variables = demo()
    text = printed(command, {**settings, **variables})
    assert "40 sentences in 5 batches of 8" in text
    assert re.search(r"^plan of graph0 \(inference\): \d+ clusters? on (?!eager$)", text, re.MULTILINE), text
    assert difference(text) < ROUNDING
    for sentence, nearest in (
        ("The bakery on the corner sells warm bread before sunrise.", "She kneaded the dough slowly"),
        ("Astronomers found a small planet orbiting a red dwarf star.", "The telescope recorded light"),
        ("Small firms complain that loans have become too expensive.", "The central bank raised interest rates"),
        ("The orchestra rehearsed the slow movement until midnight.", "The violinist tuned her instrument"),
    ):
        assert re.search(rf"^  {re.escape(sentence)} +{nearest}.* 0\.\d\d$", text, re.MULTILINE), text
    for contender in ("hub", "eager", "inductor"):
        assert re.search(rf"^{contender} +[0-9.]+ (us|ms|s) ", text, re.MULTILINE), text
    assert "hub ran graph0: " in text, text
    assert re.search(r"^hub takes [0-9.]+x the time of (eager|inductor), the best of the others", text, re.MULTILINE), text
    assert not re.search(r"^\w+ failed: ", text, re.MULTILINE), text
