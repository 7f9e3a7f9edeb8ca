"""Every sample call of PyTorch's own operator database, in four dtypes, through the hub: `make test-opdb`, for hours.

Its name keeps it out of `make test`. With OPDB_DONE=FILE it records there what passed, and with which PyTorch, and skips
that the next time, including parts of operators with thousands of samples; with OPDB_BACKENDS=onnxruntime,openvino only
these backends may bid, and they get everything that they support. Their own variables apply then: HUB_TRITON_INTERPRET=1,
say. With OPDB_DECLARED=1 in addition, operators that none of them declares are left out.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hub.config.options import resolve
from hub.discovery.registry import registry
from tests.opdb.allowed import is_listed, not_allowed
from tests.opdb.calls import Call, calls_of, cells_of, operators
from tests.opdb.declared import declared_cells
from tests.opdb.done import note, passed_before
from tests.opdb.findings import Examination
from tests.opdb.tally import Tally

DONE = Path(os.environ["OPDB_DONE"]) if os.environ.get("OPDB_DONE") else None
PASSED = passed_before(DONE)
BACKENDS = tuple(filter(None, os.environ.get("OPDB_BACKENDS", "").split(",")))
VARIABLES = {
    name: text for name, text in os.environ.items() if any(name.startswith(f"HUB_{each.upper()}_") for each in BACKENDS)
}
"""Read here, because every test begins without any."""
COMPILED_SLOWLY = ("inductor", "iree")
"""Backends that start a compiler for each program. Of operators with thousands of samples, they may bid on a tenth."""
THOUSANDS = 1000
PART = 100
"""Calls after which one backend's progress is noted."""
LIMIT_S = 3 * 3600
"""Seconds for one operator: the limit that holds for other tests ended those with thousands of samples."""
CELLS = [cell for name in operators() for cell in cells_of(name)]
if BACKENDS and os.environ.get("OPDB_DECLARED"):
    CELLS = declared_cells(CELLS, BACKENDS)
CASES = {f"{cell.operator}-{cell.mode}": (cell.operator, cell.mode) for cell in CELLS}


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Count over everything that this process runs, and fail at the end if backends ran too little of it.

    A selection by `-k` may contain only what no backend supports.
    """
    found = Tally(0.0, backends=BACKENDS) if BACKENDS else Tally()  # one backend alone may take few operators
    yield found
    complaint = "" if request.config.option.keyword else found.complaint()
    assert not complaint, complaint


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("case", CASES)
def test_every_call_is_eagers(
    case: str, tally: Tally, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results, strides, shared memory, written arguments, gradients and errors are eager's, on every sample."""
    operator, mode = CASES[case]
    if case in PASSED:
        pytest.skip("passed before: OPDB_DONE")
    for name, text in VARIABLES.items():
        monkeypatch.setenv(name, text)
    check_backends()
    monkeypatch.setenv("HUB_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    options: dict[str, Any] = {"tune": "off"}
    if BACKENDS:
        options["backends"] = BACKENDS
    calls = [call for cell in cells_of(operator) if cell.mode == mode for call in calls_of(cell)]
    for part, excluded in parts_of(calls):
        if (piece := f"{case}: {len(part)} calls from {part[0]}") in PASSED:
            continue
        examination = Examination({**options, "exclude": excluded}, alone=is_listed)
        wrong = not_allowed(part, examination.findings(part))
        tally.add(operator, examination)
        assert not wrong, "\n".join(wrong)
        assert not examination.fallbacks, "\n".join(examination.fallbacks)
        if len(calls) > PART:
            note(DONE, piece)
    note(DONE, case)
    gc.collect()


def parts_of(calls: Sequence[Call]) -> Iterator[tuple[Sequence[Call], tuple[str, ...]]]:
    """Yield the calls in parts, each with the backends that are not allowed on it."""
    if BACKENDS:
        yield from ((calls[start : start + PART], ()) for start in range(0, len(calls), PART))
        return
    if len(calls) < THOUSANDS:
        yield calls, ()
        return
    yield calls[::10], ()
    yield [call for place, call in enumerate(calls) if place % 10], COMPILED_SLOWLY


def check_backends() -> None:
    """Raise AssertionError if a backend that was named cannot be used: eager would be compared with itself."""
    entries = registry().configured(resolve(None, os.environ, Path.cwd())).entries
    for name in BACKENDS:
        assert name in entries, f"there is no backend {name!r}"
        assert entries[name].status.accepted, f"{name}: {entries[name].status.reason}"
