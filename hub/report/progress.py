"""Progress: the planner's current stage, on standard error, while the user waits.

`HUB_PROGRESS` selects the form: `live` (bars, the default on a terminal), `plain` (a line per stage), `off` (the default
elsewhere). Nothing here ever raises into the planner: a display that fails is silenced.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, TextIO, cast

from hub.report.numbers import duration

if TYPE_CHECKING:
    import rich.progress

VARIABLE = "HUB_PROGRESS"


class Progress:
    """Receiver of the stages of one piece of work, which shows nothing. Thread-safe; raises nothing."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage and end the previous one: "compile", of `total` steps, None if the number is unknown."""

    def advance(self, detail: str = "") -> None:
        """Count one step of the current stage: "c3 openvino"."""

    def done(self) -> None:
        """End the display. May be called more than once."""


def progress_for(subject: str, environ: Mapping[str, str] | None = None, stream: TextIO | None = None) -> Progress:
    """Return the form of progress that the environment selects; an unknown word is ignored.

    `subject` is what the work is on, and precedes each stage: "graph0".
    """
    target: TextIO = sys.stderr if stream is None else stream
    wanted = (os.environ if environ is None else environ).get(VARIABLE, "").strip().lower()
    if wanted not in ("live", "plain", "off"):
        wanted = "live" if _is_terminal(target) else "off"
    forms = {"live": LiveProgress, "plain": PlainProgress}
    return Unfailing(forms[wanted](subject, target)) if wanted in forms else Progress()


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # replaced or closed streams, as under some servers
        return False


class PlainProgress(Progress):
    """One line at the end of each stage, with the number of steps: for logs, in which nothing can be redrawn."""

    def __init__(self, subject: str, stream: TextIO) -> None:
        self._subject = subject
        self._stream = stream
        self._name = ""
        self._steps = 0
        self._began_s = 0.0

    def stage(self, name: str, total: int | None = None) -> None:  # noqa: ARG002 - the steps taken are printed
        """End the previous stage and begin one."""
        self.done()
        self._name, self._steps, self._began_s = name, 0, time.monotonic()

    def advance(self, detail: str = "") -> None:  # noqa: ARG002 - a line per stage, not per step
        """Count one step."""
        self._steps += 1

    def done(self) -> None:
        """Print the line of the stage that ended."""
        if self._name:
            steps = f" ({self._steps})" if self._steps else ""
            print(
                f"hub, {self._subject}: {self._name}{steps} {duration(time.monotonic() - self._began_s)}",
                file=self._stream,
                flush=True,
            )
            self._name = ""


class _Tolerant:
    """A stream that may be closed: rich draws from its own thread, in which the error could not be caught."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(ValueError, OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return _is_terminal(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class LiveProgress(Progress):
    """A bar per stage, redrawn in place and removed at the end."""

    def __init__(self, subject: str, stream: TextIO) -> None:
        from rich import console, progress  # only terminals need it

        columns = (
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(20),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("[dim]{task.fields[detail]}"),
        )
        screen = console.Console(file=cast("TextIO", _Tolerant(stream)))
        self._bars = progress.Progress(*columns, console=screen, transient=True, refresh_per_second=8)
        self._subject = subject
        self._task: rich.progress.TaskID | None = None

    def stage(self, name: str, total: int | None = None) -> None:
        """End the previous bar and begin one; the first one begins the display."""
        self._end_task()
        self._bars.start()
        self._task = self._bars.add_task(f"hub, {self._subject}: {name}", total=total, detail="")

    def advance(self, detail: str = "") -> None:
        """Move the bar by one step."""
        if self._task is not None:
            self._bars.update(self._task, advance=1, detail=detail)

    def done(self) -> None:
        """Remove the display."""
        self._end_task()
        self._bars.stop()

    def _end_task(self) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None


class Unfailing(Progress):
    """Progress that forwards everything until the display raises, and nothing after that."""

    def __init__(self, inner: Progress) -> None:
        self._inner: Progress = inner

    def stage(self, name: str, total: int | None = None) -> None:
        """Forward to the display."""
        with self._silenced_by_errors():
            self._inner.stage(name, total)

    def advance(self, detail: str = "") -> None:
        """Forward to the display."""
        with self._silenced_by_errors():
            self._inner.advance(detail)

    def done(self) -> None:
        """Forward to the display."""
        with self._silenced_by_errors():
            self._inner.done()

    @contextlib.contextmanager
    def _silenced_by_errors(self) -> Generator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - an exception in a display costs the display only
            # A closed stream, or a second live display on the same terminal: neither is worth a failed compilation.
            self._inner = Progress()
