"""Fixtures for every test: a cache and a configuration of its own, and a way to install plugins as a user would."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hub.discovery import registry as registry_module
from hub.frontend import record
from hub.plan import Plan
from hub.process.modes import modes, set_modes
from tests import ledger, slices

Install = Callable[[str, str], None]

pytest_plugins = ["hub.testing.backends_ran"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell makes background jobs ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


COMPILED_SLOWLY = ("iree",)
"""Backends that start a compiler for each program: tests of every backend include them in one slice only."""


def pytest_configure(config: pytest.Config) -> None:
    """Enter long tests that pass in the ledger, if the environment asks for it."""
    ledger.install(config)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of long files, and of the slowly compiled backends, as slow unless it is their turn.

    Tests whose parameters are drawn have a turn already, and so have conformance's steps. A test's turn follows from its
    name, because positions differ if only some tests are collected.
    """
    for item in items:
        if any(map(item.get_closest_marker, ("drawn", "sampled", "slow"))):
            continue
        call: Any = getattr(item, "callspec", None)
        values = () if call is None or "conformance" in item.path.parts else call.params.values()
        is_slow = any(isinstance(value, str) and value in COMPILED_SLOWLY for value in values)
        one_in = slices.SLICES if is_slow else slices.long_files().get(item.nodeid.partition("::")[0], 1)
        if not slices.is_named(item.nodeid, one_in):
            item.add_marker(pytest.mark.slow)
        elif one_in > 1 and not is_slow:
            item.add_marker(pytest.mark.sampled)
    if ledger.SINCE:
        ledger.skip_passed(items, ledger.SINCE, ledger.passed())


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Seed what a module draws when it is imported: an example has the same values, regardless of earlier imports."""
    if isinstance(collector, pytest.Module):
        torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _own_compilers_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Isolate the caches of Inductor and Triton from other processes, runs and users; tests of one process share them.

    A folder for each test would cost it the seconds that Inductor needs to compile its headers.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.partition("_")[0].lower())))
        yield


FOUND = torch.get_num_threads(), modes()
"""PyTorch's settings in a new process. Cache keys contain them: another process's entries match only under equal ones."""


@pytest.fixture(autouse=True)
def _leaves_settings_alone() -> Iterator[None]:
    """Fail the test that leaves PyTorch's settings changed, rather than one that fails because of it an hour later."""
    yield
    left = torch.get_num_threads(), modes()
    if left != FOUND:
        torch.set_num_threads(FOUND[0])
        set_modes(FOUND[1])
    assert left == FOUND, "the test leaves PyTorch with other settings than it found"


@pytest.fixture(autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Isolate the test from the user's cache, from any hub.toml, and from what earlier tests compiled."""
    import os

    for name in [name for name in os.environ if name.startswith("HUB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HUB_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HUB_BACKGROUND", "0")  # else each compiled model would have a worker process during the next test
    monkeypatch.setenv("HUB_START", "wait")  # else a test would have to wait for the plan before it looks at it
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def plans_made(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Return every plan that this process makes during the test: one for each binding that is built."""
    found: list[Plan] = []
    observe = record.observe

    def observed(registry: Any, hook: str, **facts: Any) -> None:
        if hook == "hub_plan_made":
            found.append(facts["plan"])
        observe(registry, hook, **facts)

    monkeypatch.setattr(record, "observe", observed)
    return found


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return `install(name, source)`, which puts a module `hub_NAME` with an entry point on the path, as pip would.

    A plugin that imports torch only where it uses it saves each test two seconds: a new process imports a new plugin.
    """
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    names: list[str] = []

    def install(name: str, source: str) -> None:
        (site / f"hub_{name}.py").write_text(textwrap.dedent(source))
        facts = site / f"hub_{name}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hub-{name}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[hub]\n{name} = hub_{name}\n")
        names.append(name)
        registry_module.registry.cache_clear()

    yield install
    registry_module.registry.cache_clear()
    for name in names:
        sys.modules.pop(f"hub_{name}", None)
