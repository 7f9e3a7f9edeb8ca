"""Saved executables: folders that are written atomically, and used only while every byte is as it was sealed."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from filelock import FileLock

from hub.cache.seals import sealed, unsealed, write_sealed
from hub.cache.trust import distrust, distrust_root
from hub.errors import CacheError, HubError, words_of
from hub.report.numbers import megabytes

SEAL = "hub-seal.json"
"""File of digests that makes a folder an artefact. A plugin's own files may have any other name."""
FOLDER = "artifacts"
LOCKS = "locks"
PARTIAL = ".partial-"
"""Prefix of the names of files and folders that are being written or removed."""
LOCK_S = 60.0
"""Seconds to wait for another process that moves an artefact into place, which takes as long as reading it twice."""

_in_use: set[str] = set()
"""Artefacts that this process has saved or checked: their files may be mapped, or about to be read."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Result of saving: whether the executable is now in the cache."""

    is_done: bool
    problem: str = ""
    """Reason why it could not be saved; empty if that was not tried."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check: whether an artefact may be used."""

    is_intact: bool
    problem: str = ""
    """Reason why an existing artefact must not be used; empty if there is none."""


def check_artifact(folder: Path, *, is_wanted: bool = True) -> Checked:
    """Read every byte of `ROOT/artifacts/BACKEND/KEY` and return whether it may be used.

    It may if all is as sealed, and no other user could have written it. `is_wanted` means that it is used now: this updates
    its time of last use, and keeps `prune` from removing it. Raises nothing.
    """
    identity = _identity(folder)
    while identity:
        problem = _problem(folder)
        before, identity = identity, _identity(folder)
        if identity != before:
            continue  # another process removed or replaced it while it was read
        if is_wanted and not problem:
            _in_use.add(str(folder))
            with contextlib.suppress(OSError):  # a read-only disk
                os.utime(folder / SEAL)
        return Checked(not problem, problem)
    return Checked(is_intact=False)


def save_artifact(folder: Path, write: Callable[[Path], None], about: Mapping[str, Any] | None = None) -> Saved:
    """Let `write` fill a private folder, seal it, and move it to `ROOT/artifacts/BACKEND/KEY` in one step.

    `about` describes it in plain JSON, for `hub cache ls`. If another process was faster, its artefact stays. An exception
    of `write` becomes the problem if it is a HubError or an OSError, and passes through otherwise.
    """
    private: Path | None = None
    try:
        for place in _places(folder)[:-1]:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_owners(_places(folder)[:-1])
        private = _private_folder(folder)
        partial = private / "artifact"
        partial.mkdir(mode=0o700)
        write(partial)
        _check_alone(partial)
        _seal(partial, folder, about or {})
        _land(partial, folder)
    except (HubError, OSError, NotImplementedError) as error:  # NotImplementedError: a file system without locks
        return Saved(is_done=False, problem=str(error).splitlines()[0])
    finally:
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)
    _in_use.add(str(folder))
    return Saved(is_done=True)


def partial_bytes(folder: Path, pid: int) -> int:
    """Return the bytes that a process has written so far for a folder that is being saved."""
    return folder_bytes(_partial(folder, pid))


def discard_partial(folder: Path, pid: int) -> None:
    """Remove what a process that has ended wrote of an artefact. Raises nothing."""
    shutil.rmtree(_partial(folder, pid), ignore_errors=True)


def check_size(folder: Path, most_bytes: int | None) -> None:
    """Raise CacheError if a plugin wrote more into a folder than allowed."""
    if most_bytes is not None and (reason := beyond(folder_bytes(folder), most_bytes)):
        raise CacheError(reason)


def beyond(saved: int, most_bytes: int) -> str:
    """Return the message that an executable is too large to be saved, or "" if it is not."""
    if saved <= most_bytes:
        return ""
    allowed = f"{megabytes(most_bytes)} allowed (`workers.output_limit_mb`, and room for the weights)"
    return f"it saved {megabytes(saved)}, {allowed}"


def folder_bytes(folder: Path) -> int:
    """Return the bytes of a folder's files; holes in files count, since readers see them.

    The folder may be written to, renamed or removed meanwhile: `os.walk` ignores that, while `Path.rglob` raises.
    """
    return sum(_file_bytes(Path(place, name)) for place, _, names in os.walk(folder) for name in names)


def _private_folder(folder: Path) -> Path:
    """Make the folder in which an artefact is written, under a name that other processes can predict, if that is free."""
    private = _partial(folder, os.getpid())
    try:
        private.mkdir(mode=0o700)
    except FileExistsError:  # made by another thread, or left by a process with the same id
        return Path(tempfile.mkdtemp(dir=folder.parent, prefix=PARTIAL))
    return private


def _partial(folder: Path, pid: int) -> Path:
    return folder.with_name(f"{PARTIAL}{folder.name}-{pid}")


