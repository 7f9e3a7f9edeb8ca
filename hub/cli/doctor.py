"""`hub doctor`."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import typer

from hub.cache.artifacts import folder_bytes
from hub.cache.database import DATABASE
from hub.cache.measurements import Measurements, machine_digest
from hub.cache.trust import distrust_root
from hub.cli.output import echo_json
from hub.config.options import Options
from hub.config.settings import from_file, working_folder
from hub.discovery.listing import ListedBackend, list_backends
from hub.discovery.registry import registry
from hub.plugin.entry import installed_version
from hub.pricing.profile import Profile, stored_profile
from hub.report.columns import columns
from hub.report.numbers import count, duration
from hub.report.progress import Progress, progress_for
from hub.workers.profiling import measure_profile

_COMPILERS = ("g++", "clang++", "c++", "cc")
_UNHEALTHY = 1
"""Exit status if a backend whose library is installed fails its probe."""


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """Contents of the cache folder."""

    folder: str
    is_writable: bool
    nbytes: int
    measurements: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Health:
    """Findings of `hub doctor`."""

    hub: str
    python: str
    torch: str
    compiler: str
    """Path and version of the C++ compiler; empty if there is none."""
    settings_file: str
    """The hub.toml in effect; empty if there is none."""
    settings: Mapping[str, str]
    """The source of each setting that was given explicitly."""
    threads: int
    cache: CacheFacts
    backends: tuple[ListedBackend, ...]
    profile: Profile | None
    """None if no profile was ever measured and none was requested."""

    @property
    def is_healthy(self) -> bool:
        """Return whether every backend that is installed passed its probe."""
        return all(backend.probe in ("", "passed") for backend in self.backends)


def print_health(options: Options, *, as_json: bool, measure: bool) -> None:
    """Print the findings, and exit with status 1 if an installed backend fails its probe. Raise HubError on failure."""
    health = examine(options, measure=measure)
    if as_json:
        echo_json(json.dumps(asdict(health) | {"is_healthy": health.is_healthy}, indent=2))
    else:
        for line in health_lines(health):
            typer.echo(line)
    if not health.is_healthy:
        raise typer.Exit(_UNHEALTHY)


def examine(options: Options, *, measure: bool) -> Health:
    """Probe every backend and, if requested, measure the machine and save its profile. Raise PluginError on failure."""
    threads = options.threads or torch.get_num_threads()
    progress = progress_for("doctor")
    try:
        progress.stage("probe")
        backends = list_backends(probe=True)
        if measure:
            profile, notes = _measured(options.cache.root, threads, backends, progress)
        else:
            profile, notes = stored_profile(options.cache.root, threads), ()
    finally:
        progress.done()
    return Health(
        hub=installed_version("compiler-hub") or "unknown",
        python=platform.python_version(),
        torch=torch.__version__,
        compiler=_compiler(),
        settings_file=next((setting.origin for setting in from_file(working_folder(), None).values()), ""),
        settings=options.origins,
        threads=threads,
        cache=_cache_facts(options.cache.root, (*registry().notes, *notes)),
        backends=backends,
        profile=profile,
    )


def _measured(
    root: Path, threads: int, backends: Sequence[ListedBackend], progress: Progress
) -> tuple[Profile, tuple[str, ...]]:
    """Measure the machine with the backends that work on it. Return the profile and the complaints of the store."""
    names = [backend.name for backend in backends if backend.probe == "passed"]
    progress.stage("measure", 1 + 2 * len(names) + len(names) * (len(names) - 1) // 2)
    profile = measure_profile(threads, names, progress.advance)
    kept, note = Measurements.open(root)
    kept.keep_profile(machine_digest(), threads, profile.to_json())
    notes = (note, *kept.notes)
    kept.close()
    return profile, tuple(text for text in notes if text)


def _cache_facts(root: Path, notes: tuple[str, ...]) -> CacheFacts:
    measurements = 0
    if (root / DATABASE).exists():
        kept, note = Measurements.open(root)
        measurements = kept.count()
        notes = (*notes, *(text for text in (note, *kept.notes) if text and text not in notes))
        kept.close()
    if root.exists() and (reason := distrust_root(root)):
        notes = (*notes, f"not used: {reason}")
    place = next((folder for folder in (root, *root.parents) if folder.exists()), root)
    return CacheFacts(str(root), place.is_dir() and os.access(place, os.W_OK), folder_bytes(root), measurements, notes)


def _compiler() -> str:
    names = filter(None, (os.environ.get("CXX"), *_COMPILERS))
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        return ""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return path
    return ", ".join((path, *answer.splitlines()[:1]))


# --- Text -------------------------------------------------------------------------------------------------------------


def health_lines(health: Health) -> list[str]:
    """Return the report, one screen of text."""
    rows = [_backend_cells(backend) for backend in health.backends]
    return [
        *_heading(health),
        "",
        *columns(("backend", "version", "library", "state"), rows),
        "",
        *_profile_lines(health.profile),
    ]


def _heading(health: Health) -> list[str]:
    cache = health.cache
    facts = (
        cache.folder,
        f"{cache.nbytes / 1e6:.1f} MB",
        "" if cache.is_writable else "NOT WRITABLE: set HUB_CACHE_DIR to a folder that you own",
        count(cache.measurements, "measurement"),
    )
    given = ", ".join(f"{key} from {origin}" for key, origin in health.settings.items())
    return [
        f"hub       {health.hub}, Python {health.python}, torch {health.torch}",
        f"compiler  {health.compiler or 'none; inductor needs one: apt-get install g++, or set CXX'}",
        f"hub.toml  {health.settings_file or 'none'}",
        f"settings  {given or 'defaults'}, {count(health.threads, 'thread')}",
        f"cache     {', '.join(filter(None, facts))}",
        *(f"          {note}" for note in cache.notes),
    ]


def _backend_cells(backend: ListedBackend) -> tuple[str, ...]:
    library = f"{backend.library} {backend.library_version or '-'}" if backend.library else "-"
    fix = f"; to fix it: {backend.install}" if backend.install else ""
    reason = " ".join(backend.reason.split())
    return (backend.name, backend.package_version, library, "ok" if backend.available else f"{reason}{fix}")


def _profile_lines(profile: Profile | None) -> list[str]:
    if profile is None:
        return ["this machine has not been measured with this number of threads; run `hub doctor` without --no-measure"]
    return [
        f"machine   measured {profile.made} with {count(profile.threads, 'thread')}",
        f"peaks     {profile.flops_s / 1e9:.0f} Gflop/s in float32 products, {profile.bytes_s / 1e9:.1f} GB/s in copies",
        f"boundary  {_per_mebibyte(profile.copy_bytes_s, 2)} for a layout change of 1 MiB, "
        f"{_per_mebibyte(profile.cast_bytes_s, 3)} to float16 and back",
        "",
        *_mixing_lines(profile),
        *(f"note: {note}" for note in profile.notes),
    ]


def _per_mebibyte(bytes_s: float, times_moved: int) -> str:
    return duration(times_moved * 2**20 / bytes_s)


def _mixing_lines(profile: Profile) -> list[str]:
    """Return a table: the overhead of a call of each backend, and how much longer it takes next to each other backend."""
    if not profile.call_s:
        return []
    names = (*profile.call_s, "eager")
    headers = ("backend", "one call", *(f"next to {name}" for name in names))
    rows = [
        (name, duration(profile.call_s[name]), *(_added_time(profile, name, other) for other in names))
        for name in profile.call_s
    ]
    return columns(headers, rows, right=frozenset(headers[1:]))


def _added_time(profile: Profile, name: str, other: str) -> str:
    extra_s = profile.mix_s.get("+".join(sorted((name, other))))
    return "-" if extra_s is None else f"+{duration(extra_s)}"
