"""Every architecture of transformers through `hub.compile`: `make test-architectures`, for hours.

Its name keeps it out of `make test`. With ARCHITECTURES_DONE=FILE it notes there what became of each, and skips what gave
eager's answer the next time; ARCHITECTURES=bert,llama runs a part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architectures.one import LIMIT_S
from tests.architectures.results import NO_CONFIGURATION, read_done
from tests.architectures.server import Server
from tests.architectures.tiny import NAMES

DONE = Path(os.environ["ARCHITECTURES_DONE"]) if os.environ.get("ARCHITECTURES_DONE") else None
BEFORE = read_done(DONE) if DONE is not None else {}
CHOSEN = tuple(filter(None, os.environ.get("ARCHITECTURES", "").split(","))) or NAMES


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start the server that runs architectures, once for each process of the suite."""
    with Server(LIMIT_S) as found:
        yield found


@pytest.mark.parametrize("name", CHOSEN)
def test_every_architecture(name: str, server: Server) -> None:
    """Three calls give eager's answer, without a crash or a hang."""
    if BEFORE.get(name, {}).get("outcome") == "right":
        pytest.skip("passed before: ARCHITECTURES_DONE")
    row = server.row(name)
    if DONE is not None:
        with DONE.open("a") as file:
            file.write(f"{json.dumps(row)}\n")
    if row["outcome"] == NO_CONFIGURATION:
        pytest.skip(f"{NO_CONFIGURATION}: {row['detail']}")
    assert row["outcome"] == "right", row
