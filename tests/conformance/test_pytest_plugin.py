"""`pytest --hub-backend NAME`: the suite as tests, from any folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hub.testing.conformance.suite import check_backend

Toy = Callable[[str], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a test of its own that fails."""
    place = tmp_path / "theirs"
    place.mkdir()
    (place / "test_theirs.py").write_text("def test_theirs():\n    assert False\n")
    return place


def pytest_in(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest in a folder; return its status and output."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-p", "hub.testing.pytest_plugin", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_suite_runs_alone_in_any_folder(install_toy: Toy, folder: Path) -> None:
    """Without paths, nothing else is collected; the score comes last."""
    install_toy("")
    status, text = pytest_in(folder, "--hub-backend", "faulty", "-k", "handshake", "-v")
    assert status == 0, text
    assert "hub-backend=faulty::handshake::factory PASSED" in text
    assert "test_theirs" not in text
    assert "faulty (hub-faulty 1.0): 5 of 5 findings passed (100.0 %)" in text


def test_a_broken_promise_is_a_failed_test(install_toy: Toy, folder: Path) -> None:
    """The failure says what is wrong, without a traceback through the suite; what was not claimed is skipped."""
    install_toy("crash in compile")
    status, text = pytest_in(folder, "--hub-backend", "faulty", "-k", "add or elementwise", "-rs")
    assert status == 1, text
    assert "support: the worker process died: killed by SIGSEGV, at aten.add.Tensor(float32" in text
    assert "Traceback" not in text and "suite.py" not in text
    assert "one of its operators is refused" in text


def test_named_tests_run_beside_it(install_toy: Toy, folder: Path) -> None:
    """Paths on the command line bring their tests in."""
    install_toy("")
    status, text = pytest_in(folder, "--hub-backend", "faulty", "test_theirs.py", "-k", "theirs or probe")
    assert status == 1, text
    assert "1 failed, 1 passed" in text


@pytest.mark.slow
def test_parallel_runs_give_one_score(install_toy: Toy, folder: Path) -> None:
    """Under xdist other processes examine, and the score is whole."""
    install_toy("")
    status, text = pytest_in(folder, "--hub-backend", "faulty", "-k", "handshake", "-n", "2")
    assert status == 0, text
    assert "faulty (hub-faulty 1.0): 5 of 5 findings passed (100.0 %)" in text


@pytest.mark.parametrize("processes", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_the_score_is_written_as_json(processes: str, install_toy: Toy, folder: Path) -> None:
    """The file holds what `hub check-plugin --json` writes, in the same order, also where other processes examine."""
    install_toy("unknown dtype")
    file = folder / "score.json"
    status, text = pytest_in(
        folder, "--hub-backend", "faulty", "--hub-json", "score.json", "-k", "handshake", "-n", processes
    )
    assert status == 1, text
    wanted = check_backend("faulty", only=("handshake",))
    assert file.read_text() == wanted.to_json() + "\n"
    assert [finding["verdict"] for finding in json.loads(file.read_text())["findings"]].count("failed") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--hub-backend", "faulty", "--hub-json", "nowhere/score.json"), "there is no folder nowhere"),
        (("--hub-json", "score.json"), "name it with --hub-backend NAME"),
    ],
    ids=["folder", "backend"],
)
def test_json_that_cannot_be_written_is_a_usage_error(arguments: tuple[str, ...], said: str, folder: Path) -> None:
    """It is reported before anything is examined."""
    status, text = pytest_in(folder, *arguments)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert said in text


def test_an_unknown_backend_is_a_usage_error(folder: Path) -> None:
    """The message names those that there are."""
    status, text = pytest_in(folder, "--hub-backend", "onnxruntim")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "no backend is named 'onnxruntim'; did you mean 'onnxruntime'?" in text


def test_without_the_option_nothing_changes(folder: Path) -> None:
    """The plugin is loaded wherever the hub is installed, so it imports neither torch nor the suite."""
    (folder / "test_theirs.py").write_text(
        "import sys\ndef test_theirs():\n"
        "    assert not {'torch', 'numpy', 'hub.discovery.registry', 'hub.testing.conformance.suite'} & set(sys.modules)\n"
    )
    status, text = pytest_in(folder)
    assert status == 0, text
    assert "1 passed" in text
