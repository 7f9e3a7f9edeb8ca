"""Importing plugins: what an import does to its process costs the plugin, and is remembered for its version."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hub.registry import registry
from hub.trial import MEMORY

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
    "register junk": (REGISTERING.format(act="return ['fatal']"), "gave a str, no BackendInfo"),
    "register for ever": (REGISTERING.format(act="return itertools.count()"), "more than 1000 backends"),
}

Install = Callable[[str, str], None]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fatal_import_costs_the_plugin(fault: str, install_plugin: Install) -> None:
    """The process lives, the plugin is listed as broken with the reason, and the others work."""
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
    """The limit is for each, though one process imports them all."""
    for name in ("loud_one", "loud_two"):
        install_plugin(name, f"print('x' * 700_000)\n{REGISTERING.format(act='').replace('fatal', name)}")
    entries = registry().entries
    assert [entries[name].status.reason for name in ("loud_one", "loud_two")] == ["", ""]


def test_a_hanging_import_is_ended(install_plugin: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that does not come back is given up."""
    monkeypatch.setattr("hub.trial.TRIAL_S", 3.0)
    install_plugin("slow", "import time; time.sleep(1000)")
    assert "no answer within 3 s" in registry().entries["slow"].status.reason


def test_what_was_found_is_remembered(install_plugin: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process starts no child, and still does not import what crashed; another version is tried anew."""
    install_plugin("fatal", FAULTS["crash"][0])
    assert not registry().entries["fatal"].status.accepted
    known = json.loads((Path(os.environ["HUB_CACHE_DIR"]) / MEMORY).read_text())
    assert sum("SIGSEGV" in fault for fault in known.values()) == 1
    with monkeypatch.context() as context:
        context.setattr("hub.trial.run_child", lambda *_, **__: pytest.fail("a child was started"))
        registry.cache_clear()
        assert "SIGSEGV" in registry().entries["fatal"].status.reason
    install_plugin("later", "")
    assert registry().entries.keys() >= {"fatal"}
    assert len(json.loads((Path(os.environ["HUB_CACHE_DIR"]) / MEMORY).read_text())) == len(known) + 1


def test_a_spoiled_memory_is_made_anew(install_plugin: Install) -> None:
    """A file that holds something else is ignored."""
    (Path(os.environ["HUB_CACHE_DIR"]) / MEMORY).write_text("[1, 2")
    install_plugin("fatal", FAULTS["crash"][0])
    assert "SIGSEGV" in registry().entries["fatal"].status.reason
