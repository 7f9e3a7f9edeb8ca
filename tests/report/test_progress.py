"""Progress: cheap, on standard error, and never a reason to fail."""

from __future__ import annotations

import io

import pytest

from hub.report.progress import LiveProgress, PlainProgress, Progress, Unfailing, progress_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(environ: dict[str, str], stream: io.StringIO) -> str:
    progress = progress_for("graph0", environ, stream)
    progress.stage("price", 2)
    progress.advance("c0 openvino")
    progress.advance("c1 openvino")
    progress.stage("prove")
    progress.done()
    progress.done()
    return stream.getvalue()


def test_without_a_terminal_it_is_silent() -> None:
    """Logs and pipes are left alone unless asked."""
    assert shown({}, io.StringIO()) == ""


def test_plain_gives_one_line_a_stage() -> None:
    """`HUB_PROGRESS=plain` is for logs."""
    lines = shown({"HUB_PROGRESS": "plain"}, io.StringIO()).splitlines()
    assert [line.rsplit(" ", 2)[0] for line in lines] == ["hub, graph0: price (2)", "hub, graph0: prove"]


def test_a_terminal_gets_bars_that_vanish() -> None:
    """The display names the stage and clears its lines at the end."""
    text = shown({}, Terminal())
    assert "price" in text
    assert "\x1b[2K" in text


def test_off_silences_a_terminal() -> None:
    """`HUB_PROGRESS=off` wins over the terminal, and an unknown word does not count."""
    assert shown({"HUB_PROGRESS": "off"}, Terminal()) == ""
    assert type(progress_for("graph0", {"HUB_PROGRESS": "loud"}, io.StringIO())) is Progress


@pytest.mark.parametrize("form", [PlainProgress, LiveProgress])
def test_a_display_that_fails_goes_silent(form: type[PlainProgress] | type[LiveProgress]) -> None:
    """A closed stream costs the display and nothing else."""
    stream = Terminal()
    progress = Unfailing(form("graph0", stream))
    progress.stage("price", 1)
    stream.close()
    progress.advance("c0")
    progress.stage("prove")
    progress.done()


def test_a_closed_stream_is_no_terminal() -> None:
    """Asking a closed stream what it is does not fail either."""
    stream = Terminal()
    stream.close()
    assert type(progress_for("graph0", {}, io.StringIO())) is Progress
    progress_for("graph0", {}, stream).done()
