"""The commands `hub disc` or `python -m plugin_disc`; and, as programs of their own, `disc-compile` and `disc-replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hub.plugin import command

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="A cluster's debug folder, from someone you trust: it contains pickles and code."
    ),
]
Source = Annotated[Path, typer.Argument(metavar="IN.MLIR", help="A program in StableHLO, or in BladeDISC's MHLO.")]
Library = Annotated[
    Path, typer.Argument(metavar="OUT.SO", help="The shared library; OUT.SO.pbtxt next to it describes it.")
]
Elide = Annotated[
    int | None,
    typer.Option(
        "--mlir-elide-elementsattrs-if-larger", help="Accepted for disc_compiler_main's sake; it changes nothing."
    ),
]
Multi = Annotated[bool, typer.Option("--multi-cc-support", help="Refused: code is written for this processor only.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Number of threads for one call; all cores by default.")
]
Anew = Annotated[
    bool, typer.Option("--compile", help="Compile again, strictly, instead of running the saved machine code.")
]


def _app() -> typer.Typer:
    return typer.Typer(
        help="DISC: compiled programs and recorded clusters.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        add_completion=False,
    )


app = _app()
alone = _app()
compiler = _app()


@app.command("compile")
@compiler.command()
@command
def compile_program(
    source: Source, library: Library, *, elide: Elide = None, multi: Multi = False, threads: Threads = None
) -> None:
    """Compile a program to a shared library, as BladeDISC's disc_compiler_main does.

    Variables: TAO_MLIR_ENABLE_AMP=true makes matrix products take bfloat16; DISC_CPU_FAST_MATH_LEVEL is 0 to 4, default 0.
    """
    import torch  # late: `--help` does not need it

    from hub.plugin import OptionError, checked_settings

    from .settings import Settings
    from .standalone import MULTI_REFUSED, compile_file

    del elide  # it shortens the log of BladeDISC's compiler, not the compiled program
    if multi:
        raise OptionError(MULTI_REFUSED, backend="disc", hint="leave --multi-cc-support out")
    settings = checked_settings("disc", Settings, {})
    assert isinstance(settings, Settings)
    found = compile_file(source, library, settings, threads=threads or torch.get_num_threads())
    typer.echo(f"{library}: {found.described()}")


@app.command()
@alone.command()
@command
def replay(folder: Folder, *, compile_anew: Anew = False) -> None:
    """Run a recorded cluster and compare its results with eager.

    Exit status: 0, or 1 if they differ too much.
    """
    from .replay import replay as run

    found = run(folder, is_compiled=compile_anew)
    for line in found.lines:
        typer.echo(line)
    if found.problem:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
