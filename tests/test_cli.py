"""The command line: quick help, one clear message for a mistake, JSON for programs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from hub.cli.app import app
from hub.cli.flags import command
from hub.config.forms import OPTIONS
from hub.errors import CacheError, CompileError, HubWarning, OptionError, PlanError, RunError
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


def test_the_package_is_a_program() -> None:
    """`python -m hub` is the command of that Python, wherever another environment's `hub` comes first."""
    done = subprocess.run([sys.executable, "-m", "hub", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == output_of("--version")


def test_a_mistake_is_one_message_and_exit_2() -> None:
    """No traceback, on standard error, with the nearest name."""
    found = hub("explain", "bret")
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.startswith("error: no built-in model is named 'bret'; did you mean 'bert'?")
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("command", [("explain", "bert"), ("bench", "bert"), ("doctor",)])
def test_an_unknown_backend_in_a_variable_is_a_mistake_of_every_command(
    command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found before a model is built or a backend is tried, as if it had been given as a flag."""
    monkeypatch.setenv("HUB_BACKENDS", "onnxruntme")
    found = CliRunner().invoke(app, list(command))
    assert found.exit_code == 2
    assert "option 'backends' (from HUB_BACKENDS): no backend is named 'onnxruntme'; did you mean" in found.stderr


def test_a_traceback_is_shown_on_request() -> None:
    """`--verbose` prints it before the message; the status stays."""
    found = hub("explain", "bret", "--verbose")
    assert found.returncode == 2
    assert found.stderr.startswith("Traceback (most recent call last):")
    assert "\nerror: no built-in model is named 'bret'" in found.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--threads", "two"), "option 'threads' (from the command line) must be a whole number from 1 to 1024, got 'two'"),
        (("--force", "aten.softmax"), "option 'force' (from the command line) must be a mapping"),
        (("--force", "aten.sofmax=eager"), "PyTorch has no operator aten.sofmax"),
        (("--force", "aten.linear.defalt=eager"), "PyTorch has no operator aten.linear.defalt"),
        (("--backends", ","), "option 'backends' (from the command line) must be names of backends, got ','"),
        (("--debug-dir", "tiny.py"), "tiny.py is a file, not a folder"),
        (("--start", "eager"), "a command waits for the plan that it shows"),
        (("--debug-dir", "debug"), "compiles nothing, so --debug-dir would stay empty"),
        (("--tune", "hard"), "option 'tune' (from the command line) must be one of"),
        (("--backends", "a", "--exclude", "a"), "contradict each other"),
        (("--backends", "inducto"), "(from the command line): no backend is named 'inducto'; did you mean 'inductor'?"),
        (("--set", "disc.alow=x"), "unknown option 'disc.alow' (from the command line); did you mean 'allow'?"),
    ],
)
def test_wrong_flags_are_refused_before_anything_runs(flags: tuple[str, ...], message: str) -> None:
    """Flags are options, with the same messages as from the other sources."""
    found = CliRunner().invoke(app, ["explain", "mlp", *flags])
    assert found.exit_code == 2
    assert message in found.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain",), "error: Missing argument 'MODEL'\nhint: `hub explain --help` lists the arguments and options\n"),
        (("explian",), "error: No such command 'explian'"),
        (("cache", "ls", "--jsn"), "error: No such option: --jsn"),
    ],
)
def test_wrong_arguments_are_one_line_and_a_hint(arguments: tuple[str, ...], message: str) -> None:
    """As every other error is."""
    found = CliRunner().invoke(app, list(arguments), prog_name="hub")
    assert found.exit_code == 2
    assert found.stderr.startswith(message)
    assert len(found.stderr.splitlines()) == 2


ENDINGS: Mapping[str, tuple[BaseException, int, str]] = {
    "wrong use": (OptionError("it is wrong", hint="do this"), 2, "error: it is wrong\nhint: do this\n"),
    "a failure": (PlanError("it failed", hint="do this"), 1, "error: it failed\nhint: do this\n"),
    "a place": (
        RunError("it failed", backend="b", node="n", hint="do this"),
        1,
        "error: it failed [backend 'b', node 'n']\n",
    ),
    "no hint of its own": (CacheError("it failed"), 1, f"error: it failed\nhint: {CacheError.GENERAL_HINT}\n"),
    "a compiler's log": (
        CompileError("first\nsecond", backend="b", hint="h"),
        1,
        "error: first ... (--verbose shows the rest) [backend 'b']\nhint: h\n",
    ),
    "a full disk": (
        OSError(28, "No space left on device", "/x/y"),
        1,
        "error: /x/y: No space left on device\nhint: check ",
    ),
    "another library's": (KeyError("x"), 1, "error: KeyError: 'x'\nhint: this is a mistake in the hub or in a library"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "interrupted\n"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_each_kind_of_error_has_a_status_a_line_and_a_hint(name: str) -> None:
    """Of a command, of a plugin's command too; nothing is on standard output, and no traceback anywhere."""
    error, status, text = ENDINGS[name]
    found = ended_by(error)
    assert (found.exit_code, found.stdout) == (status, "")
    assert found.stderr.startswith(text)
    assert "Traceback" not in found.stderr


def test_verbose_shows_the_whole_message_and_what_caused_it() -> None:
    """Also the tracebacks of other libraries, which are hidden otherwise."""
    error = CompileError("first\nsecond")
    error.__cause__ = ValueError("their own")
    text = ended_by(error, "-v").stderr
    assert "ValueError: their own" in text
    assert "error: first\nsecond\n" in text


@pytest.mark.filterwarnings("always")
def test_a_warning_of_the_hub_is_one_line() -> None:
    """Without the line of code at which Python says it was given."""

    def warn() -> None:
        warnings.warn("no cache\n  hint: set it", HubWarning, stacklevel=1)

    found = CliRunner().invoke(app_of(warn), [])
    assert (found.exit_code, found.stderr) == (0, "warning: no cache\nhint: set it\n")


@pytest.mark.parametrize(("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_is_respected(variables: dict[str, str], is_coloured: bool) -> None:
    """On a terminal the first word is red, unless NO_COLOR is set."""
    found = CliRunner().invoke(app_of(raising(OptionError("wrong"))), [], color=True, env=variables)
    assert ("\x1b[" in found.stderr) is is_coloured


def test_a_closed_output_is_no_error() -> None:
    """`hub list-backends | head -1` says nothing on standard error."""
    script = "import sys; from hub.cli import main; sys.argv = ['hub', 'list-backends', '--json']; main()"
    command_line = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} | true"
    assert subprocess.run(["sh", "-c", command_line], capture_output=True, text=True, check=False).stderr == ""


def ended_by(error: BaseException, *arguments: str) -> Result:
    return CliRunner().invoke(app_of(raising(error)), list(arguments))


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def app_of(function: Callable[[], None]) -> typer.Typer:
    small = typer.Typer()
    small.command()(command(function))
    return small


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
def test_a_command_that_captures_nothing_says_why_and_fails(arguments: tuple[str, ...], cause: str) -> None:
    """The message names the cause, the place and the next step; nothing is written."""
    Path("nothing.py").write_text(NOTHING)
    found = CliRunner().invoke(app, [*arguments, *EAGER_ONLY])
    assert found.exit_code == 1, found.output
    assert "nothing of the model was captured" in found.stderr
    assert cause in found.stderr
    assert "hint: " in found.stderr
    assert not found.stdout
    assert not Path("plan.json").exists()


@pytest.mark.parametrize("verb", ["explain", "run"])
def test_commands_capture_a_recurrent_module(verb: str) -> None:
    """A model that is one `nn.LSTM` has a plan."""
    Path("nothing.py").write_text(NOTHING)
    assert "aten.lstm" in json.dumps(json.loads(output_of(verb, "nothing.py:lstm", "--json", *EAGER_ONLY)))


@pytest.mark.slow
def test_a_benchmark_of_what_is_not_captured_fails() -> None:
    """The table still has eager; the hub's row has the cause."""
    Path("nothing.py").write_text(NOTHING)
    found = hub("bench", "nothing.py:values", "--against", "eager", "--rounds", "3", *EAGER_ONLY)
    assert found.returncode == 1
    assert "nothing of the model was captured" in found.stderr
    assert "eager" in found.stdout


@pytest.mark.parametrize(
    "flags", [("--output", "hub-bench"), ("--resume",), ("--models", "mlp"), ("--batches", "1"), ("--against", ",")]
)
def test_flags_without_effect_are_refused(flags: tuple[str, ...]) -> None:
    """A benchmark of one model takes a minute, after which nothing would be where the flag says."""
    found = CliRunner().invoke(app, ["bench", "mlp", *flags])
    assert found.exit_code == 2
    assert "--zoo" in found.stderr or "names nothing" in found.stderr


PRINTING = """
print("the module prints")
import os, torch
class Net(torch.nn.Module):
    def forward(self, x):
        print("forward prints", flush=True)
        os.system("echo a child process prints")
        return x + 1
def made():
    print("the factory prints")
    return Net(), (torch.ones(2, 3),)
"""


@pytest.mark.parametrize("verb", ["explain", "run"])
def test_json_is_alone_on_standard_output(verb: str, tmp_path: Path) -> None:
    """Whatever models print goes to standard error."""
    (tmp_path / "printing.py").write_text(PRINTING)
    found = hub(verb, "printing.py:made", *EAGER_ONLY, "--json")
    assert found.returncode == 0, found.stderr
    json.loads(found.stdout)
    assert all(f"{name} prints" in found.stderr for name in ("module", "factory", "child process"))


def test_an_operator_that_the_model_does_not_have_is_noted() -> None:
    """Forcing it has no effect, which a note says, with the nearest name."""
    plans = json.loads(output_of("explain", "tiny.py:tiny", "--force", "aten.linalg_det=eager", "--json"))
    messages = [event["message"] for event in plans["plans"][0]["events"]]
    assert any("force: no node of this graph is aten.linalg_det" in message for message in messages)


def test_a_debug_folder_that_cannot_be_written_costs_no_plan() -> None:
    """The plan runs, with a note."""
    plans = json.loads(output_of("run", "tiny.py:tiny", "--tune", "off", "--debug-dir", "/proc/nowhere", "--json"))["plans"]
    assert plans[0]["clusters"]
    assert any(event["message"].startswith("debug_dir: ") for event in plans[0]["events"])
