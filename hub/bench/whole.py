"""A whole benchmark: contenders, race, ranking, and the facts needed to interpret the numbers."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hub.bench.contenders import contenders
from hub.bench.machine import this_machine
from hub.bench.race import Task, race
from hub.bench.result import Benchmark, against_others, ranked
from hub.bench.summary import compiling
from hub.config.options import resolve
from hub.config.settings import working_folder
from hub.report.progress import progress_for

ROUNDS = 15


def benchmark(
    model: str,
    against: Sequence[str] | None = None,
    *,
    rounds: int = ROUNDS,
    batch: int | None = None,
    options: Mapping[str, Any] | None = None,
    small: bool = False,
    fresh: bool = False,
    command: Sequence[str] | None = None,
) -> Benchmark:
    """Return the times of the hub and of the contenders named in `against`; None means eager and every available peer.

    `model` is a built-in name, `package.module:factory` or `file.py:factory`. `options` are for the hub, except `threads`
    and `accuracy`, which apply to all contenders. With `fresh`, all begin with empty caches of their own.
    `command` is recorded in the result as the command that produced it. Raise HubError for unknown names.
    """
    chosen = resolve(options, os.environ, working_folder())
    given = dict(options or {})
    task = Task(model, batch, given, chosen.threads, chosen.accuracy, rounds, small=small, is_fresh=fresh)
    machine = this_machine()
    progress = progress_for(Path(model).name)
    try:
        found = race(contenders(against), task, progress)
    finally:
        progress.done()
    results = ranked(found.results)
    hub_to_others, best_other = against_others(results)
    run = Benchmark(
        model=model,
        batch=batch,
        options=json.loads(chosen.model_dump_json(include={*given, "own"})),
        is_fresh=fresh,
        inputs=found.inputs,
        threads=found.threads,
        rounds=rounds,
        block_s=task.block_s,
        command=shlex.join(command or (Path(sys.argv[0]).name, *sys.argv[1:])),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=machine,
        results=results,
        hub_to_others=hub_to_others,
        best_other=best_other,
    )
    cold = compiling(run)
    shares = {"isolation_share": cold.isolation_share, "verification_share": cold.verification_share}
    return run.model_copy(update=shares)
