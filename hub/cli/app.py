"""The commands. Nothing heavy is imported before a command runs: `hub --help` has to answer at once."""

from __future__ import annotations

from typing import Annotated

import typer

from hub.cli.flags import Batch, Json, ModelName, command, given_options, with_options

app = typer.Typer(
    help="Let every installed compiler bid for pieces of a PyTorch model, and run the cheapest proven plan.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help comes in half the time of boxes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from hub.registry import installed_version

        typer.echo(f"hub {installed_version('compiler-hub')}")
        raise typer.Exit


def _check_name(model: str) -> None:
    """Raises HubError for a misspelt name before seconds go into importing torch."""
    from hub.bench.models import check_name

    check_name(model)


@app.callback()
def hub(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Takes the flags that stand before a command."""


@app.command("list-backends")
@command
def list_backends(
    *,
    json: Json = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Run a program of one operator with each, in a child process.")
    ] = False,
) -> None:
    """Say what is installed, and what mends the rest."""
    from hub.cli.backends import print_backends

    print_backends(as_json=json, probe=probe)


@app.command()
@command
def doctor(
    *,
    json: Json = False,
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure the machine, or only look.")] = True,
    threads: Annotated[str | None, typer.Option("--threads", metavar="N", help="Threads one call may use.")] = None,
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", metavar="FOLDER", help="Where measurements and executables are kept.")
    ] = None,
) -> None:
    """Check the installation, and measure once what this machine can do."""
    from hub.cli.doctor import print_health

    print_health(given_options({"threads": threads, "cache_dir": cache_dir}), as_json=json, measure=measure)


@app.command()
@command
@with_options
def explain(*, model: ModelName, batch: Batch = None, json: Json = False, given: dict[str, object]) -> None:
    """Plan a model without running it, and say why."""
    _check_name(model)
    from hub.cli.plans import print_explanation

    print_explanation(model, batch, given, as_json=json)


@app.command()
@command
@with_options
def run(*, model: ModelName, batch: Batch = None, json: Json = False, given: dict[str, object]) -> None:
    """Run a model through the hub, and compare with eager."""
    _check_name(model)
    from hub.cli.plans import print_run

    print_run(model, batch, given, as_json=json)


@app.command()
@command
@with_options
def bench(
    *,
    model: ModelName,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="A,B", help="Contenders beside hub: eager, a library's own API, or hub:BACKEND."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=3, help="Blocks of calls for each contender.")] = 15,
    batch: Batch = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - is standard output.")] = None,
    given: dict[str, object],
) -> None:
    """Time a model against every compiler's own API.

    Each contender runs in its own process; blocks of calls are interleaved.
    """
    _check_name(model)
    from hub.cli.bench import print_bench

    print_bench(model, against, rounds, batch, given, json)
