"""A backend's own settings: declared by its plugin, set where the hub's are, and part of what its executables depend on."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.cache.keys import backend_parts
from hub.config.options import resolve
from hub.discovery.registry import registry
from hub.errors import OptionError

SOURCE = """
    from pathlib import Path
    from typing import Literal

    from pydantic import Field

    from hub import BackendInfo, hookimpl
    from hub.plugin.backend import Backend, Executable
    from hub.plugin.settings import BackendSettings
    from hub.plugin.table import ACCEPTED


    class Settings(BackendSettings):
        power: bool = True
        offset: float = Field(0.0, ge=0, description="a number, 0 at least")
        device: Literal["board", "software"] = "board"

        @property
        def max_relative_error(self):
            return 4 * self.offset

        @property
        def requires(self):
            return () if self.device == "software" else ("hub-test-board",)

        @property
        def missing(self):
            return "" if self.power else "no power is here"

        @property
        def remark(self):
            return f"off by {self.offset}" if self.offset else ""


    class Off(Executable):
        def __init__(self, module, offset):
            self.module, self.offset = module, offset

        def __call__(self, *inputs):
            return [value * (1 + self.offset) for value in self.module(*inputs)]

        def save(self, folder):
            (folder / "offset").write_text(str(self.offset))


    class Offset(Backend):
        def __init__(self, settings):
            self.settings = settings

        def supports(self, node):
            return ACCEPTED

        def compile(self, cluster, settings):
            return Off(cluster.module, self.settings.offset)

        def load(self, folder, cluster, settings):
            return Off(cluster.module, float((folder / "offset").read_text()))


    @hookimpl
    def hub_backends():
        return (
            BackendInfo(
                name="offset", factory="hub_offset:Offset", summary="", settings="hub_offset:Settings",
                requires=("hub-test-board",),
            ),
        )
"""
Install = Callable[[str, str], None]


@pytest.fixture
def offset(install_plugin: Install) -> None:
    """Install a backend whose results are off by a configured amount."""
    install_plugin("offset", SOURCE)


def options(**own: Any) -> dict[str, Any]:
    """Return options under which only this backend bids."""
    return {"backends": ["offset"], "tune": "off", "accuracy": 1.0, "offset": own}


def off_by(given: Mapping[str, Any]) -> float:
    """Run a tanh through the hub, and return the relative error of the result."""
    torch._dynamo.reset()
    compiled = torch.compile(nn.Tanh(), backend="hub", options=dict(given))
    with torch.no_grad():
        found = compiled(torch.tensor([0.5, 1.0])).double() / torch.tensor([0.5, 1.0]).tanh().double()
    (plan,) = hub.plans(compiled)
    assert plan.backends == ("offset",), plan
    return float(found[0]) - 1


@pytest.mark.usefixtures("offset")
def test_settings_reach_the_backend_here_and_in_workers() -> None:
    """Executables are compiled in a worker and run here: both use the user's settings."""
    assert off_by(options(device="software", offset=0.01)) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.usefixtures("offset")
def test_what_was_saved_under_other_settings_is_not_loaded() -> None:
    """Settings are a part of the keys of plans and of executables."""
    found = [off_by(options(device="software", offset=value)) for value in (0.01, 0.02, 0.01)]
    assert found == pytest.approx([0.01, 0.02, 0.01], rel=1e-3)


@pytest.mark.usefixtures("offset")
def test_settings_decide_whether_a_backend_can_be_used() -> None:
    """If a backend's requirements depend on its settings, so does its availability."""
    assert registry().entries["offset"].status.reason == "hub-test-board is not installed"
    chosen = resolve({"offset": {"device": "software"}}, {}, Path("/"))
    configured = registry().configured(chosen)
    assert configured.entries["offset"].status.accepted
    assert set(configured.available()) - set(registry().available()) == {"offset"}
    assert configured.backend("inductor") is registry().backend("inductor")


@pytest.mark.usefixtures("offset")
def test_settings_know_the_cache_folder(tmp_path: Path) -> None:
    """A backend's files go to the options' cache folder, whether or not it has settings of its own in them."""
    folders = [tmp_path / "one", tmp_path / "two"]
    given, places = {"offset": {"device": "software"}}, [{"HUB_CACHE_DIR": str(folder)} for folder in folders]
    chosen = [resolve(given, environ, Path("/")) for environ in places]
    one, two = (registry().configured(options) for options in chosen)
    for name in ("offset", "tvm"):
        assert [found.entries[name].settings.cache_folder for found in (one, two)] == folders
    assert one.backend("offset") is not two.backend("offset")
    assert one.backend("offset") is registry().configured(chosen[0]).backend("offset")


