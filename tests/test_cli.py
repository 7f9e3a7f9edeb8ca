"""The command line: quick help, one clear message for a mistake, JSON for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hub.cli.app import app
from hub.cli.flags import command
from hub.config.forms import OPTIONS
from hub.errors import HubError
from hub.plan import Plan
from hub.plugin.entry import installed_version

EAGER_ONLY = ("--backends", "eager", "--threads", "1")
CLI_PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")

SOURCE = """
import torch
def tiny():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.ones(2, 4),)
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every command in an empty folder with an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUB_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "tiny.py").write_text(SOURCE)


def hub(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = "import sys; from hub.cli import main; sys.argv[0] = 'hub'; main()"
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)


def output_of(*arguments: str) -> str:
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.mark.parametrize(
    "arguments", ['"--help"', '"explain", "--help"', '"--version"', '"list-backends"', '"explain", "bret"']
)
def test_quick_commands_import_nothing_heavy(arguments: str) -> None:
    """Help, listing and mistakes answer at once, so they may not import torch."""
    script = (
        f"import sys; sys.argv = ['hub', {arguments}]; from hub.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_every_command_is_in_the_help() -> None:
    """`hub --help` lists the commands."""
    text = output_of("--help")
    for name in ("list-backends", "doctor", "explain", "run", "plan", "tune", "bench", "cache", "--version"):
        assert name in text


def test_every_command_is_documented() -> None:
    """The reference of the command line has a row for each command."""
    groups = [(f"{group.name} ", group.typer_instance) for group in app.registered_groups]
    for prefix, commands in [("", app), *groups]:
        for item in commands.registered_commands if commands is not None else ():
            assert f"| `hub {prefix}{item.name or ''}" in CLI_PAGE


def test_every_option_has_a_flag_that_is_documented() -> None:
    """Each option of a model is a flag of the commands that plan, and stands in their help and in the reference."""
    flags = {key: "--budget" if key == "budget_s" else f"--{key.replace('_', '-')}" for key in OPTIONS}
    text = output_of("explain", "--help")
    for flag in flags.values():
        assert flag in text
        assert f"`{flag}" in CLI_PAGE


def test_the_version_is_the_distributions() -> None:
    """`hub --version` names it."""
    assert output_of("--version") == f"hub {installed_version('compiler-hub')}\n"


def test_a_mistake_is_one_message_and_exit_2() -> None:
    """No traceback, on standard error, with the nearest name."""
    found = hub("explain", "bret")
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.startswith("error: no built-in model is named 'bret'; did you mean 'bert'?")
    assert "Traceback" not in found.stderr


def test_a_traceback_is_shown_on_request() -> None:
    """`--traceback` raises the error."""
    found = hub("explain", "bret", "--traceback")
    assert found.returncode != 0
    assert "Traceback" in found.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--threads", "two"), "option 'threads' (from the command line) must be a whole number of at least 1, got 'two'"),
        (("--force", "aten.softmax"), "option 'force' (from the command line) must be a mapping"),
        (("--tune", "hard"), "option 'tune' (from the command line) must be one of"),
        (("--backends", "a", "--exclude", "a"), "contradict each other"),
    ],
)
def test_wrong_flags_are_refused_before_anything_runs(flags: tuple[str, ...], message: str) -> None:
    """Flags are options, with the same messages as from the other sources."""
    found = CliRunner().invoke(app, ["explain", "mlp", *flags])
    assert found.exit_code == 2
    assert message in found.stderr