def _file_bytes(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _check_alone(folder: Path) -> None:
    """Raise CacheError if a plugin wrote outside the folder that it was given."""
    if others := sorted(path.name for path in folder.parent.iterdir() if path != folder):
        raise CacheError(f"it wrote {', '.join(others)[:200]} outside the folder that it was given")


def discard_artifact(folder: Path, *, is_damaged: bool = True) -> bool:
    """Remove an artefact atomically; return True if it is gone.

    With `is_damaged`, an artefact that another process has since replaced by an intact one stays. Raises nothing.
    """
    trash: Path | None = None
    try:
        with _locked(folder):
            if is_damaged and check_artifact(folder, is_wanted=False).is_intact:
                return False
            trash = _moved_aside(folder)
    except (OSError, NotImplementedError):
        return False
    finally:
        if trash is not None:
            shutil.rmtree(trash, ignore_errors=True)
    _in_use.discard(str(folder))
    return True


def is_in_use(folder: Path) -> bool:
    """Return whether this process has saved or checked an artefact to use it."""
    return str(folder) in _in_use


def seal_of(folder: Path) -> Mapping[str, Any]:
    """Return the contents of a seal: "made", "about" and "files"; nothing if it is damaged. Raises nothing."""
    try:
        return unsealed((folder / SEAL).read_bytes()) or {}
    except OSError:
        return {}


def renew_seal(folder: Path, facts: Mapping[str, Any]) -> None:
    """Add facts to the description in an artefact's seal, atomically. Raises nothing."""
    with contextlib.suppress(OSError, NotImplementedError), _locked(folder):
        if not (seal := seal_of(folder)):
            return
        partial = folder.parent / PARTIAL  # outside: a file inside would be one more
        write_sealed(folder / SEAL, {**seal, "about": {**seal.get("about", {}), **facts}}, partial)


def _places(folder: Path) -> tuple[Path, ...]:
    """Return the folders on the path to an artefact: `ROOT`, `ROOT/artifacts`, `ROOT/artifacts/BACKEND`, and its own."""
    return (*reversed(folder.parents[:3]), folder)


def _check_owners(places: Sequence[Path]) -> None:
    """Raise CacheError if other users could have written to a cache or one of its folders."""
    root, *inner = places
    for reason in (distrust_root(root), *map(distrust, inner)):
        if reason:
            raise CacheError(reason)


def _identity(folder: Path) -> tuple[int, ...]:
    """Return values that distinguish an artefact from a later one in its place; empty if there is none."""
    try:
        facts = folder.lstat()
    except OSError:
        return ()
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns


def _problem(folder: Path) -> str:
    try:
        _check_owners(_places(folder))
        _check_contents(folder)
    except CacheError as error:
        return error.message
    except OSError as error:
        return f"{folder} cannot be read: {words_of(error)}"
    return ""


def _check_contents(folder: Path) -> None:
    """Raise CacheError, naming the file, if an artefact is not as it was sealed."""
    path = folder / SEAL
    if not os.path.lexists(path):
        raise CacheError(f"{folder} has no seal")
    facts = unsealed(path.read_bytes()) if stat.S_ISREG(path.lstat().st_mode) else None
    if facts is None:
        raise CacheError(f"{path} is damaged")
    name = f"{facts.get('backend')}/{facts.get('key')}"
    if name != f"{folder.parent.name}/{folder.name}":
        raise CacheError(f"{folder} holds what was sealed as {name}")
    if not isinstance(facts.get("files"), dict):
        raise CacheError(f"{path} names no files: another version of the hub wrote it")
    wanted, found = cast("dict[str, str]", facts["files"]), _digests(folder)
    if wanted != found:
        wrong = min(wanted.items() ^ found.items())[0]
        fact = "is missing" if wrong not in found else "was added" if wrong not in wanted else "is not as it was sealed"
        raise CacheError(f"{folder / wrong} {fact}")


def _seal(partial: Path, folder: Path, about: Mapping[str, Any]) -> None:
    """Write the seal: the digest of each file. Raises CacheError if a plugin used its name or saved no plain file."""
    if os.path.lexists(partial / SEAL):
        raise CacheError(f"a plugin saved a file named {SEAL}", hint="rename it: the name is the hub's")
    _close_to_others(partial)
    facts = {
        "backend": folder.parent.name,
        "key": folder.name,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "about": dict(about),
        "files": _digests(partial),
    }
    (partial / SEAL).write_text(sealed(facts), encoding="ascii")
    (partial / SEAL).chmod(0o600)


def _close_to_others(folder: Path) -> None:
    """Remove other users' write permission, which a wide umask or a copied file's mode may have given them."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH) | stat.S_IRUSR)


def _digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file, by its path in the folder; folders have none.

    Raises CacheError, with the name, for anything but a file or folder, and for what other users could have written.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if reason := distrust(path):
            raise CacheError(reason)
        name, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
        if stat.S_ISDIR(mode):
            found[f"{name}/"] = ""
        elif not stat.S_ISREG(mode):
            raise CacheError(f"{path} is neither a file nor a folder")
        elif name != SEAL:
            with path.open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _land(partial: Path, folder: Path) -> None:
    trash: Path | None = None
    try:
        with _locked(folder):
            if check_artifact(folder, is_wanted=False).is_intact:
                return  # another process was faster; its files may be in use already
            trash = _moved_aside(folder)
            partial.rename(folder)
    finally:
        if trash is not None:
            shutil.rmtree(trash, ignore_errors=True)


def _moved_aside(folder: Path) -> Path | None:
    """Rename an artefact, so that readers find all of it or nothing; return the path that is left to remove, if any."""
    if not os.path.lexists(folder):
        return None
    trash = Path(tempfile.mkdtemp(dir=folder.parent, prefix=PARTIAL))
    folder.rename(trash / folder.name)
    return trash


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold the lock of an artefact. Raises TimeoutError, or OSError if locks are unavailable.

    The kernel holds the lock for this process, so it ends with the process, however that ends. Its file is never removed,
    since that would let two processes hold it. Each of 256 files serves many artefacts, so that they do not accumulate.
    """
    number = hashlib.sha256(f"{folder.parent.name}/{folder.name}".encode()).hexdigest()[:2]
    locks = _places(folder)[0] / LOCKS
    locks.mkdir(exist_ok=True, mode=0o700)
    with FileLock(locks / f"{number}.lock", timeout=LOCK_S, mode=0o600):
        yield
