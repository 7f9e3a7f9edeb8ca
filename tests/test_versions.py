"""The versions that are declared, promised to readers, pinned for tests and checked by tools are the same ones."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from hub.discovery.registry import registry
from tests.sources import SOURCES, imports_of

ROOT = Path(__file__).resolve().parents[1]
DECLARED: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = DECLARED["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
README = (ROOT / "README.md").read_text()
PYTHONS = [f"3.{minor}" for minor in range(30) if SpecifierSet(PROJECT["requires-python"]).contains(f"3.{minor}.1")]
"""Every Python that may install the hub."""
(TORCH,) = (text for text in PROJECT["dependencies"] if Requirement(text).name == "torch")


def pinned() -> dict[str, Version]:
    """Return what `make test` and `make demo` install, by name."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, _, version in (line.partition("==") for line in lines)}


def required() -> Iterator[Requirement]:
    """Yield every requirement of the package and of its extras."""
    for text in (*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)):
        if (found := Requirement(text)).name != PROJECT["name"]:
            yield found


def test_what_is_pinned_is_what_is_required() -> None:
    """Each requirement, also of extras, has one pinned version, which it admits: tests run what users may have."""
    versions = pinned()
    assert {requirement.name for requirement in required() if canonicalize_name(requirement.name) not in versions} == set()
    admitted = {str(each): each.specifier.contains(versions[canonicalize_name(each.name)]) for each in required()}
    assert [text for text, is_admitted in admitted.items() if not is_admitted] == []


def test_the_package_requires_what_the_core_imports() -> None:
    """Each requirement is imported by the core itself: what only tests, tools or plugins need is in an extra."""
    core = [name for name in SOURCES if name.partition(".")[0] == "hub"]
    imported = {item.target.partition(".")[0] for name in core for item in imports_of(name)}
    assert [text for text in PROJECT["dependencies"] if Requirement(text).name not in imported] == []


def test_readers_are_told_what_is_declared() -> None:
    """README names PyTorch's range and each Python, and the one version of PyTorch with which tests run."""
    assert f"`{TORCH}`" in README
    assert f"Python {' and '.join(PYTHONS)}," in README
    assert f"They need Python {' or '.join(PYTHONS)}," in README
    assert f"with PyTorch {pinned()['torch']}" in README


def test_pythons_that_make_looks_for_are_those_declared() -> None:
    """The first one found makes the environment, so that no other one does while one of these exists."""
    (line,) = re.findall(r"^PYTHON \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert re.findall(r"python(3\.\d+)", line) == PYTHONS


def test_tools_check_for_the_oldest_python() -> None:
    """The linter or the type checker finds what only a newer one has, whichever Python runs them."""
    oldest = PYTHONS[0]
    assert DECLARED["tool"]["basedpyright"]["pythonVersion"] == oldest
    assert DECLARED["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"


@pytest.mark.parametrize("name", [name for name in registry().entries if name in EXTRAS])
def test_a_backend_requires_what_its_extra_installs(name: str) -> None:
    """A plugin's requirement for its use is in its extra, or is PyTorch's range, in the same words."""
    installed = {*EXTRAS[name], *PROJECT["dependencies"]}
    assert set(registry().entries[name].info.requires) <= installed


def test_every_backend_has_an_extra() -> None:
    """`compiler-hub[NAME]` installs what a backend of that name needs."""
    assert set(PROJECT["entry-points"]["hub"]) <= set(EXTRAS)
