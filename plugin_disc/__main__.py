"""The commands `hub disc` or `python -m plugin_disc`; and, as programs of their own, `disc-compile` and `disc-replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hub.plugin import command

Folder = Annotated[
    Path, typer.Argument(help="A cluster's debug folder, from somebody you trust: it holds pickles and code.")
]
Source = Annotated[Path, typer.Argument(metavar="IN.MLIR", help="A program in StableHLO, or in MHLO as BladeDISC has it.")]
Library = Annotated[Path, typer.Argument(metavar="OUT.SO", help="The shared library; OUT.SO.pbtxt beside it describes it.")]
Elide = Annotated[
    int | None,
    typer.Option("--mlir-elide-elementsattrs-if-larger", help="Taken as disc_compiler_main's; nothing is logged in part."),
]
Multi = Annotated[bool, typer.Option("--multi-cc-support", help="Refused: code is written for this processor only.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Threads one call may use; all cores unless given.")]
Anew = Annotated[bool, typer.Option("--compile", help="Compile anew, strictly, instead of running the saved machine code.")]


def _app() -> typer.Typer:
    return typer.Typer(
        help="DISC: compiled programs and recorded clusters.", no_args_is_help=True, pretty_exceptions_enable=False
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

    from hub.plugin import CompileError, checked_settings

    from .settings import Settings
    from .standalone import MULTI_REFUSED, compile_file

    del elide  # it shortens the log of BladeDISC's compiler, not the compiled program
    if multi:
        raise CompileError(MULTI_REFUSED, backend="disc")
    settings = checked_settings("disc", Settings, {})
    assert isinstance(settings, Settings)
    found = compile_file(source, library, settings, threads=threads or torch.get_num_threads())
    typer.echo(f"{library}: {found.described()}")


@app.command()
@alone.command()
@command
def replay(folder: Folder, *, compile_anew: Anew = False) -> None:
    """Run a recorded cluster on its recorded inputs and print how far it is from eager; status 1 if that is too far."""
    from .replay import replay as run

    found = run(folder, is_compiled=compile_anew)
    for line in found.lines:
        typer.echo(line)
    if found.problem:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
