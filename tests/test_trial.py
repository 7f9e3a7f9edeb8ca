"""Importing plugins: what an import does to its process costs the plugin, and is remembered for its version."""

from __future__ import annotations

import importlib.metadata as metadata
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import hub
from hub.cache.imports import IMPORTS, Imported, read_imports
from hub.cli.app import app
from hub.discovery import trial
from hub.discovery.registry import registry
from hub.process import children
from hub.process.children import Failed, Outcome

REGISTERING = """
import itertools, os
from hub import BackendInfo, hookimpl
os.environ["HUB_TEST_IMPORTED"] = "1"

@hookimpl
def hub_backends():
    {act}
    return [BackendInfo(name="fatal", factory="hub_fatal:none", summary="")]
"""
FAULTS = {
    "crash": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "leave": ("import os; os._exit(0)", "importing it ended its process"),
    "exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "raise": ("raise ValueError('no')", "ValueError: no"),
    "memory": ("kept = [bytearray(b'x') * 2**28 for _ in range(12)]", "of memory"),
    "chatter": ("import os; os.write(1, b'x' * 2**21)", "it printed 2 MB, 1 MB allowed"),
    "crash while registering": (REGISTERING.format(act="import ctypes; ctypes.string_at(0)"), "SIGSEGV"),
    "register junk": (REGISTERING.format(act="return ['fatal']"), "returned a str, not a BackendInfo"),
    "register for ever": (REGISTERING.format(act="return itertools.count()"), "more than 1000 backends"),
}

Install = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def _no_slow_imports() -> Iterator[None]:
    """Clear the record of slow imports, so that one test's do not affect another."""
    yield
    trial._slow.clear()
    children._told.clear()


def cache() -> Path:
    return Path(os.environ["HUB_CACHE_DIR"])


def known() -> Mapping[str, Imported]:
    """Return the stored imports, by plugin."""
    kept = read_imports(cache())
    assert not kept.problem
    return {one.plugin: one for one in kept.found.values()}


def forbid_trials(context: pytest.MonkeyPatch) -> None:
    context.setattr("hub.discovery.trial.run_child", lambda *_, **__: pytest.fail("a child was started"))


def entry_reason(name: str) -> str:
    """Return why a plugin cannot be used, as a new process would find out."""
    registry.cache_clear()
    return registry().entries[name].status.reason


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fatal_import_costs_the_plugin(fault: str, install_plugin: Install) -> None:
    """The process survives, the plugin is listed as broken with the reason, and the others work."""
    source, reason = FAULTS[fault]
    install_plugin("fatal", source)
    entry = registry().entries["fatal"]
    assert not entry.status.accepted
    assert reason in entry.status.reason
    model = torch.nn.Linear(4, 4).eval()
    with torch.no_grad():
        x = torch.ones(2, 4)
        torch.testing.assert_close(torch.compile(model, backend="hub", options={"tune": "off"})(x), model(x))


def test_what_an_import_changes_is_undone(install_plugin: Install) -> None:
    """A plugin that changes the process while it is imported is used, and the plan says what was restored."""
    install_plugin("fatal", REGISTERING.format(act=""))
    entry = registry().entries["fatal"]
    assert entry.status.accepted
    assert "the environment" in entry.note
    assert "HUB_TEST_IMPORTED" not in os.environ


def test_what_good_plugins_print_does_not_count_against_the_next(install_plugin: Install) -> None:
    """The limit is for each, although one process imports them all."""
    for name in ("loud_one", "loud_two"):
        install_plugin(name, f"print('x' * 700_000)\n{REGISTERING.format(act='').replace('fatal', name)}")
    entries = registry().entries
    assert [entries[name].status.reason for name in ("loud_one", "loud_two")] == ["", ""]


