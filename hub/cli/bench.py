"""`hub bench`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from hub.bench import zoo
from hub.bench.cold import Cold, cold_start
from hub.bench.cold_table import cold_text
from hub.bench.contenders import HUB, contenders, more_names, zoo_names
from hub.bench.markdown import goals_text
from hub.bench.models import check_name
from hub.bench.result import FailureKind
from hub.bench.sweep import TABLE, Sweep, runs_of, sweep
from hub.bench.table import benchmark_text
from hub.bench.whole import ROUNDS, benchmark
from hub.cli.output import echo_json
from hub.errors import BenchmarkError, CaptureError, HubError, OptionError
from hub.report.output import check_output

_STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class CommonFlags:
    """Flags shared by single-model runs and the zoo."""

    against: str | None
    rounds: int | None
    """Blocks of calls of each contender; None unless given, as in `ZooFlags`: then it is `ROUNDS`."""
    given: Mapping[str, Any]
    alone: bool = False
    ablation: bool = False
    warm: bool = False
    isolation: bool = False
    small: bool = False
    fresh: bool = False


OUTPUT = "hub-bench"
"""Folder of the results with `--zoo`, unless another one is named."""
_BATCHES = 2
"""Batch sizes of each model with `--zoo`, unless the number is given."""


@dataclass(frozen=True, slots=True)
class ZooFlags:
    """Flags of `--zoo`, and the single-model flags that do not apply to it."""

    model: str | None
    models: str | None
    batches: int | None
    batch: int | None
    json: str | None
    output: str | None
    resume: bool = False


def print_bench(flags: CommonFlags, wanted: ZooFlags) -> None:
    """Run the benchmark, print the table, and write JSON if requested. Raise BenchmarkError if no contender could run."""
    model, batch, json = wanted.model, wanted.batch, wanted.json
    if model is None:
        raise OptionError("no model was named", hint="`hub bench MODEL`, or `hub bench --zoo` for all built-in ones")
    given = {"--models": wanted.models is not None, "--batches": wanted.batches is not None}
    given |= {"--output": wanted.output is not None, "--resume": wanted.resume}
    for name in (name for name, is_given in given.items() if is_given):
        raise OptionError(f"{name} needs --zoo", hint="`hub bench MODEL --json FILE` writes the result of one model")
    _check_place(json)
    run = benchmark(
        model,
        _against(flags, lambda: [one.name for one in contenders()]),
        rounds=flags.rounds or ROUNDS,
        batch=batch,
        options=flags.given,
        small=flags.small,
        fresh=flags.fresh or flags.warm or flags.isolation,
    )
    if json != _STANDARD_OUTPUT:
        typer.echo(benchmark_text(run))
    if json == _STANDARD_OUTPUT:
        echo_json(run.to_json())
    elif json is not None:
        Path(json).write_text(run.to_json() + "\n", encoding="utf-8")
    if missed := [one.failure for one in run.results if one.failure_kind is FailureKind.CAPTURE]:
        raise CaptureError(missed[0], hint="`hub explain MODEL` says more")
    if failed := next((one.failure for one in run.results if one.name == HUB and one.failure), ""):
        raise BenchmarkError(f"the hub failed: {failed}", hint="`hub run MODEL` says more")
    if not any(one.call_s for one in run.results):
        raise BenchmarkError("no contender could run")


def print_zoo(flags: CommonFlags, wanted: ZooFlags) -> None:
    """Benchmark built-in models and print how far the goals were met. Raise HubError on failure.

    Each model adds one line on standard error.
    """
    for name, value in (("MODEL", wanted.model), ("--batch", wanted.batch), ("--json", wanted.json)):
        if value is not None:
            raise OptionError(f"{name} cannot be combined with --zoo", hint="see --models, --batches and --output")
    models = tuple(zoo.MODELS) if wanted.models is None else _names(wanted.models)
    names = _against(flags, zoo_names)
    contenders(names)  # reports a misspelt name before anything runs
    asked = Sweep(
        Path(wanted.output or OUTPUT),
        names,
        models,
        wanted.batches or _BATCHES,
        flags.rounds or ROUNDS,
        flags.given,
        small=flags.small,
        resume=wanted.resume,
    )
    found = sweep(asked, lambda line: typer.echo(line, err=True))
    typer.echo("\n".join(goals_text(found)))
    typer.echo(f"\n{asked.folder / TABLE} has the rest")
    results = (one for run in runs_of(asked) for one in run.results)
    if not any(one.call_s for one in results):
        raise BenchmarkError("no contender could run")


def print_cold(flags: CommonFlags, wanted: ZooFlags, *, is_zoo: bool) -> None:
    """Start one model, or the built-in ones, with empty caches, and print what each wait consisted of.

    Raise HubError if the model cannot run. Of several models, those that cannot run are reported on standard error, and
    the others continue.
    """
    models = _cold_models(flags, wanted, is_zoo=is_zoo)
    _check_place(wanted.json)
    found: list[Cold] = []
    for model in models:
        try:
            cold = cold_start(model, batch=wanted.batch, options=flags.given, small=flags.small)
        except HubError as error:
            if not is_zoo:
                raise
            typer.echo(f"{model}: {error}", err=True)
            continue
        found.append(cold)
        if wanted.json != _STANDARD_OUTPUT:
            typer.echo(f"{cold_text(cold)}\n")
    if not found:
        raise BenchmarkError("no model could be started", hint="`hub explain MODEL` says more")
    texts = ",\n".join(cold.to_json() for cold in found)
    text = f"[{texts}]" if is_zoo else texts
    if wanted.json == _STANDARD_OUTPUT:
        echo_json(text)
    elif wanted.json is not None:
        Path(wanted.json).write_text(f"{text}\n", encoding="utf-8")


def _cold_models(flags: CommonFlags, wanted: ZooFlags, *, is_zoo: bool) -> tuple[str, ...]:
    """Return the models of a cold start. Raise OptionError for flags that do not apply to one."""
    others = {"--against": flags.against is not None, "--alone": flags.alone, "--ablation": flags.ablation}
    others |= {"--warm": flags.warm, "--isolation": flags.isolation, "--resume": wanted.resume}
    others |= {"--rounds": flags.rounds is not None, "--batches": wanted.batches is not None}
    others |= {"--output": wanted.output is not None}
    others |= {"MODEL": is_zoo and wanted.model is not None, "--models": not is_zoo and wanted.models is not None}
    for name, is_given in others.items():
        if is_given:
            raise OptionError(f"{name} cannot be combined with --cold", hint="`hub bench MODEL --cold`, or `--zoo --cold`")
    if not is_zoo:
        if wanted.model is None:
            raise OptionError("no model was named", hint="`hub bench MODEL --cold`, or `--zoo --cold --models A,B`")
        return (wanted.model,)
    names = tuple(zoo.MODELS) if wanted.models is None else _names(wanted.models)
    for name in names:
        check_name(name)
    return names


def _against(flags: CommonFlags, usual: Callable[[], Sequence[str]]) -> tuple[str, ...]:
    """Return the contenders that run next to the hub: the default ones or the named ones, and any added by flags."""
    named = usual() if flags.against is None else _names(flags.against)
    more = more_names(alone=flags.alone, ablation=flags.ablation, warm=flags.warm, isolation=flags.isolation)
    return (*named, *more)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise OptionError(f"{text!r} names nothing", hint="write names with commas between them: --against eager,inductor")
    return names


def _check_place(json: str | None) -> None:
    if json not in (None, _STANDARD_OUTPUT):
        check_output(Path(json))
