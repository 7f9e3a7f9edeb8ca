"""Remembers which candidates a backend failed on, so that the next process does not try them again."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from hub.accelerators import is_full
from hub.backend import CompileSettings
from hub.cache.artifacts import discard_artifact
from hub.cache.measurements import Failure
from hub.errors import AccuracyError, CompileError, ConstantsRefused, ContractError, InputRefused, PluginError, RunError
from hub.partition.group import Group
from hub.partition.structure import structure_digest
from hub.planning.scene import Scene

_ERRORS: Mapping[str, type[PluginError]] = {"verify": AccuracyError, "run": RunError}
FORGET = "`hub cache forget` makes the hub try again"


def known_failure(scene: Scene, found: Group, settings: CompileSettings) -> PluginError | None:
    """Gives the failure of an equal cluster under equal settings and versions, as an error; None where there is none.

    Users who want every failure as an error, or a decision made anew, want to see it happen: then nothing is known.
    """
    if scene.options.strict or scene.options.renew:
        return None
    subject = scene.subject(found, structure_digest(scene.graph, found.nodes), settings)
    failure = scene.measurements.find_failures((subject,)).get(subject)
    if failure is None:
        return None
    node = None if failure.node is None else found.nodes[failure.node]
    text = f"put away on {failure.made[:10]}: {failure.reason}"
    return _ERRORS.get(failure.stage, CompileError)(text, backend=found.backend, node=node, hint=FORGET)


def remember_failure(scene: Scene, found: Group, settings: CompileSettings, error: PluginError) -> None:
    """Writes a failure down, unless it is about one call's values only, or weights, and removes what was saved before it.

    Failures are kept by structure. A worker that dies when it has saved an executable leaves one that would be loaded.
    That an accelerator's memory was full is no verdict: other processes, and the user's own model, had a part in it.
    """
    if isinstance(error, InputRefused | ConstantsRefused):
        return
    discard_artifact(scene.folder(found, settings), is_damaged=False)
    if is_full(error.message):
        return
    subject = scene.subject(found, structure_digest(scene.graph, found.nodes), settings)
    node = found.nodes.index(error.node) if error.node in found.nodes else None
    made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    reason = error.message.splitlines()[0]
    scene.measurements.keep_failure(Failure(subject, stage_of(error), reason, node, made))


def stage_of(error: PluginError) -> str:
    """Gives the stage at which a backend failed: `verify`, `run` or `compile`."""
    if isinstance(error, AccuracyError | ContractError):
        return "verify"
    return "run" if isinstance(error, RunError) else "compile"