@pytest.mark.usefixtures("offset")
def test_settings_decide_how_exact_a_backend_is() -> None:
    """A backend that is less accurate under some settings bids only if the user grants that."""
    exact = {**options(device="software", offset=0.01), "accuracy": 0.001, "backends": None}
    (plan,) = hub.explain(nn.Tanh(), torch.ones(2), options=exact)
    (event,) = (event for event in plan.events if event.backend == "offset")
    assert "4.0%" in event.message


@pytest.mark.usefixtures("offset")
def test_settings_come_from_all_places_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call overrides variables, which override hub.toml; each setting by itself."""
    (tmp_path / "hub.toml").write_text('[offset]\ndevice = "software"\noffset = 0.5\n')
    environ = {"HUB_OFFSET_OFFSET": "0.25"}
    chosen = resolve({"offset": {}}, environ, tmp_path, home=tmp_path)
    assert chosen.own == {"offset": {"device": "software", "offset": "0.25"}}
    entry = registry().configured(chosen).entries["offset"]
    assert backend_parts(entry)["backend_settings"] == {"device": "software", "offset": 0.25, "power": True}
    first = resolve({"offset": {"offset": 0.75}}, environ, tmp_path, home=tmp_path)
    assert registry().configured(first).entries["offset"].info.max_relative_error == 3.0
    monkeypatch.setenv("HUB_OFFSET_DEVICE", "software")
    registry.cache_clear()
    assert registry().entries["offset"].status.accepted


@pytest.mark.usefixtures("offset")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"offset": {"ofset": 1}}, r"unknown option 'offset.ofset' \(from options=\); did you mean 'offset'"),
        ({"offset": {"offset": -1}}, r"option 'offset.offset' \(from options=\), -1: .*greater than or equal to 0"),
        ({"offset": {"device": "bord"}}, r"'bord': Input should be 'board' or 'software'"),
        ({"offset": 3}, r"option 'offset' \(from options=\) must be a mapping"),
        ({"offset": {"offset": object()}}, r"must be text, numbers"),
        ({"inductor": {"speed": 3}}, r"option 'inductor.speed' \(from options=\): inductor has no settings"),
        ({"ofset": {"offset": 1}}, r"unknown option 'ofset' \(from options=\); did you mean 'offset'"),
    ],
)
def test_wrong_settings_are_named(given: Mapping[str, Any], said: str) -> None:
    """An unknown setting or a wrong value is an error with its name and origin, before anything is planned."""
    with pytest.raises(OptionError, match=said):
        registry().configured(resolve(given, {}, Path("/")))
    with pytest.raises(OptionError, match=said):
        torch.compile(nn.Tanh(), backend="hub", options=dict(given))(torch.ones(2))


@pytest.mark.usefixtures("offset")
def test_a_wrong_variable_costs_the_backend_until_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing says what is wrong; a compilation gets a message."""
    monkeypatch.setenv("HUB_OFFSET_OFFSET", "much")
    registry.cache_clear()
    assert "HUB_OFFSET_OFFSET" in registry().entries["offset"].status.reason
    with pytest.raises(OptionError, match="HUB_OFFSET_OFFSET"):
        torch.compile(nn.Tanh(), backend="hub")(torch.ones(2))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('no such library')", "the plugin failed to load: ImportError: no such library"),
        (SOURCE.replace('summary=""', "summary=7"), "summary"),
        (SOURCE.replace('"hub_offset:Settings"', '"hub_offset:Off"'), "no subclass of BackendSettings"),
    ],
)
@pytest.mark.filterwarnings("ignore::hub.errors.HubWarning")
def test_settings_of_a_plugin_that_cannot_be_used_cost_no_call(source: str, reason: str, install_plugin: Install) -> None:
    """It is not known which settings the backend has: it is unavailable, for that reason, and the model runs."""
    install_plugin("offset", source)
    compiled = torch.compile(nn.Tanh(), backend="hub", options={"tune": "off", "offset": {"device": "software"}})
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.ones(2)), torch.ones(2).tanh())
    assert reason in registry().entries["offset"].status.reason


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("exit(3)", "SystemExit: 3"),
        ("7", "missing is an int, text expected"),
    ],
)
def test_settings_that_fail_under_a_users_values_cost_their_backend_alone(
    answer: str, said: str, install_plugin: Install
) -> None:
    """What the class computes from the values is read, and checked, before anything else is done with them."""
    failing = f'{answer} if self.device == "software" else "no power is here"'
    install_plugin("offset", SOURCE.replace('"" if self.power else "no power is here"', failing))
    given = {"backends": ["offset"], "tune": "off", "start": "wait", "offset": {"device": "software"}}
    compiled = torch.compile(nn.Tanh(), backend="hub", options=given)
    with torch.no_grad(), pytest.warns(hub.HubWarning, match=f"offset: load: its settings .* cannot be used: .*{said}"):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.ones(2).tanh())