def test_interruption_ends_cleanly_with_130() -> None:
    """Ctrl-C is no error to report."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    import typer

    small = typer.Typer()
    small.command()(command(interrupted))
    assert CliRunner().invoke(small, []).exit_code == 130


def test_errors_that_are_not_ours_are_not_hidden() -> None:
    """Only named errors become messages."""

    def failing() -> None:
        raise HubError("named", hint="do this")

    import typer

    small = typer.Typer()
    small.command()(command(failing))
    found = CliRunner().invoke(small, [])
    assert found.exit_code == 2
    assert found.stderr == "error: named\n  next step: do this\n"


def test_backends_are_listed_as_text_and_as_json() -> None:
    """The table is for people, `--json` for programs."""
    assert "eager" in output_of("list-backends")
    listed = json.loads(output_of("list-backends", "--json"))
    assert {backend["name"] for backend in listed} >= {"inductor", "onnxruntime", "openvino", "eager"}


def test_explain_prints_plans_without_running() -> None:
    """JSON is a plan file."""
    text = output_of("explain", "tiny.py:tiny", "--json", *EAGER_ONLY)
    plans = [Plan.model_validate(plan) for plan in json.loads(text)["plans"]]
    assert [plan.threads for plan in plans] == [1]
    assert "plan of" in output_of("explain", "tiny.py:tiny", *EAGER_ONLY)


def test_run_compares_with_eager_and_gives_times() -> None:
    """One command shows outputs, difference, times and plan."""
    facts = json.loads(output_of("run", "tiny.py:tiny", "--json", *EAGER_ONLY))
    assert facts["outputs"] == [{"dtype": "float32", "shape": [2, 4]}]
    assert facts["max_abs_error"] == 0.0
    assert facts["median_s"] > 0
    assert len(facts["plans"]) == 1
    text = output_of("run", "tiny.py:tiny", *EAGER_ONLY)
    assert "outputs     float32[2, 4]" in text


def test_bench_writes_json_with_the_command_that_made_it(tmp_path: Path) -> None:
    """A result file says how to reproduce it."""
    place = tmp_path / "out.json"
    found = hub("bench", "tiny.py:tiny", "--against", "eager", "--rounds", "3", "--json", str(place), *EAGER_ONLY)
    assert found.returncode == 0, found.stderr
    assert "hub takes" in found.stdout
    written = json.loads(place.read_text())
    assert written["command"].startswith("hub bench tiny.py:tiny --against eager")
    assert {one["name"] for one in written["results"]} == {"hub", "eager"}


NOTHING = """
import torch
class Disabled(torch.nn.Module):
    @torch.compiler.disable(reason="it draws pictures")
    def forward(self, x): return x + 1
class Values(torch.nn.Module):
    def forward(self, x): return x.nonzero()
def same(): return torch.nn.Identity(), (torch.ones(2, 4),)
def disabled(): return Disabled(), (torch.ones(2, 4),)
def values(): return Values(), (torch.ones(2, 4),)
def lstm(): return torch.nn.LSTM(4, 4), (torch.ones(3, 2, 4),)
"""


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("explain", "nothing.py:same"), "it has no tensor operators"),
        (("explain", "nothing.py:disabled"), "torch.compiler.disable keeps PyTorch from capturing it (it draws pictures)"),
        (("explain", "nothing.py:values"), "nothing.py:7 in forward"),
        (("explain", "nothing.py:values", "-o", "plan.json"), "nothing.py:7 in forward"),
        (("run", "nothing.py:values"), "nothing.py:7 in forward"),
        (("tune", "nothing.py:disabled"), "it draws pictures"),
    ],
)
def test_a_command_that_captures_nothing_says_why_and_exits_with_2(arguments: tuple[str, ...], cause: str) -> None:
    """The message names the cause, the place and the next step; nothing is written."""
    Path("nothing.py").write_text(NOTHING)
    found = CliRunner().invoke(app, [*arguments, *EAGER_ONLY])
    assert found.exit_code == 2, found.output
    assert "nothing of the model was captured" in found.stderr
    assert cause in found.stderr
    assert "next step: " in found.stderr
    assert not found.stdout
    assert not Path("plan.json").exists()


@pytest.mark.parametrize("verb", ["explain", "run"])
def test_commands_capture_a_recurrent_module(verb: str) -> None:
    """A model that is one `nn.LSTM` has a plan."""
    Path("nothing.py").write_text(NOTHING)
    assert "aten.lstm" in json.dumps(json.loads(output_of(verb, "nothing.py:lstm", "--json", *EAGER_ONLY)))


@pytest.mark.slow
def test_a_benchmark_of_what_is_not_captured_exits_with_2() -> None:
    """The table still has eager; the hub's row has the cause."""
    Path("nothing.py").write_text(NOTHING)
    found = hub("bench", "nothing.py:values", "--against", "eager", "--rounds", "3", *EAGER_ONLY)
    assert found.returncode == 2
    assert "nothing of the model was captured" in found.stderr
    assert "eager" in found.stdout
