"""`hub disc`, or `python -m plugin_disc`; and `disc-replay`: run a recorded cluster again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hub.cli.flags import command

Folder = Annotated[
    Path, typer.Argument(help="A cluster's debug folder, from somebody you trust: it holds pickles and code.")
]
Anew = Annotated[bool, typer.Option("--compile", help="Compile anew, strictly, instead of running the saved machine code.")]


def _app() -> typer.Typer:
    return typer.Typer(help="DISC: recorded clusters.", no_args_is_help=True, pretty_exceptions_enable=False)


app = _app()
alone = _app()


@app.callback()
def _group() -> None:  # without it typer makes the only command the whole program
    """DISC: recorded clusters."""


@app.command()
@alone.command()
@command
def replay(folder: Folder, *, compile_anew: Anew = False) -> None:
    """Run a recorded cluster on its recorded inputs and print how far it is from eager; status 1 where that is too far."""
    from .replay import replay as run

    found = run(folder, is_compiled=compile_anew)
    for line in found.lines:
        typer.echo(line)
    if found.problem:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
