"""Opens the SQLite file of measurements, sets an unusable file aside, and works in memory if it must."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock

from hub.cache.trust import distrust, distrust_root
from hub.errors import words_of

SCHEMA_VERSION = 4
"""Schema version in the file's name and `user_version`. Another one's file is not migrated: measuring anew is cheap."""
DATABASE = f"measurements-{SCHEMA_VERSION}.sqlite"
"""Name of the file. It has the version, so that two versions of the hub that share a folder do not take turns at setting
each other's measurements aside."""
BUSY_S = 10.0
"""Seconds to wait for another process's write; a write takes about 0.1 ms, so 16 processes never come near it."""
_MIN_FREE_BYTES = 1 << 20
"""Free bytes below which a failed write is put down to a full disk."""
MAX_ASIDE = 3
"""Most files to set aside; further ones replace the last, so that they cannot fill the disk."""

_SCHEMA: Mapping[str, str] = {
    "measurements": (
        "CREATE TABLE measurements (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, structure TEXT NOT NULL, "
        "backend TEXT NOT NULL, versions TEXT NOT NULL, machine TEXT NOT NULL, threads INTEGER NOT NULL, "
        "busy_wait INTEGER NOT NULL, effort TEXT NOT NULL, accuracy REAL, modes TEXT NOT NULL, run_s REAL NOT NULL, "
        "spread_s REAL NOT NULL, transfer_bytes INTEGER NOT NULL, detail TEXT NOT NULL, compile_s REAL NOT NULL, "
        "features TEXT NOT NULL, "
        "made TEXT NOT NULL, digest TEXT NOT NULL)"
    ),
    "measurements_by_key": "CREATE INDEX measurements_by_key ON measurements (key, id)",
    "measurements_by_backend": "CREATE INDEX measurements_by_backend ON measurements (backend, machine, threads, key, id)",
    "profiles": (
        "CREATE TABLE profiles (machine TEXT NOT NULL, threads INTEGER NOT NULL, profile TEXT NOT NULL, "
        "digest TEXT NOT NULL, PRIMARY KEY (machine, threads))"
    ),
    "failures": (
        "CREATE TABLE failures (key TEXT PRIMARY KEY, structure TEXT NOT NULL, backend TEXT NOT NULL, "
        "versions TEXT NOT NULL, machine TEXT NOT NULL, threads INTEGER NOT NULL, busy_wait INTEGER NOT NULL, "
        "effort TEXT NOT NULL, accuracy REAL, modes TEXT NOT NULL, stage TEXT NOT NULL, "
        "reason TEXT NOT NULL, node INTEGER, made TEXT NOT NULL, "
        "digest TEXT NOT NULL)"
    ),
    "choices": (
        "CREATE TABLE choices (key TEXT PRIMARY KEY, about TEXT NOT NULL, backend TEXT NOT NULL, choice TEXT NOT NULL, "
        "run_s REAL NOT NULL, made TEXT NOT NULL, digest TEXT NOT NULL)"
    ),
}

_SURROUNDINGS = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOLFS,
    }
)
"""Primary result codes that point to the disk or other processes, not to the file's contents."""


def open_database(root: Path, *, is_doubted: bool = False) -> tuple[sqlite3.Connection, str]:
    """Return a connection to the measurements under `root`, and a note: "", or the problem and what was done about it.

    A damaged file, or one whose schema is not that of its name, is renamed to `DATABASE.broken-N`. If nothing can be stored
    (a read-only disk, files that other users own or may write), the connection is to memory. `is_doubted` reads the whole
    file to find damage, which a normal opening does not. The connection commits each statement by itself. Raises nothing.
    """
    path = root / DATABASE
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if reason := distrust_root(root):
            return _in_memory(reason)
        # One process at a time: of two that find the same damage, the second must not set the first one's new file aside.
        with FileLock(root / f"{DATABASE}.lock", timeout=BUSY_S, mode=0o600):
            _create_private(path)
            if reason := distrust(path):
                return _in_memory(reason)
            return _opened(path, is_doubted)
    except (OSError, NotImplementedError, sqlite3.Error) as error:
        return _in_memory(f"{path} cannot be used: {why(error, root)}")


def read_database(root: Path) -> tuple[sqlite3.Connection, str]:
    """Return a connection that only reads the measurements under `root`, and a note: "", or why they cannot be read.

    It writes and repairs nothing, so that a sound file on a read-only disk is read. The connection is to an empty database
    in memory if there is a note. Raises nothing.
    """
    path = root / DATABASE
    try:
        if reason := distrust(path):
            return _empty(), reason
        connection = _reading(path)
        fault = _schema_fault(connection)
    except (OSError, ValueError, NotImplementedError, sqlite3.Error) as error:
        return _empty(), f"{path} cannot be read: {why(error, root)}"
    if fault:
        connection.close()
        return _empty(), f"{path} cannot be read: {fault}"
    return connection, ""


