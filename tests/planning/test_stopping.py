"""A process that is stopped while the hub plans leaves nothing running and nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Install
from tests.toys import toy

SLOWLY = """
            import time
            folder = pathlib.Path(os.environ["STOPPING"])
            if not (folder / "go on").exists():
                (folder / "begun").write_text(f"{os.getpid()} {os.getppid()}")
                time.sleep(600)
"""

CODE = """
import pathlib, os, signal, torch
signal.signal(signal.SIGINT, signal.default_int_handler)
x, model = torch.randn(3, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
compiled = torch.compile(model, backend="hub", options={"tune": "off", "backends": ["toy"]})
with torch.no_grad():
    try:
        compiled(x)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    (pathlib.Path(os.environ["STOPPING"]) / "go on").touch()
    torch.testing.assert_close(compiled(x), model(x))
import hub
print(*hub.plans(compiled)[0].backends, flush=True)
"""


def until(is_so: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for something, for as long as pytest's own limit lets it; fail where the process has ended before."""
    while not is_so():
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Return True where a process runs; one that has ended and waits to be noticed does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_plans_can_be_stopped(stop: signal.Signals, install_plugin: Install, tmp_path: Path) -> None:
    """Ctrl-C comes at once, and the next call plans and is right; SIGTERM ends the process. Workers end, and folders go."""
    install_plugin("toy", toy(compiling=SLOWLY))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    paths = {"STOPPING": str(tmp_path), "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE],
        env={**os.environ, **paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        begun = tmp_path / "begun"
        until(lambda: begun.exists() and len(begun.read_text().split()) == 2, process)
        workers = [pid for pid in map(int, begun.read_text().split()) if pid != process.pid]
        assert is_alive(workers[0])
        process.send_signal(stop)
        printed, errors = process.communicate()
    finally:
        process.kill()
    if stop is signal.SIGINT:
        assert (process.returncode, printed) == (0, "interrupted\ntoy\n"), errors
    else:
        assert process.returncode == -signal.SIGTERM, errors
    until(lambda: not any(map(is_alive, workers)))
    until(lambda: not list(temporary.glob("hub*")))
