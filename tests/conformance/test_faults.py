"""A plugin with one fault fails the check that is about it, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from hub.testing.conformance.finding import CHECKS
from hub.testing.conformance.score import Score
from hub.testing.conformance.suite import check_backend

Toy = Callable[[str], None]

FAULTS = {
    "unknown dtype": ("handshake", "float33"),
    "other api": ("handshake", "plugin API 9.0"),
    "heavy listing": ("handshake", "imports torch"),
    "wrong signature": ("handshake", "estimate(cluster) does not fit estimate(cluster, settings)"),
    "exit at creation": ("handshake", "SystemExit: 3"),
    "crash at import": ("handshake", "killed by SIGSEGV"),
    "no verdict": ("support", "supports() returned a bool"),
    "crash in compile": ("support", "killed by SIGSEGV, at aten.add.Tensor(float32"),
    "strides unread": ("numerics", "with transposed inputs: output 0:"),
    "buffer handed out again": ("memory", "returned memory that an earlier call returned"),
    "one size": ("dynamic", "mlp with size 2: RuntimeError: compiled for another size"),
    "weights left out of a key": ("weights", "gives the results of the first ones"),
    "one caller": ("threads", "RuntimeError: busy"),
    "wrong after loading": ("saving", "gives other results than before it was saved"),
    "one bit off now and then": ("determinism", "call 2 returned other bits than call 1"),
    "lock stays": ("interruption", "does not compile in the next process"),
    "files left open": ("resources", "open files grow"),
}
"""Fault -> the one check that it fails, and what the finding says. Each goes through the whole suite."""

VARIANTS = {
    "crash in the probe": ("handshake", "killed by SIGSEGV"),
    "cannot compile add": ("support", "NotImplementedError: add is not there yet"),
    "undeclared operator": ("support", "aten.neg.default is accepted, though not declared"),
    "untrue dtype": ("support", "dtype int64"),
    "int8 declared in vain": (
        "support",
        "support: aten.relu.default in int8: failed: its row names int8, and every call in it is",
    ),
    "wrong in int8": ("numerics", "numerics: aten.relu.default in int8: failed: aten.relu.default(int8["),
    "NaN lost": ("numerics", "NaN or infinity"),
    "input written to": ("memory", "an input was written to"),
    "path kept": ("saving", "FileNotFoundError"),
    "crash on damage": ("saving", "digest.txt is empty: CompileError: the worker process died: killed by SIGSEGV"),
    "damage unseen": ("saving", "digest.txt ends in the middle: it loads, and gives wrong results"),
    "order of a set": ("determinism", "BackendInfo.devices is"),
    "state stays": ("interruption", "a compilation is under way"),
    "threads left": ("resources", "open threads grow"),
}
"""Other faults that a check finds, looked at by that check alone."""


def failures(score: Score) -> dict[str, str]:
    """Return the failed checks, each with its messages."""
    failed = [finding for finding in score.findings if finding.verdict == "failed"]
    return {
        check: "\n".join(str(finding) for finding in failed if finding.check == check)
        for check in dict.fromkeys(finding.check for finding in failed)
    }


def test_each_check_has_a_fault_that_fails_it() -> None:
    """No check is without a plugin that fails it; overhead is reported and never failed."""
    assert {check for check, _ in FAULTS.values()} == set(CHECKS) - {"overhead"}


def test_a_good_plugin_passes(install_toy: Toy) -> None:
    """Nothing fails, and every check has something to say."""
    install_toy("")
    score = check_backend("faulty")
    assert failures(score) == {}
    assert score.is_passed
    assert {name for name, count in score.by_check().items() if count.passed} == set(CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_check_alone(fault: str, install_toy: Toy) -> None:
    """The finding says what is wrong; all other checks pass or do not apply."""
    check, said = FAULTS[fault]
    install_toy(fault)
    found = failures(check_backend("faulty"))
    assert set(found) == {check}, found
    assert said in found[check]


def some_slow(faults: Iterable[str]) -> list[Any]:
    """Return one fault of each check, and the others marked slow: each runs whole examinations."""
    seen: set[str] = set()
    cases: list[Any] = []
    for fault in faults:
        check = {**FAULTS, **VARIANTS}[fault][0]
        cases.append(pytest.param(fault, marks=(pytest.mark.slow,) if check in seen else ()))
        seen.add(check)
    return cases


@pytest.mark.parametrize("fault", some_slow((*FAULTS, *VARIANTS)))
def test_a_check_finds_its_faults(fault: str, install_toy: Toy) -> None:
    """Each check, made alone, looks at its promise from several sides."""
    check, said = (FAULTS | VARIANTS)[fault]
    install_toy(fault)
    found = failures(check_backend("faulty", only=(check,)))
    assert said in found[check]


def test_a_hang_costs_one_subject(install_toy: Toy) -> None:
    """The operator that hangs is named, with the call; the others are examined."""
    install_toy("hang in compile")
    score = check_backend("faulty", only=("support",), limit_s=10.0)
    failed = [finding for finding in score.findings if finding.verdict == "failed"]
    assert {finding.subject for finding in failed} == {"aten.add.Tensor"}
    assert "no answer within 10 s, at aten.add.Tensor(float32" in failed[0].reason
    assert any(finding.subject == "program mlp" and finding.verdict == "passed" for finding in score.findings)


def test_what_does_not_load_is_told_once(install_toy: Toy) -> None:
    """Where the factory fails, the rest does not apply, whatever it would have looked at."""
    install_toy("exit at creation")
    score = check_backend("faulty")
    assert all(
        finding.verdict == "not applicable" and "does not load" in finding.reason
        for finding in score.findings
        if finding.check != "handshake"
    )
    assert not score.is_passed
