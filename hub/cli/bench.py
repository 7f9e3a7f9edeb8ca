"""`hub bench`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from hub.bench.table import benchmark_text
from hub.bench.whole import benchmark
from hub.errors import HubError

_STANDARD_OUTPUT = "-"


def print_bench(
    model: str, against: str | None, rounds: int, batch: int | None, given: Mapping[str, Any], json: str | None
) -> None:
    """Runs the benchmark, prints the table, and writes JSON where asked. Raises HubError if nobody could run."""
    _check_place(json)
    names = None if against is None else [name.strip() for name in against.split(",") if name.strip()]
    run = benchmark(model, names, rounds=rounds, batch=batch, options=given)
    if json != _STANDARD_OUTPUT:
        typer.echo(benchmark_text(run))
    if json == _STANDARD_OUTPUT:
        typer.echo(run.to_json())
    elif json is not None:
        Path(json).write_text(run.to_json() + "\n", encoding="utf-8")
    if not any(one.call_s for one in run.results):
        raise HubError("no contender could run", hint="`hub list-backends --probe` says what works here")


def _check_place(json: str | None) -> None:
    """Raises HubError, before minutes of timing, if the folder of the JSON file is not there."""
    if json not in (None, _STANDARD_OUTPUT) and not Path(json).parent.is_dir():
        raise HubError(f"there is no folder {Path(json).parent} for {json}")
