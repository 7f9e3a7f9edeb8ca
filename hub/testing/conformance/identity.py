"""The identity of a compiled program in the hub's cache, as computed by one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hub.cache.keys import artifact_parts
from hub.discovery.registry import registry
from hub.plugin.backend import BackendInfo
from hub.testing.conformance.programs import program_of
from hub.testing.conformance.target import SETTINGS


@dataclass(frozen=True, slots=True)
class Identity:
    """The named parts of an artefact's key, and the registration that some of them come from."""

    parts: Mapping[str, Any]
    info: BackendInfo


def identity(backend: str, program: str) -> Identity:
    """Return this process's identity of a program compiled by a backend."""
    entry = registry().entries[backend]
    cluster, _ = program_of(program).draw()
    return Identity(artifact_parts(cluster.digest, entry, SETTINGS), entry.info)
