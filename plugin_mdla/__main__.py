"""`hub mdla`, or `python -m plugin_mdla`: calibrate a model, report accuracy by layer, predict time on the board."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from hub.plugin import OptionError, command, elements

app = typer.Typer(
    help="Micron's MDLA: ranges, accuracy and time of a model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)

_SAMPLES = "write them with torch.save([inputs of one call, ...], FILE)"

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model as for `hub run`: a name, module:function, or file.py:function.")
]
Samples = Annotated[
    Path, typer.Option("--samples", metavar="FILE", help="A list of inputs (tensors, or tuples of them) from torch.save.")
]
Out = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The calibration file to write.")]


@app.command()
@command
def calibrate(model: Model, samples: Samples, output: Out = Path("calib.json")) -> None:
    """Show samples to a model and write the ranges of its values."""
    from hub.plugin import load_model
    from hub.testing.single import capture

    from .gather import calibrated

    loaded = load_model(model, is_tried=True)
    captured = capture(loaded.module, loaded.inputs)
    found = calibrated(captured.graph, captured.inputs, read_samples(samples))
    found.save(output)
    typer.echo(f"{output}: ranges of {len(found.ranges)} values from {found.samples} samples")


@app.command()
@command
def report(
    model: Model, calibration: Annotated[Path | None, typer.Option(metavar="FILE", help="A calibration file.")] = None
) -> None:
    """Print format, saturation and error of every layer that the device takes, and the time predicted for the board."""
    from hub.plugin import load_model

    from .survey import survey

    loaded = load_model(model, is_tried=True)
    typer.echo(survey(loaded.module, loaded.inputs, calibration), nl=False)


def read_samples(path: Path) -> list[tuple[Any, ...]]:
    """Read samples; single tensors become tuples of one. Raise OptionError if the file is not a list of samples."""
    import torch

    try:
        found: Any = torch.load(path, weights_only=True)
    except Exception as error:
        words = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"
        raise OptionError(f"the samples {path} cannot be read: {words}", backend="mdla", hint=_SAMPLES) from error
    if not isinstance(found, (list, tuple)):
        raise OptionError(f"{path} holds a {type(found).__name__}, not a list", backend="mdla", hint=_SAMPLES)
    return [elements(item) for item in cast("Sequence[Any]", found)]


if __name__ == "__main__":
    app()
