"""What every test needs: a cache and a configuration of its own, and a way to bring plugins in as a user would."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from hub import registry as registry_module

Install = Callable[[str, str], None]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has Ctrl-C ignored in jobs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test reads or writes the user's cache or a hub.toml, nor finds what an earlier test compiled."""
    import os

    for name in [name for name in os.environ if name.startswith("HUB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HUB_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Gives `install(name, source)`: puts a module `hub_NAME` with an entry point on the path, as pip would."""
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
