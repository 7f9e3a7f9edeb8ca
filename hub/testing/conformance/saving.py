"""Checks that saved executables load, in this and in another process, and fail to load if a file is damaged."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hub.errors import HubError
from hub.plugin.backend import overrides
from hub.testing.conformance.elsewhere import ELSEWHERE, unpacked
from hub.testing.conformance.finding import Finding, judged, not_applicable, trouble
from hub.testing.conformance.judge import Outputs, run, value_problem
from hub.testing.conformance.programs import Program
from hub.testing.conformance.target import SETTINGS, Target

HERE, THERE, DAMAGED = "loading in this process", "loading in another process", "damaged files"
SUBJECTS = (HERE, THERE, DAMAGED)
_PART = 0.3
"""Share of an examination's time that one step in another process may take."""

Damage = Callable[[Path], None]


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _halve(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


DAMAGES: Mapping[str, Damage] = {
    "is missing": Path.unlink,
    "is empty": _empty,
    "ends in the middle": _halve,
}
"""Damage from a full disk or a killed process. The hub detects flipped bytes itself: it seals saved files."""


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Return the finding for the main program, saved to a folder that is renamed afterwards, as in the hub's cache."""
    if not overrides(target.backend, "load"):
        return (not_applicable("saving", subject, "the backend has no method `load` of its own"),)
    program = target.main
    if program is None:
        return (not_applicable("saving", subject, "no program works"),)
    with tempfile.TemporaryDirectory(prefix="hub-saving-") as folder:
        try:
            saved, wanted = _saved(target, program, Path(folder))
        except Exception as error:  # noqa: BLE001 - anything a plugin raises is the finding
            return (judged("saving", subject, [f"{program.name} cannot be saved: {trouble(error)}"]),)
        look = {HERE: _here, THERE: _there, DAMAGED: _damaged}[subject]
        return (judged("saving", subject, list(look(target, program, saved, wanted))),)


def _saved(target: Target, program: Program, folder: Path) -> tuple[Path, Outputs]:
    partial, final = folder / "partial", folder / "saved"
    partial.mkdir()
    cluster, inputs = program.draw()
    executable = target.compile(cluster)
    wanted = [output.clone() for output in run(executable, cluster, inputs)]
    executable.save(partial)
    return partial.rename(final), wanted


def _here(target: Target, program: Program, saved: Path, wanted: Outputs) -> Iterator[str]:
    cluster, inputs = program.draw()
    try:
        got = run(target.backend.load(saved, cluster, SETTINGS), cluster, inputs)
    except Exception as error:  # noqa: BLE001 - as above
        yield f"{program.name}: {trouble(error)}"
        return
    if problem := value_problem(got, tuple(wanted)):
        yield f"{program.name} gives other results than before it was saved: {problem}"


def _there(target: Target, program: Program, saved: Path, wanted: Outputs) -> Iterator[str]:
    try:
        got = ELSEWHERE.ask(
            "load_and_run", _PART * target.limit_s, backend=target.name, program=program.name, folder=str(saved)
        )
    except HubError as error:
        yield f"{program.name}: {trouble(error)}"
        return
    if problem := value_problem(unpacked(got), tuple(wanted)):
        yield f"{program.name} gives other results than where it was saved: {problem}"


def _damaged(target: Target, program: Program, saved: Path, wanted: Outputs) -> Iterator[str]:
    """Damage one file at a time. Loading or the first call must then raise, unless the file does not matter."""
    for path in sorted(item for item in saved.rglob("*") if item.is_file()):
        for what, damage in DAMAGES.items():
            copy = saved.parent / "damaged"
            shutil.copytree(saved, copy)
            damage(copy / path.relative_to(saved))
            if problem := _damaged_problem(target, program, copy, wanted):
                yield f"{path.relative_to(saved)} {what}: {problem}"
            shutil.rmtree(copy)


def _damaged_problem(target: Target, program: Program, folder: Path, wanted: Outputs) -> str:
    """Return what is wrong with the handling of a damaged folder: to refuse it is right, to crash is not."""
    try:
        got = ELSEWHERE.ask(
            "try_to_load", _PART * target.limit_s, backend=target.name, program=program.name, folder=str(folder)
        )
    except HubError as error:
        return trouble(error)
    if got is None:
        return ""
    problem = value_problem(unpacked(got), tuple(wanted))
    return f"it loads, and gives wrong results: {problem}" if problem else ""
