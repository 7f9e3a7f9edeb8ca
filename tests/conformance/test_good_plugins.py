"""The hub's own plugins and the example plugin keep every promise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hub.discovery import registry as registry_module
from hub.discovery.registry import registry
from hub.testing.backends_ran import note
from hub.testing.conformance.catalogue import EXAMINATIONS
from hub.testing.conformance.step import HANDSHAKE, Step
from hub.testing.conformance.suite import Suite, check_backend
from tests import slices

EXAMPLE = Path(__file__).parent.parent / "example_plugin" / "src"

BACKENDS_RAN = 0.25
"""Share of a backend's steps in which something was examined and passed, and not only declared not applicable."""
COMPILED_SLOWLY = ("iree",)
"""Backends that start a compiler for each program, of which most examinations compile several."""
HAS_HARD = os.environ.get("CONFORMANCE_HARD") == "1"
"""True in `make test-conformance`: on hard values, not every table has been examined whole yet."""
SHORT_TURNS = 8
"""Number of commits within which all steps run that are not long."""
INTERRUPTED = ("onnxruntime", "openvino", "disc")
"""Backends whose interrupted compilations are no long step: others have compilers that take seconds."""


def steps() -> Iterator[Any]:
    """Yield every step of every backend's examination; others than the handshake run in one of some commits."""
    turns, short_turns = count(), count()
    for name in registry().available():
        for examination, kind in EXAMINATIONS.items():
            for subject in kind.subjects(registry().entries[name]):
                step = Step(examination, subject, kind.checks[0])
                if step.examination == HANDSHAKE:
                    is_drawn = True
                elif is_long(name, step):
                    is_drawn = slices.is_drawn(next(turns))
                else:
                    is_drawn = slices.is_drawn(next(short_turns), SHORT_TURNS)
                marks = pytest.mark.sampled if is_drawn else pytest.mark.slow
                yield pytest.param(name, step, id=f"{name} {step.examination} {step.subject}", marks=marks)


def is_long(backend: str, step: Step) -> bool:
    """Return True if `make test` has time for the step only in one of `slices.SLICES` commits."""
    if step.examination == "interruption":
        return backend not in INTERRUPTED
    return step.examination == "operators" or (backend in COMPILED_SLOWLY and step.examination != HANDSHAKE)


@pytest.fixture(scope="module")
def suites() -> Iterator[dict[str, Suite]]:
    """Return one suite per backend, so that its process starts once."""
    begun = {name: Suite(name, has_hard=HAS_HARD) for name in registry().available()}
    yield begun
    for suite in begun.values():
        suite.close()


@pytest.mark.parametrize(("backend", "step"), list(steps()))
def test_own_plugins_keep_every_promise(
    backend: str, step: Step, suites: dict[str, Suite], request: pytest.FixtureRequest
) -> None:
    """What a plugin of ours declares is true, operator by operator and step by step, and most of it applies."""
    findings = suites[backend].examine(step)
    assert findings
    note(request, backend, has_run=any(finding.verdict == "passed" for finding in findings))
    assert [str(finding) for finding in findings if finding.verdict == "failed"] == []


def test_the_example_plugin_keeps_every_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin from which people start passes the suite."""
    facts = tmp_path / "hub_numpy-0.1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: hub-numpy\nVersion: 0.1.0\n")
    (facts / "entry_points.txt").write_text("[hub]\nnumpy = hub_numpy\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    registry_module.registry.cache_clear()
    score = check_backend("numpy")
    assert [str(finding) for finding in score.findings if finding.verdict == "failed"] == []
    assert score.package == "hub-numpy 0.1.0"
    assert score.by_check()["support"].passed >= 5
