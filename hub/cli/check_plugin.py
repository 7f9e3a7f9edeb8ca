"""`hub check-plugin`: run the conformance suite on one backend and print its score."""

from __future__ import annotations

from pathlib import Path

import typer

from hub.cli.output import echo_json
from hub.errors import OptionError
from hub.report.output import check_output
from hub.report.progress import progress_for
from hub.testing.conformance.score import score_lines, write_score
from hub.testing.conformance.suite import LIMIT_S, check_backend

_STANDARD_OUTPUT = "-"
_FAILED = 1
"""Exit status if the backend broke a promise."""


def print_check(backend: str, *, only: str | None, json: str | None, limit_s: float | None) -> None:
    """Print the score, write JSON if requested, and exit with status 1 if a check failed. Raise HubError on failure."""
    if json not in (None, _STANDARD_OUTPUT):
        check_output(Path(json))
    names = tuple(name.strip() for name in (only or "").split(",") if name.strip())
    if only is not None and not names:
        raise OptionError(f"--only {only!r} names no check", hint="leave it out to run all of them")
    progress = progress_for(f"check of {backend}")
    score = check_backend(backend, only=names, limit_s=LIMIT_S if limit_s is None else limit_s, progress=progress)
    if json == _STANDARD_OUTPUT:
        echo_json(score.to_json())
    else:
        for line in score_lines(score):
            typer.echo(line)
        if json is not None:
            write_score(score, json)
    if not score.is_passed:
        raise typer.Exit(_FAILED)