@pytest.mark.parametrize("field", ["state", "compile_workers"])
def test_every_property_of_settings_is_read_before_it_is_needed(field: str, install_plugin: Install) -> None:
    """None can fail first while a key is made or a model planned, where it would cost all backends."""
    install_plugin("offset", SOURCE.replace("def missing(self):", f"def {field}(self):\n            return 1 / 0"))
    reason = registry().entries["offset"].status.reason
    assert "ZeroDivisionError" in reason and "hub_offset:Settings" in reason


def test_relative_paths_of_a_backend_start_at_the_file_that_holds_them(
    install_plugin: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a hub.toml above the working directory too, also after the options have gone to a worker; names stay."""
    fields = 'path_fields = ("model",)\n        model: str = ""\n        word: str = ""\n        power: bool = True'
    install_plugin("offset", SOURCE.replace("power: bool = True", fields))
    (tmp_path / "hub.toml").write_text('[offset]\nmodel = "a/model"\nword = "a/word"\n')
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    here = resolve(None, {}, tmp_path / "deep", home=tmp_path)
    for options in (here, pickle.loads(pickle.dumps(here.for_workers()))):
        settings = registry().configured(options).entries["offset"].settings
        assert (settings.model, settings.word) == (f"{tmp_path}/a/model", "a/word")
    given = resolve({"offset": {"model": "a/model"}}, {}, tmp_path / "deep", home=tmp_path)
    assert registry().configured(given).entries["offset"].settings.model == "a/model"


@pytest.mark.parametrize(
    ("module", "paths"),
    [
        ("plugin_tvm", ("database",)),
        ("plugin_mdla", ("library", "calibration")),
        ("plugin_disc", ("log_dir",)),
    ],
)
def test_paths_of_backends_are_fields_of_theirs(module: str, paths: tuple[str, ...]) -> None:
    """TVM's database, MDLA's calibration and library, DISC's folder of logs."""
    kind = importlib.import_module(f"{module}.settings").Settings
    assert kind.path_fields == paths
    assert {*paths} <= kind.model_fields.keys()


NAMED = """
    from hub import BackendInfo, hookimpl

    @hookimpl
    def hub_backends():
        return (BackendInfo(name="NAME", factory="hub_NAME:Off", summary="", settings="hub_NAME:Settings"),)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cache", "no backend can be named 'cache': hub.toml has a table [cache] of the hub's own settings"),
        ("workers", "no backend can be named 'workers': hub.toml has a table [workers] of the hub's own settings"),
        ("threads", "no backend can be named 'threads': the hub has an option of this name"),
    ],
)
def test_a_backend_of_a_setting_s_name_is_refused(
    name: str, reason: str, install_plugin: Callable[[str, str], None], tmp_path: Path
) -> None:
    """It could not be told from the hub's own; what a hub.toml and variables say under this name stays the hub's."""
    install_plugin(name, NAMED.replace("NAME", name))
    assert registry().entries[name].status.reason == reason
    (tmp_path / "hub.toml").write_text("threads = 2\n[cache]\ngb = 3\n[workers]\ncount = 4\n")
    chosen = resolve(None, {"HUB_CACHE_DIR": "/c"}, tmp_path, home=tmp_path)
    assert (chosen.threads, chosen.cache.gb, chosen.cache.dir, chosen.workers.count) == (2, 3.0, Path("/c"), 4)
    assert chosen.own == {}
    with pytest.raises(OptionError, match="HUB_CACHE_LEVEL"):
        resolve(None, {"HUB_CACHE_LEVEL": "3"}, tmp_path, home=tmp_path)


@pytest.mark.usefixtures("offset")
def test_flags_set_them_too(tmp_path: Path) -> None:
    """`--set NAME.FIELD=VALUE` on the command line."""
    (tmp_path / "model.py").write_text("import torch\ndef make():\n    return torch.nn.Tanh(), (torch.ones(2),)\n")
    flags = ["--set", "offset.device=software", "--set", "offset.offset=0.01", "--tune", "off", "--accuracy", "1", "--json"]
    done = cli(tmp_path, "explain", f"{tmp_path}/model.py:make", "--backends", "offset", *flags)
    assert done.returncode == 0, done.stderr
    assert '"offset"' in json.dumps(json.loads(done.stdout))


TYPER = """
    import typer

    app = typer.Typer()


    @app.command()
    def greet(name: str):
        "Say hello."
        typer.echo(f"hello {name}")


    @app.command()
    def other():
        pass
"""


def cli(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `hub` in a process that sees the test's plugins."""
    command = "import sys; from hub.cli import main; sys.argv[0] = 'hub'; sys.exit(main())"
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    environ = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, check=False, env=environ
    )