def _reading(path: Path) -> sqlite3.Connection:
    """Return a connection that only reads. Raises sqlite3.Error.

    SQLite cannot open a file in WAL mode if it can neither find nor create the file's -shm, unless it is told that no
    process writes to it; then it reads the file alone, as of the last time that all processes closed it.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    connection = _connect(address, is_address=True)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if is_damage(error):
            raise
        return _connect(f"{address}&immutable=1", is_address=True)
    return connection


def _empty() -> sqlite3.Connection:
    connection = _connect(":memory:")
    _create_tables(connection)
    return connection


def choices_state(root: Path, backend: str) -> str:
    """Return a digest of a backend's choices, for `BackendSettings.state`; "" if there are none, or they are unreadable.

    Takes a fraction of a millisecond, creates no file, waits for no lock and repairs nothing. Raises nothing.
    """
    path = root / DATABASE
    try:
        if not path.exists() or distrust_root(root) or distrust(path):
            return ""
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0.0, isolation_level=None)
    except (OSError, ValueError, NotImplementedError, sqlite3.Error):
        return ""
    try:
        rows = connection.execute("SELECT digest FROM choices WHERE backend = ? ORDER BY key", (backend,)).fetchall()
    except (sqlite3.Error, UnicodeDecodeError):
        return ""
    finally:
        connection.close()
    return hashlib.sha256("\n".join(str(digest) for (digest,) in rows).encode()).hexdigest() if rows else ""


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Return whether an error points to the file's contents, and not to the disk, another process or the caller.

    SQLite's message about a damaged schema quotes it, and Python may fail to decode the message.
    """
    if isinstance(error, sqlite3.ProgrammingError):
        return False
    code = getattr(error, "sqlite_errorcode", None)  # None for errors that Python itself finds: text that is not UTF-8
    return code is None or code & 0xFF not in _SURROUNDINGS


def why(error: Exception, root: Path) -> str:
    """Return an error in words. SQLite's own do not name a full disk in all cases."""
    with contextlib.suppress(OSError):
        if isinstance(error, sqlite3.Error) and shutil.disk_usage(root).free < _MIN_FREE_BYTES:
            return f"no space left in {root}"
    return words_of(error)


def _opened(path: Path, is_doubted: bool) -> tuple[sqlite3.Connection, str]:
    connection, fault = _checked(path, is_doubted)
    if not fault:
        return connection, ""
    connection.close()
    note = f"{path} was set aside as {_set_aside(path)}: {fault}"
    _create_private(path)
    connection, fault = _checked(path, False)
    if fault:
        raise OSError(f"a new file is unusable too: {fault}")
    return connection, note


def _checked(path: Path, is_doubted: bool) -> tuple[sqlite3.Connection, str]:
    """Return a connection to a file, creating its tables if it was empty, and what is wrong with its contents."""
    connection = _connect(str(path))
    try:
        fault = (damage_of(connection) if is_doubted else "") or _schema_fault(connection)
        if not fault:
            connection.execute("PRAGMA cell_size_check = ON")  # finds a damaged page before it is read
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # in WAL mode a power failure then loses rows, never the file
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if not is_damage(error):
            connection.close()
            raise
        fault = str(error)
    return connection, fault


def _connect(path: str, *, is_address: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=is_address)
    # A damaged text loses its row, whose digest no longer matches, and does not fail every query that reads it.
    connection.text_factory = _text
    return connection


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def damage_of(connection: sqlite3.Connection) -> str:
    """Read the whole file and return the first problem with it, or "". Raises sqlite3.Error."""
    (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    return "" if answer == "ok" else str(answer)


def _schema_fault(connection: sqlite3.Connection) -> str:
    """Return how a file's tables differ from ours; create them in an empty file."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    found = dict(
        connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'")
    )
    if not version and not found:
        _create_tables(connection)
        return ""
    if version != SCHEMA_VERSION:
        return f"it has schema {version}, this hub has {SCHEMA_VERSION}"
    return "" if found == _SCHEMA else "its tables are not the hub's"


def _create_tables(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        for statement in _SCHEMA.values():
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _create_private(path: Path) -> None:
    """Create an empty file that only its owner may write, if there is none; SQLite gives -wal and -shm the same mode."""
    # Never open a file that exists: closing it would drop the locks that this process's other connections hold on it
    # (https://sqlite.org/howtocorrupt.html, 2.2).
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _set_aside(path: Path) -> str:
    """Rename a file and its -wal and -shm, with the current time as their modification time; return the new name."""
    names = [f"{path.name}.broken-{number}" for number in range(1, MAX_ASIDE + 1)]
    name = next((name for name in names if not path.with_name(name).exists()), names[-1])
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(path.with_name(name + suffix))
            os.utime(path.with_name(name + suffix))
    return name


def _in_memory(reason: str) -> tuple[sqlite3.Connection, str]:
    return _empty(), f"measurements last only as long as this process: {reason}"