def test_a_hanging_import_is_ended(install_plugin: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging import is abandoned, by this process and those that it starts; others try it again."""
    monkeypatch.setattr("hub.discovery.trial.TRIAL_S", 3.0)
    install_plugin("slow", "import time; time.sleep(1000)")
    assert "no answer within 3 s; the next process tries it again" in entry_reason("slow")
    assert "slow" not in known()
    with monkeypatch.context() as context:
        forbid_trials(context)
        assert "no answer within 3 s" in entry_reason("slow")
        trial._slow.clear()
        for name, text in children.environment_of_children().items() - os.environ.items():  # in a worker
            context.setenv(name, text)
        assert "no answer within 3 s" in entry_reason("slow")
    trial._slow.clear()
    monkeypatch.setattr(
        "hub.discovery.trial._imported_elsewhere", lambda names: trial._Record(tuple(names), dict.fromkeys(names, ()), None)
    )
    monkeypatch.setattr("time.sleep", lambda _: None)  # a machine that is no longer busy
    registry.cache_clear()
    assert "slow" not in registry().entries  # it registers nothing, and no longer fails


def test_a_good_plugin_behind_slow_ones_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are for one child that imports many: a plugin that exceeds them first gets a child of its own."""
    asked: list[list[str]] = []

    slow = Failed(Outcome.OUT_OF_TIME, "no answer within 60 s")
    large = Failed(Outcome.OUT_OF_MEMORY, "it took 3 GB of memory, 2 GB allowed")

    def imported(names: list[str]) -> trial._Record:
        asked.append(list(names))
        if "big" in names:
            return trial._Record(("big", "good"), {"big": ()}, large)
        if names == ["good", "bad"]:
            return trial._Record(("good", "bad"), {"good": ()}, slow)
        return trial._Record(("bad",), {}, slow)

    monkeypatch.setattr("hub.discovery.trial._imported_elsewhere", imported)
    found = trial._tried([metadata.EntryPoint(name, f"hub_{name}", "hub") for name in ("big", "good", "bad")])
    assert asked == [["big", "good", "bad"], ["good", "bad"], ["bad"]]
    assert found.lasting == {"big": "", "good": ""}
    assert found.passing == {"bad": "importing it ended its process: no answer within 60 s"}


def test_what_was_found_is_remembered(install_plugin: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process starts no child, and still does not import what crashed; another version is tried anew."""
    install_plugin("fatal", FAULTS["crash"][0])
    assert "SIGSEGV" in entry_reason("fatal")
    before = read_imports(cache()).found
    assert [one.plugin for one in before.values() if one.fault] == ["fatal"]
    with monkeypatch.context() as context:
        forbid_trials(context)
        assert "SIGSEGV" in entry_reason("fatal")
    install_plugin("later", "")
    assert registry().entries.keys() >= {"fatal"}
    assert len(read_imports(cache()).found) == len(before) + 1


def test_a_plugin_that_was_edited_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any file next to the registering module: that of the package may be empty."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "hub_edited" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "hooks.py").write_text("import hub_edited.inner.more")
    (package / "more.py").write_text("1 / 0")
    (tmp_path / "hub_alone.py").touch()
    points = [metadata.EntryPoint(name, name, "hub") for name in ("hub_edited.inner.hooks", "hub_alone", "hub_absent")]
    before = list(map(trial._mark, points))
    assert list(map(trial._mark, points)) == before
    (package / "more.py").write_text("1 / 1")
    os.utime(package / "more.py", ns=(1, 2**62))
    (tmp_path / "hub_alone.py").write_text("pass")
    assert [trial._mark(point) == mark for point, mark in zip(points, before, strict=True)] == [False, False, True]


def test_a_mended_machine_is_told_by_forgetting(install_plugin: Install, tmp_path: Path) -> None:
    """The refusal names the command, which makes the plugin tried again although its file is the same."""
    install_plugin("fatal", f"import os\nif not os.path.exists({str(tmp_path / 'mended')!r}): os._exit(3)\n")
    assert "`hub cache forget fatal` lets it be tried again" in entry_reason("fatal")
    (tmp_path / "mended").touch()
    assert "exit status 3" in entry_reason("fatal")
    found = CliRunner().invoke(app, ["cache", "forget", "fatal"])
    assert found.output == "forgot 1 failure of fatal\n"
    registry.cache_clear()
    assert "fatal" not in registry().entries  # it registers nothing, and no longer fails
    assert known()["fatal"].fault == ""


def test_where_nothing_can_be_kept_every_process_tries(install_plugin: Install) -> None:
    """The reason does not mention forgetting."""
    cache().chmod(0o777)
    install_plugin("fatal", FAULTS["crash"][0])
    assert entry_reason("fatal").endswith("; the next process tries it again")
    assert not (cache() / IMPORTS).exists()
    (note,) = registry().notes
    assert (
        note
        == f"not taken from the cache: the cache folder is not used: others may write to {cache()}; chmod go-w {cache()}"
    )


@pytest.mark.parametrize("fault", ["damaged", "of others", "a link"])
def test_what_others_could_have_written_is_not_used(fault: str, install_plugin: Install, tmp_path: Path) -> None:
    """A file that differs from its seal, or that others could have written, is removed, and plans say so."""
    install_plugin("fatal", "")
    registry()
    path = cache() / IMPORTS
    if fault == "damaged":
        path.write_text(path.read_text().replace('"fault": ""', '"fault": "x"'))
    elif fault == "of others":
        path.chmod(0o666)
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    registry.cache_clear()
    (note,) = registry().notes
    assert note.startswith("not taken from the cache: ")
    assert str(path) in note
    assert note.endswith("; it was removed")
    assert "fatal" in known()
    compiled = torch.compile(torch.nn.Linear(4, 4).eval(), backend="hub", options={"tune": "off"})
    with torch.no_grad():
        compiled(torch.ones(2, 4))
    (plan,) = hub.plans(compiled)
    assert note in [event.message for event in plan.events]


def test_a_spoiled_memory_is_made_anew(install_plugin: Install) -> None:
    """A file that holds something else is ignored."""
    (cache() / IMPORTS).write_text("[1, 2")
    install_plugin("fatal", FAULTS["crash"][0])
    assert "SIGSEGV" in entry_reason("fatal")
    assert "SIGSEGV" in known()["fatal"].fault


def test_the_folder_of_a_settings_file_counts(
    install_plugin: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is used for imports as for all other entries; a variable overrides it."""
    (tmp_path / "hub.toml").write_text('[cache]\ndir = "kept here"\n')
    monkeypatch.chdir(tmp_path)
    install_plugin("harmless", "")
    registry()
    assert not (tmp_path / "kept here").exists()
    monkeypatch.delenv("HUB_CACHE_DIR")
    registry.cache_clear()
    registry()
    assert "harmless" in {one.plugin for one in read_imports(tmp_path / "kept here").found.values()}