@pytest.mark.usefixtures("offset")
def test_what_a_machine_lacks_and_what_users_should_know_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on the settings: a backend without its device is no candidate, and says what it lacks."""
    monkeypatch.setenv("HUB_OFFSET_DEVICE", "software")
    monkeypatch.setenv("HUB_OFFSET_OFFSET", "0.5")
    (listed,) = (each for each in hub.list_backends() if each.name == "offset")
    assert (listed.available, listed.reason, listed.note) == (True, "", "off by 0.5")
    monkeypatch.setenv("HUB_OFFSET_POWER", "0")
    (listed,) = (each for each in hub.list_backends() if each.name == "offset")
    assert (listed.available, listed.reason, listed.note) == (False, "no power is here", "")


def bring_command(tmp_path: Path, name: str) -> None:
    """Add an entry point of the group `hub.commands`."""
    facts = tmp_path / "site" / f"hub_{name}-1.0.dist-info" / "entry_points.txt"
    facts.write_text(f"[hub.commands]\n{name} = hub_{name}:app\n")


def test_plugins_bring_commands(install_plugin: Install, tmp_path: Path) -> None:
    """`hub NAME` runs the plugin's command; `hub --help` names it and imports nothing."""
    install_plugin("greeter", TYPER)
    bring_command(tmp_path, "greeter")
    install_plugin("broken", "raise RuntimeError('no licence')")
    bring_command(tmp_path, "broken")
    shown = cli(tmp_path, "--help").stdout
    assert "Plugin command, from hub-greeter" in shown
    assert "Plugin command, from hub-broken" in shown
    assert cli(tmp_path, "greeter", "greet", "you").stdout == "hello you\n"
    failed = cli(tmp_path, "broken", "go")
    assert (failed.returncode, "no licence" in failed.stderr) == (1, True)
    assert "greet" in cli(tmp_path, "greeter", "--help").stdout


def test_named_errors_end_plugins_commands_too(install_plugin: Install, tmp_path: Path) -> None:
    """A HubError of a plugin's command is one line, a hint and status 1, without a traceback."""
    raising = "import typer\nfrom hub.errors import CompileError\napp = typer.Typer()\n\n"
    raising += "@app.command()\ndef fail():\n    raise CompileError('no such file', hint='make one')\n\n"
    install_plugin("failing", raising + "@app.command()\ndef other():\n    pass\n")
    bring_command(tmp_path, "failing")
    failed = cli(tmp_path, "failing", "fail")
    assert (failed.returncode, failed.stderr) == (1, "error: no such file\nhint: make one\n")


def test_commands_of_one_name_are_named_with_who_brings_them(install_plugin: Install, tmp_path: Path) -> None:
    """One of two plugins would win silently, and one named like the hub's own would never run."""
    for name in ("first", "second", "run"):
        install_plugin(name, TYPER)
        bring_command(tmp_path, name)
    for name in ("first", "second"):
        facts = tmp_path / "site" / f"hub_{name}-1.0.dist-info" / "entry_points.txt"
        facts.write_text(f"[hub.commands]\ngreeter = hub_{name}:app\n")
    failed = cli(tmp_path, "greeter", "greet", "you")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: hub-first and hub-second bring a command 'greeter'")
    shown = cli(tmp_path, "--help")
    assert "warning: hub-run brings a command 'run', which the hub has itself" in shown.stderr
    assert "Run a model" in shown.stdout


FAILING = """
    import typer

    app = typer.Typer()


    @app.command()
    def go():
        raise KeyError("lost\\nmore")


    @app.command()
    def stay():
        pass
"""


def test_a_plugins_command_that_fails_is_no_mistake_of_the_hubs(install_plugin: Install, tmp_path: Path) -> None:
    """It has no --verbose, so its message is whole; a module that ends the process is no success."""
    install_plugin("failing", FAILING)
    bring_command(tmp_path, "failing")
    install_plugin("leaving", "import sys; sys.exit(0)")
    bring_command(tmp_path, "leaving")
    failed = cli(tmp_path, "failing", "go")
    assert failed.returncode == 1
    assert "more" in failed.stderr
    assert "mistake in the plugin" in failed.stderr
    assert "--verbose" not in failed.stderr
    left = cli(tmp_path, "leaving", "go")
    assert (left.returncode, "'leaving' cannot be loaded: SystemExit" in left.stderr) == (1, True)
