"""`hub check-plugin`: a readable score, JSON, exit statuses, progress."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hub.cli.app import app

Toy = Callable[[str], None]


def check(*arguments: str) -> tuple[int, str, str]:
    """Run the command; return status, standard output and standard error."""
    found = CliRunner().invoke(app, ["check-plugin", *arguments])
    return found.exit_code, found.stdout, found.stderr


def test_a_good_plugin_ends_with_0(install_toy: Toy, tmp_path: Path) -> None:
    """The score is printed, and written as JSON where asked."""
    install_toy("")
    place = tmp_path / "score.json"
    status, out, _ = check("faulty", "--only", "handshake", "--json", str(place))
    assert status == 0
    assert "faulty (hub-faulty 1.0): 5 of 5 findings passed (100.0 %)" in out
    facts = json.loads(place.read_text())
    assert facts["is_passed"]
    assert {finding["check"] for finding in facts["findings"]} == {"handshake"}


def test_a_broken_promise_ends_with_1(install_toy: Toy) -> None:
    """What failed is in the output; `--json -` prints nothing else."""
    install_toy("unknown dtype")
    status, out, _ = check("faulty", "--only", "handshake", "--json", "-")
    assert status == 1
    assert "float33" in next(one["reason"] for one in json.loads(out)["findings"] if one["verdict"] == "failed")


def test_progress_is_shown(install_toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each examination is a stage, on standard error."""
    monkeypatch.setenv("HUB_PROGRESS", "plain")
    install_toy("")
    _, _, err = check("faulty", "--only", "handshake")
    assert "check of faulty: handshake (5)" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("faulti",), "no backend is named 'faulti'; did you mean 'faulty'?"),
        (("faulty", "--only", ","), "--only ',' names no check"),
        (("faulty", "--only", "numeric"), "no check is named 'numeric'; did you mean 'numerics'?"),
        (("faulty", "--limit", "0"), "the limit must be a number of seconds above 0"),
        (("faulty", "--json", "nowhere/score.json"), "there is no folder nowhere"),
    ],
    ids=["backend", "no check", "check", "limit", "file"],
)
def test_a_mistake_is_one_message_and_exit_2(arguments: tuple[str, ...], said: str, install_toy: Toy) -> None:
    """Wrong names and places are reported before anything is examined."""
    install_toy("")
    status, out, err = check(*arguments)
    assert status == 2
    assert said in err
    assert out == ""
