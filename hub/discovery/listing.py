"""Installed backends: one frozen record for each, without importing torch or a library under a backend.

`python -m hub.discovery.listing NAME FILE` is the child process of a probe: it writes its verdict as JSON into FILE.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from hub.config.options import resolve
from hub.config.settings import working_folder
from hub.discovery.registry import Registry, load_attribute, registry
from hub.errors import ContractError, HubError, shortened, text_of, type_of
from hub.plugin.backend import abilities
from hub.plugin.entry import Entry, installed_version
from hub.plugin.table import Support, refused
from hub.process.children import run_child
from hub.process.family import adopt_orphans, end_descendants
from hub.process.scratch import scratch

PROBE_TIMEOUT_S = 120.0
"""Seconds after which a probe counts as hanging: ten times what the slowest first-party backend needs on a cold start."""


PROBE_BYTES = 3 << 30
"""Bytes of memory that a probe may use: PyTorch and a compiler together use a third of that."""
PROBE_OUTPUT_BYTES = 64 << 20
"""Bytes that a probe may print."""


@dataclass(frozen=True, slots=True)
class ListedBackend:
    """One backend's record in `hub list-backends`."""

    name: str
    package: str
    """Distribution that registered it."""
    package_version: str
    library: str
    """Distribution of the library under it; empty if it needs none."""
    library_version: str | None
    """Version of the library; None if it is not installed."""
    available: bool
    reason: str
    """Reason why it is not available; empty if it is."""
    install: str
    """The pip command that installs a missing library; empty if nothing is missing."""
    devices: tuple[str, ...]
    never_ran_on: tuple[str, ...]
    """Devices, in words, that it supports by its code alone."""
    dtypes: tuple[str, ...]
    n_operators: int | None
    """Operators in its table; None means any ATen operator."""
    dynamic_shapes: bool
    training: bool
    summary: str = ""
    abilities: tuple[str, ...] = ()
    """Optional methods of its class ("load": it saves executables). Only a probe loads the class; empty if none ran."""
    probe: str = ""
    """"passed", or why the probe failed; empty if no probe ran."""
    note: str = ""
    """Remarks of its settings, or of a probe that passed."""

    @property
    def operators(self) -> str:
        """Number of operators as text: "any" or "128"."""
        return "any" if self.n_operators is None else str(self.n_operators)

    def to_json(self) -> str:
        """Return the JSON form."""
        return json.dumps(asdict(self))


def list_backends(*, probe: bool = False) -> tuple[ListedBackend, ...]:
    """Return every registered backend in entry-point order, then eager.

    With `probe`, also run a real one-operator program with each available backend, each in its own child process.
    """
    listed = tuple(map(_listed, _registry().entries.values()))
    return (*(_probed(listed) if probe else listed), _eager())


def _registry() -> Registry:
    """Return the registry under the settings in environment variables and a hub.toml. Raises OptionError."""
    return registry().configured(resolve(None, os.environ, working_folder()))


def _listed(entry: Entry) -> ListedBackend:
    info = entry.info
    library = Requirement(info.requires[0]).name if info.requires else ""
    n_operators, broken = _count_operators(entry)
    return ListedBackend(
        name=info.name,
        package=entry.package,
        package_version=entry.package_version,
        library=library,
        library_version=installed_version(library) if library else None,
        available=entry.status.accepted and not broken,
        reason=entry.status.reason or broken,
        install="" if entry.status.accepted else info.install,
        devices=info.devices,
        never_ran_on=info.never_ran_on,
        dtypes=info.dtypes,
        n_operators=n_operators,
        dynamic_shapes=info.dynamic_shapes,
        training=info.training,
        summary=info.summary,
        note="" if entry.settings is None or not entry.status.accepted else entry.settings.remark,
    )


def _count_operators(entry: Entry) -> tuple[int | None, str]:
    """Return the length of a backend's operator table, None for any operator, and why the table cannot be read."""
    if not entry.info.operators:
        return None, ""
    try:
        return len(load_attribute(entry.info.operators)), ""
    except Exception as error:  # noqa: BLE001 - an exception in a plugin costs that plugin only
        return 0, f"its operator table {entry.info.operators} cannot be read: {text_of(error)}"


def _eager() -> ListedBackend:
    return ListedBackend(
        name="eager",
        package="compiler-hub",
        package_version=installed_version("compiler-hub") or "unknown",
        library="torch",
        library_version=installed_version("torch"),
        available=True,
        reason="",
        install="",
        devices=("any",),
        never_ran_on=(),
        dtypes=("any",),
        n_operators=None,
        dynamic_shapes=True,
        training=True,
        summary="PyTorch itself, operator by operator; runs what no backend supports",
    )


# --- Probes -----------------------------------------------------------------------------------------------------------


def _probed(listed: Sequence[ListedBackend]) -> tuple[ListedBackend, ...]:
    with ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="hub-listing") as pool:
        return tuple(pool.map(_with_probe, listed))


def _with_probe(backend: ListedBackend) -> ListedBackend:
    if not backend.available:
        return backend
    found = probe(backend.name)
    verdict, backend = found.verdict, replace(backend, abilities=found.abilities)
    if verdict.accepted:
        return replace(backend, probe="passed", note=verdict.reason or backend.note)
    return replace(backend, probe=verdict.reason, available=False, reason=f"the probe failed: {verdict.reason}")


@dataclass(frozen=True, slots=True)
class Probed:
    """What a child process found out about a backend."""

    verdict: Support
    abilities: tuple[str, ...] = ()
    """Optional methods that its class overrides; empty if it could not be loaded."""


def probe(name: str, timeout_s: float = PROBE_TIMEOUT_S) -> Probed:
    """Run a backend's own probe in a child process; a crash or a hang is reported as a refusal. Raises nothing."""
    with scratch("probe") as folder:
        answer = folder / "verdict.json"
        # -P: a folder named `hub` in the user's working directory must not be imported instead of this package.
        command = [sys.executable, "-P", "-m", "hub.discovery.listing", name, str(answer)]
        failure = run_child(command, timeout_s, most_bytes=PROBE_BYTES, most_output=PROBE_OUTPUT_BYTES)
        if failure is not None or not answer.is_file() or not (text := answer.read_text()):
            return Probed(refused("it ended without an answer" if failure is None else failure.reason))
        facts = json.loads(text)
        return Probed(Support(facts["accepted"], facts["reason"]), tuple(facts["abilities"]))


def _answer_probe(arguments: Sequence[str]) -> None:
    name, answer = arguments
    # Open before the probe runs: a probe that closes files of others is as unusable as one that ends the process.
    with Path(answer).open("w") as file:
        found: dict[str, Any] = {"abilities": ()}
        try:
            backend = _registry().backend(name)
            found["abilities"] = sorted(abilities(backend))
            verdict: Any = backend.probe()
            if not isinstance(verdict, Support):
                raise ContractError(f"probe() returned {type_of(verdict)}, not a Support")
            found |= {"accepted": bool(verdict.accepted), "reason": shortened(str(verdict.reason))}
        except Exception as error:  # noqa: BLE001 - an exception in a probe is its verdict
            text = f"{type(error).__name__}: {error.message}" if isinstance(error, HubError) else text_of(error)
            found |= {"accepted": False, "reason": text}
        json.dump(found, file)


if __name__ == "__main__":
    adopt_orphans()
    try:
        _answer_probe(sys.argv[1:])
    finally:
        end_descendants(os.getpid())
