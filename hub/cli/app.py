"""The commands. Nothing heavy is imported before a command runs: `hub --help` must answer immediately."""

from __future__ import annotations

from typing import Annotated

import typer

from hub.cli.flags import Batch, CacheDir, Json, ModelName, Output, command, given_options, settings_now, with_options
from hub.cli.plugins import WithPlugins

app = typer.Typer(
    cls=WithPlugins,
    help="Run a PyTorch model on the fastest mix of the installed compilers.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help renders in half the time of boxes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from hub.plugin.entry import installed_version

        typer.echo(f"hub {installed_version('compiler-hub')}")
        raise typer.Exit


def _check_name(model: str) -> None:
    """Raise OptionError for a misspelt name before spending seconds on importing torch."""
    from hub.bench.models import check_name

    check_name(model)


@app.callback()
def hub(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Handle the options that precede a command."""


PlanFile = Annotated[str, typer.Argument(metavar="FILE", help="A plan file.")]

cache = typer.Typer(
    help="Show, check and clean the cache.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(cache, name="cache")


@cache.command("ls")
@command
def list_cache(*, json: Json = False, cache_dir: CacheDir = None) -> None:
    """List the entries and the recorded failures.

    Entries that were used least recently come first.
    """
    from hub.cli.cache import print_kept

    print_kept(settings_now(cache_dir=cache_dir).cache, as_json=json)


@cache.command("verify")
@command
def verify_cache(
    *,
    json: Json = False,
    repair: Annotated[bool, typer.Option("--repair", help="Remove corrupt entries.")] = False,
    cache_dir: CacheDir = None,
) -> None:
    """Read every entry and report the corrupt ones.

    Exit status: 0, or 1 if corrupt entries remain.
    """
    from hub.cli.cache import print_broken

    print_broken(settings_now(cache_dir=cache_dir).cache, as_json=json, repair=repair)


@cache.command("prune")
@command
def prune_cache(
    *,
    json: Json = False,
    cache_gb: Annotated[str | None, typer.Option("--cache-gb", metavar="GB", help="Target size.")] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Remove the least recently used entries.

    Files that killed processes left behind are removed too.
    """
    from hub.cli.cache import print_pruned

    print_pruned(settings_now(cache_dir=cache_dir, cache_gb=cache_gb).cache, as_json=json)


@cache.command("clear")
@command
def clear_cache(
    *,
    json: Json = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    tuning: Annotated[bool, typer.Option("--tuning", help="Remove tuned kernels too: hours of `hub tune`.")] = False,
    cache_dir: CacheDir = None,
) -> None:
    """Remove everything except tuned kernels.

    With --tuning, remove these too.
    """
    from hub.cli.cache import clear_and_print

    clear_and_print(settings_now(cache_dir=cache_dir).cache, as_json=json, is_sure=yes, with_tuning=tuning)


@cache.command("forget")
@command
def forget_failures(
    *,
    backend: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Backend whose failures to forget; all if omitted.")
    ] = None,
    json: Json = False,
    cache_dir: CacheDir = None,
) -> None:
    """Forget recorded failures, so that they are tried again."""
    from hub.cli.cache import forget_and_print

    forget_and_print(backend, settings_now(cache_dir=cache_dir).cache, as_json=json)


plan = typer.Typer(
    help="Show and compare plan files.",
    epilog="`hub explain -o` and `hub tune -o` write them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(plan, name="plan")


@plan.command("show")
@command
def show_plan(*, file: PlanFile, json: Json = False) -> None:
    """Print the plans of a file."""
    from hub.cli.plan import print_plan_file

    print_plan_file(file, as_json=json)


@plan.command("diff")
@command
def diff_plans(*, old: PlanFile, new: PlanFile, json: Json = False) -> None:
    """Print what differs between two files (exit 1 if anything does)."""
    from hub.cli.plan import print_diff

    print_diff(old, new, as_json=json)


@app.command("list-backends")
@command
def list_backends(
    *,
    json: Json = False,
    probe: Annotated[bool, typer.Option("--probe", help="Run a small program on each, in a child process.")] = False,
) -> None:
    """List the backends, and how to install missing ones."""
    from hub.cli.backends import print_backends

    print_backends(as_json=json, probe=probe)


@app.command("check-plugin")
@command
def check_plugin(
    *,
    backend: Annotated[str, typer.Argument(metavar="NAME", help="A backend, as `hub list-backends` names it.")],
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - is standard output.")] = None,
    only: Annotated[str | None, typer.Option("--only", metavar="A,B", help="Only these checks.")] = None,
    limit_s: Annotated[
        float | None, typer.Option("--limit", metavar="SECONDS", help="Time limit for one operator or step.")
    ] = None,
) -> None:
    """Test that a backend keeps the plugin contract.

    Each check runs in a process of its own, which may crash.
    Exit status: 0, or 1 if a check failed.
    """
    from hub.cli.check_plugin import print_check

    print_check(backend, only=only, json=json, limit_s=limit_s)


@app.command()
@command
def doctor(
    *,
    json: Json = False,
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure this machine, or only report.")] = True,
    threads: Annotated[str | None, typer.Option("--threads", metavar="N", help="Threads one call may use.")] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Check the installation and measure this machine."""
    from hub.cli.doctor import print_health

    options = settings_now(given_options({"threads": threads}), cache_dir=cache_dir)
    print_health(options, as_json=json, measure=measure)


@app.command()
@command
@with_options
def explain(
    *, model: ModelName, output: Output = None, batch: Batch = None, json: Json = False, given: dict[str, object]
) -> None:
    """Plan a model without compiling it, and explain the plan."""
    _check_name(model)
    from hub.cli.plans import print_explanation

    print_explanation(model, batch, given, output, as_json=json)


@app.command()
@command
@with_options
def run(*, model: ModelName, batch: Batch = None, json: Json = False, given: dict[str, object]) -> None:
    """Run a model, and compare results and speed with eager."""
    _check_name(model)
    from hub.cli.plans import print_run

    print_run(model, batch, given, as_json=json)


@app.command()
@command
@with_options
def tune(
    *, model: ModelName, output: Output = None, batch: Batch = None, json: Json = False, given: dict[str, object]
) -> None:
    """Search longer for a model's best plan, and save it."""
    _check_name(model)
    from hub.cli.tune import print_tuning

    print_tuning(model, batch, given, output, as_json=json)


@app.command()
@command
@with_options
def bench(
    *,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="As for `hub run`; not with --zoo.", show_default=False)
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="A,B", help="What to compare with: eager, a library's own API, hub:BACKEND, hub-BACKEND."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=3, help="Blocks of calls of each contender, 15 unless given.")
    ] = None,
    batch: Batch = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - is standard output.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start with empty caches, so that first calls are cold.")] = False,
    ablation: Annotated[bool, typer.Option("--ablation", help="Add the hub without each backend.")] = False,
    alone: Annotated[bool, typer.Option("--alone", help="Add the hub with each backend alone.")] = False,
    warm: Annotated[bool, typer.Option("--warm", help="Add a second process, which uses the cache of the first.")] = False,
    isolation: Annotated[bool, typer.Option("--isolation", help="Add the time that worker processes cost.")] = False,
    zoo: Annotated[bool, typer.Option("--zoo", help="Benchmark all built-in models and summarize.")] = False,
    models: Annotated[str | None, typer.Option("--models", metavar="A,B", help="With --zoo: only these.")] = None,
    batches: Annotated[
        int | None, typer.Option("--batches", min=1, max=2, help="With --zoo: batch sizes of each, 2 unless given.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", metavar="DIR", help="With --zoo: where results go, hub-bench unless given.")
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Time one start with empty caches, by phase.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="With --zoo: keep existing results.")] = False,
    small: Annotated[bool, typer.Option("--small", help="Use tiny built-in models, to see that everything works.")] = False,
    given: dict[str, object],
) -> None:
    """Benchmark a model against every compiler's own API.

    With --zoo, benchmark all built-in models. Each contender runs in its own process; blocks of calls are interleaved.
    """
    if not zoo and model is not None:
        _check_name(model)
    from hub.cli.bench import CommonFlags, ZooFlags, print_bench, print_cold, print_zoo

    common = CommonFlags(
        against, rounds, given, alone=alone, ablation=ablation, warm=warm, isolation=isolation, small=small, fresh=fresh
    )
    wanted = ZooFlags(model, models, batches, batch, json, output, resume=resume)
    if cold:
        print_cold(common, wanted, is_zoo=zoo)
    elif zoo:
        print_zoo(common, wanted)
    else:
        print_bench(common, wanted)
