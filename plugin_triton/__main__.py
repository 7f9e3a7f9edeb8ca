"""`hub triton-ir`: a model's kernels, compiled for a GPU that need not be here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hub.plugin import Batch, ModelName, command

app = typer.Typer(
    help="Triton: a model's kernels for any GPU.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)

TargetName = Annotated[str, typer.Option("--target", metavar="GPU", help="cuda:90, hip:gfx942, ...")]
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where kernels and their stages are written.")]


@app.command()
@command
def triton_ir(
    model: ModelName, *, target: TargetName = "cuda:90", out: Out = Path("triton-ir"), batch: Batch = None
) -> None:
    """Write every kernel of a model with all its stages, and print what each needs of the GPU."""
    from hub.plugin import load_model

    from .listing import listing, summary
    from .targets import Target

    wanted = Target.parse(target)
    loaded = load_model(model, batch=batch, is_tried=True)
    found = listing(loaded.module, loaded.inputs, wanted, out)
    for line in summary(found, out):
        typer.echo(line)


if __name__ == "__main__":
    app()
