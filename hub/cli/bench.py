"""`hub bench`."""

from __future__ import annotations

import datetime
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from hub.bench.contenders import contenders
from hub.bench.machine import this_machine
from hub.bench.models import check_name
from hub.bench.race import Task, race
from hub.bench.result import Benchmark, against_others, ranked
from hub.bench.table import benchmark_text
from hub.errors import HubError
from hub.options import resolve
from hub.report.progress import progress_for

_STANDARD_OUTPUT = "-"


def print_bench(
    model: str, against: str | None, rounds: int, batch: int | None, given: Mapping[str, Any], json: str | None
) -> None:
    """Runs the benchmark, prints the table, and writes JSON where asked. Raises HubError if nobody could run."""
    check_name(model)
    names = None if against is None else [name.strip() for name in against.split(",") if name.strip()]
    run = benchmark(model, names, rounds, batch, given)
    if json != _STANDARD_OUTPUT:
        typer.echo(benchmark_text(run))
    if json is not None:
        _write(json, run.to_json() + "\n")
    if not any(one.call_s for one in run.results):
        raise HubError("no contender could run", hint="`hub list-backends --probe` says what works here")


def benchmark(model: str, names: list[str] | None, rounds: int, batch: int | None, given: Mapping[str, Any]) -> Benchmark:
    """Gives a whole run of the hub against the named contenders. Raises HubError for unknown names."""
    options = resolve(given, os.environ, Path.cwd())
    task = Task(model, batch, given, threads=options.threads, accuracy=options.accuracy, rounds=rounds)
    machine = this_machine()
    progress = progress_for(model)
    try:
        found = race(contenders(names), task, progress)
    finally:
        progress.done()
    results = ranked(found.results)
    hub_to_others, best_other = against_others(results)
    return Benchmark(
        model=model,
        inputs=found.inputs,
        threads=found.threads,
        rounds=rounds,
        block_s=task.block_s,
        command=shlex.join(("hub", *sys.argv[1:])),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=machine,
        results=results,
        hub_to_others=hub_to_others,
        best_other=best_other,
    )


def _write(place: str, text: str) -> None:
    if place == _STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    try:
        Path(place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise HubError(f"{place} cannot be written: {error.strerror}") from error
