"""A thousand random decoders by each backend alone: `make test-decoders`, for hours.

Its name keeps it out of `make test`. With DECODERS_DONE=FILE it notes there what passed, and with which PyTorch, and skips
that the next time; DECODERS_BACKENDS=disc,tvm and DECODERS=0:250 run a part.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hub.discovery.registry import registry
from tests.opdb.done import note, passed_before
from tests.test_random_decoders import DECODERS, check_alone

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")  # Inductor's own imports
DONE = Path(os.environ["DECODERS_DONE"]) if os.environ.get("DECODERS_DONE") else None
PASSED = passed_before(DONE)
BACKENDS = tuple(filter(None, os.environ.get("DECODERS_BACKENDS", "").split(","))) or registry().available()
FIRST, END = map(int, (os.environ.get("DECODERS") or f"0:{DECODERS}").split(":"))


@pytest.mark.parametrize("number", range(FIRST, END))
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_decoder(backend: str, number: int) -> None:
    """Logits and caches are eager's in every call, and nothing failed or was caught."""
    if (case := f"{backend}-{number}") in PASSED:
        pytest.skip("passed before: DECODERS_DONE")
    check_alone(backend, number)
    note(DONE, case)
