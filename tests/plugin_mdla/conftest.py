"""The plugin's backend on the software device, and a stand-in for Micron's library, built by the C compiler."""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata as metadata
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hub.discovery.registry import registry
from plugin_mdla.backend import Mdla
from plugin_mdla.settings import Settings

SOURCE = Path(__file__).with_name("stand_in.c")


@pytest.fixture
def simulated() -> Callable[..., Mdla]:
    """Return `simulated(format="q8.8", ...)`: the backend on the software device."""
    return lambda **settings: Mdla(Settings(simulator=True, **settings))


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stand-in library; Micron's own has a closed licence."""
    path = tmp_path_factory.mktemp("library") / "libmicrondla.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", path, SOURCE, "-lm"], check=True)
    return path


@pytest.fixture
def stand_in(library_path: Path) -> Iterator[ctypes.CDLL]:
    """Yield the stand-in's own controls, with its records reset."""
    control = ctypes.CDLL(str(library_path))
    control.stand_in_flags.restype = ctypes.c_char_p
    if control.stand_in_live():
        gc.collect()  # a second of the test suite's time each, so only where an earlier test left something
    control.stand_in_reset()
    yield control
    control.stand_in_fault(b"")  # its books stay open: what lives on in caches is freed later


@pytest.fixture
def no_simulator(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plugin's entry point, with the board as its device."""
    monkeypatch.delenv("HUB_MDLA_SIMULATOR")
    registry.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Return the plugin's entry point, even if this environment's metadata is older than the plugin; simulator on."""
    if not any(point.name == "mdla" for point in metadata.entry_points(group="hub")):
        facts = tmp_path / "site" / "hub_mdla-1.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: hub-mdla\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text("[hub]\nmdla = plugin_mdla.hooks\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("HUB_MDLA_SIMULATOR", "1")
    registry.cache_clear()
    yield
    registry.cache_clear()
