"""`hub list-backends`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import typer

from hub.cli.output import echo_json
from hub.discovery.listing import ListedBackend, list_backends
from hub.report.columns import columns
from hub.report.numbers import names_text

_HEADERS = ("backend", "version", "library", "devices", "dtypes", "operators", "supports", "package")
_WORDS = {"load": "save", "tune": "tune", "explain": "explain", "partition": "partition"}
"""Words for optional methods in the column "supports"; prices of a backend's own are no ability that users ask for."""


def print_backends(*, as_json: bool, probe: bool) -> None:
    """Print every registered backend, as JSON or as a table followed by problems and remarks."""
    listed = list_backends(probe=probe)
    if as_json:
        echo_json(json.dumps([asdict(backend) for backend in listed], indent=2))
        return
    for line in (*columns(_HEADERS, [_cells(backend) for backend in listed]), *_remarks(listed)):
        typer.echo(line)


def _cells(backend: ListedBackend) -> tuple[str, ...]:
    mark = "" if backend.available else " (not available)"
    library = f"{backend.library} {backend.library_version or '-'}" if backend.library else "-"
    return (
        backend.name + mark,
        backend.package_version,
        library,
        ", ".join(backend.devices),
        names_text(backend.dtypes),
        backend.operators,
        _abilities(backend),
        backend.package,
    )


def _abilities(backend: ListedBackend) -> str:
    claims = (
        ("dynamic shapes", backend.dynamic_shapes),
        ("training", backend.training),
        *((word, method in backend.abilities) for method, word in _WORDS.items()),
        ("probe passed", backend.probe == "passed"),
    )
    return ", ".join(name for name, holds in claims if holds) or "-"


def _remarks(listed: Sequence[ListedBackend]) -> list[str]:
    lines = [
        f"{backend.name}: {' '.join(backend.reason.split())}{f'; to fix it: {backend.install}' if backend.install else ''}"
        for backend in listed
        if not backend.available
    ]
    lines += [f"{backend.name}: {backend.note}" for backend in listed if backend.note]
    unproven = [backend for backend in listed if backend.never_ran_on]
    lines += [f"{backend.name}: has never run on {' or '.join(backend.never_ran_on)}" for backend in unproven]
    return ["", *lines] if lines else []
