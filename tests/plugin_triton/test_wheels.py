"""Triton comes in wheels of several names: any will do, in a version that the plugin knows."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from hub.cache.keys import backend_parts
from hub.discovery.registry import registry
from hub.plugin.entry import Entry
from plugin_triton import hooks
from plugin_triton.settings import DISTRIBUTIONS, VERSIONS, Settings

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Return versions of Triton's wheels, by name, that look installed while the test runs; the test fills them in."""
    found: dict[str, str] = {}
    version_of = metadata.version

    def version(name: str) -> str:
        if name in DISTRIBUTIONS and name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name] if name in DISTRIBUTIONS else version_of(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setenv("HUB_TRITON_INTERPRET", "1")
    registry.cache_clear()
    yield found
    registry.cache_clear()


def entry() -> Entry:
    return registry().entries["triton"]


@pytest.mark.parametrize(
    ("wheel", "version"),
    [
        ("triton", "3.6.0"),
        ("triton", "3.9.0"),
        ("triton-rocm", "3.6.0"),
        ("triton-rocm", "3.8.0+git3f6e4113"),
        ("pytorch-triton-rocm", "3.7.1+gitb0cf18f2.rocm7.10"),
        ("triton-xpu", "3.7.2"),
        ("pytorch-triton-xpu", "3.6.0"),
    ],
)
def test_any_wheel_brings_triton(wheel: str, version: str, installed: dict[str, str]) -> None:
    """PyTorch's wheels for AMD and Intel bring one of another name; cache keys have its version."""
    installed[wheel] = version
    assert entry().status.accepted, entry().status.reason
    assert backend_parts(entry())["libraries"] == {wheel: version}


@pytest.mark.parametrize("wheel", DISTRIBUTIONS)
@pytest.mark.parametrize("version", ["2.1.0", "3.5.1", "3.5.1+rocm7.1", "3.10.0", "4.0"])
def test_other_versions_are_refused(wheel: str, version: str, installed: dict[str, str]) -> None:
    """With what is installed, and what is needed."""
    installed[wheel] = version
    assert not entry().status.accepted
    assert entry().status.reason.startswith(f"{wheel} {version} is installed, ")
    assert set(VERSIONS.split(",")) <= set(entry().status.reason.replace(",", " ").split())


@pytest.mark.usefixtures("installed")
def test_without_any_the_wheel_for_all_is_asked_for() -> None:
    """The message says how to install it."""
    assert entry().status.reason == "triton is not installed"
    assert "compiler-hub[triton]" in entry().info.install


def test_versions_are_told_alike_everywhere() -> None:
    """At registration, under settings, and by the extra that installs it."""
    (info,) = hooks.hub_backends()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert (*info.requires,) == Settings().requires == (*extras["triton"],) == (f"triton{VERSIONS}",)
