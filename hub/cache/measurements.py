"""Measurements on this hardware, in SQLite under the cache folder: what was timed once is not timed again."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hub.cache.database import is_damage, open_database
from hub.cache.keys import backend_parts, digest_of, machine_parts
from hub.cost import Cost
from hub.pricing.timing import median
from hub.registry import Entry

MOST_ROWS = 5
"""Rows kept for one subject: enough for a median that one noisy phase of the machine does not move."""
_BATCH = 500
"""Keys in one query; SQLite allows 32,766 parameters."""
_HURRIED_MS = 50
"""Milliseconds that later writes wait after one that waited in vain: planning must not stand still at every row."""

_COLUMNS = (
    "key, structure, backend, versions, machine, threads, spin, effort, accuracy, "
    "run_s, spread_s, transfer_bytes, detail, compile_s, features, made"
)

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a measurement is about. Every part is in the key: a row that differs in one of them is never found."""

    structure: str
    """Digest of operators, attributes, wiring, shapes, dtypes and layout; not of the weights' values."""
    backend: str
    versions: str
    """See `versions_of`."""
    machine: str
    """See `machine_digest`."""
    threads: int
    spin: bool
    effort: str
    accuracy: float | None

    @property
    def key(self) -> str:
        """The digest of all parts."""
        return digest_of(asdict(self))


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of a subject."""

    subject: Subject
    cost: Cost
    """With source "measured"."""
    compile_s: float
    features: Mapping[str, float]
    """What the learned model knows of the subject, by name: "flops", "bytes"."""
    made: str
    """When, in UTC, as ISO 8601."""

    def __post_init__(self) -> None:
        if not self.cost.is_measured:
            raise ValueError(f"the cost must be measured, got an {self.cost.source} one")


@dataclass(frozen=True, slots=True)
class Failure:
    subject: Subject
    stage: str
    reason: str
    node: int | None
    made: str


class Measurements:
    """The measurements under one cache folder. Any thread may call; none of its methods raises for what the file does.

    Not to be used in a process forked after it was opened.
    """

    def __init__(self, root: Path, connection: sqlite3.Connection) -> None:
        self.notes: list[str] = []
        """What went wrong since opening, each thing once."""
        self._root = root
        self._connection = connection
        self._lock = threading.Lock()
        self._was_renewed = False

    @classmethod
    def open(cls, root: Path) -> tuple[Measurements, str]:
        """Gives the measurements under `root`, and a note: "", or why an older file was set aside or nothing is kept."""
        connection, note = open_database(root)
        return cls(root, connection), note

    def find(self, subject: Subject) -> Measurement | None:
        """Gives what is known of a subject, from its latest 5 measurements, or None."""
        return self.find_many((subject,)).get(subject)

    def find_many(self, subjects: Iterable[Subject]) -> dict[Subject, Measurement]:
        """Gives what is known of those subjects that were measured, in their order."""
        keys = {subject: subject.key for subject in subjects}
        rows = self._attempt(lambda connection: _rows_of(connection, list(keys.values())), {})
        found = {subject: self._combined(subject, rows[key]) for subject, key in keys.items() if key in rows}
        return {subject: measurement for subject, measurement in found.items() if measurement is not None}

    def keep(self, measurement: Measurement) -> None:
        """Adds a measurement and drops all but the latest 5 of its subject. One that cannot be written is lost."""
        row = _row_of(measurement)
        self._attempt(lambda connection: _insert(connection, row), None)

    def samples(
        self, backend: str, machine: str, threads: int, versions: str | None = None, most: int = 500
    ) -> tuple[Measurement, ...]:
        """Gives what was measured of a backend, one a subject, newest first. `versions` None means of any versions."""
        wanted = "backend = ? AND machine = ? AND threads = ?" + ("" if versions is None else " AND versions = ?")
        values = [backend, machine, threads, *(() if versions is None else (versions,))]
        query = f"SELECT key FROM measurements WHERE {wanted} GROUP BY key ORDER BY max(id) DESC LIMIT ?"

        def read(connection: sqlite3.Connection) -> dict[str, list[Sequence[Any]]]:
            keys = [key for (key,) in connection.execute(query, [*values, most])]
            rows = _rows_of(connection, keys)
            return {key: rows[key] for key in keys if key in rows}

        found = (self._combined(_subject_of(rows[-1]), rows) for rows in self._attempt(read, {}).values())
        return tuple(measurement for measurement in found if measurement is not None)

    def keep_failure(self, failure: Failure) -> None:
        row = (failure.subject.key, failure.stage, failure.reason, failure.node, failure.made)
        self._attempt(lambda connection: connection.execute("INSERT OR REPLACE INTO failures VALUES (?,?,?,?,?)", row), None)

    def find_failures(self, subjects: Iterable[Subject]) -> dict[Subject, Failure]:
        found: dict[Subject, Failure] = {}
        for subject in subjects:
            query = "SELECT stage, reason, node, made FROM failures WHERE key = ?"
            row = self._attempt(lambda connection, s=subject: connection.execute(query, (s.key,)).fetchone(), None)
            if row is not None:
                found[subject] = Failure(subject, *row)
        return found

    def keep_profile(self, machine: str, threads: int, profile_json: str) -> None:
        """Replaces the profile of a machine. One that cannot be written is lost."""
        query = "INSERT OR REPLACE INTO profiles VALUES (?, ?, ?)"
        self._attempt(lambda connection: connection.execute(query, (machine, threads, profile_json)), None)

    def profile(self, machine: str, threads: int) -> str | None:
        """Gives the profile of a machine as it was kept, or None."""
        query = "SELECT profile FROM profiles WHERE machine = ? AND threads = ?"
        found = self._attempt(lambda connection: connection.execute(query, (machine, threads)).fetchone(), None)
        return found[0] if found is not None and isinstance(found[0], str) else None

    def count(self) -> int:
        """Gives the number of rows."""
        query = "SELECT count(*) FROM measurements"
        return self._attempt(lambda connection: int(connection.execute(query).fetchone()[0]), 0)

    def close(self) -> None:
        """Lets the file go. What is asked afterwards finds nothing."""
        with self._lock:
            self._connection.close()

    def _attempt(self, work: Callable[[sqlite3.Connection], _Found], otherwise: _Found) -> _Found:
        with self._lock:
            try:
                return work(self._connection)
            except (sqlite3.Error, OverflowError) as error:  # OverflowError: an integer of more than 64 bits
                self._note(f"measurements: {error}")
                if isinstance(error, sqlite3.Error):
                    self._mend(error)
                return otherwise

    def _mend(self, error: sqlite3.Error) -> None:
        """Goes on with a new file after damage, once, and waits no more for a process that holds the lock."""
        if is_damage(error) and not self._was_renewed:
            self._was_renewed = True
            self._connection.close()
            self._connection, note = open_database(self._root, is_doubted=True)
            self._note(note)
        elif getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            self._connection.execute(f"PRAGMA busy_timeout = {_HURRIED_MS}")

    def _note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def _combined(self, subject: Subject, rows: Sequence[Sequence[Any]]) -> Measurement | None:
        try:
            return _combined(subject, rows)
        except (ValueError, TypeError, AttributeError) as error:  # SQLite holds any type in any column
            self._note(f"measurements: a row of {subject.backend} cannot be read: {error}")
            return None


def versions_of(entry: Entry | None) -> str:
    """Gives the digest of what runs a subject: plugin and libraries of the backend, torch, hub, Python. None is eager."""
    parts = machine_parts()
    software = {name: parts[name] for name in ("hub", "api", "torch", "python")}
    return digest_of({**software, **({"backend": "eager"} if entry is None else backend_parts(entry))})


@cache
def machine_digest() -> str:
    """Gives the fingerprint of the hardware: processor model and flags, the cores this process may use, accelerators."""
    parts = machine_parts()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return digest_of({"cpu": parts["cpu"], "cores": cores, "accelerators": parts["accelerators"]})


def _rows_of(connection: sqlite3.Connection, keys: Sequence[str]) -> dict[str, list[Sequence[Any]]]:
    """Gives the rows of each key that has any, oldest first."""
    rows: dict[str, list[Sequence[Any]]] = {}
    for start in range(0, len(keys), _BATCH):
        batch = keys[start : start + _BATCH]
        marks = ", ".join("?" * len(batch))
        query = f"SELECT {_COLUMNS} FROM measurements WHERE key IN ({marks}) ORDER BY id"
        for row in connection.execute(query, batch):
            rows.setdefault(row[0], []).append(row[1:])
    return rows


def _insert(connection: sqlite3.Connection, row: Sequence[Any]) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.execute(f"INSERT INTO measurements ({_COLUMNS}) VALUES ({marks})", row)
        connection.execute(
            "DELETE FROM measurements WHERE key = ? AND id NOT IN "
            "(SELECT id FROM measurements WHERE key = ? ORDER BY id DESC LIMIT ?)",
            (row[0], row[0], MOST_ROWS),
        )


def _row_of(measurement: Measurement) -> tuple[Any, ...]:
    subject, cost = measurement.subject, measurement.cost
    features = {name: float(value) for name, value in measurement.features.items()}
    return (
        subject.key,
        subject.structure,
        subject.backend,
        subject.versions,
        subject.machine,
        subject.threads,
        subject.spin,
        subject.effort,
        subject.accuracy,
        cost.run_s,
        cost.spread_s,
        cost.transfer_bytes,
        cost.detail,
        measurement.compile_s,
        json.dumps(features, sort_keys=True),
        measurement.made,
    )


def _subject_of(row: Sequence[Any]) -> Subject:
    structure, backend, versions, machine, threads, spin, effort, accuracy = row[:8]
    return Subject(structure, backend, versions, machine, threads, bool(spin), effort, accuracy)


def _combined(subject: Subject, rows: Sequence[Sequence[Any]]) -> Measurement:
    """Gives the median of a subject's rows, with a spread that covers them; the other facts are the latest row's.

    Raises ValueError, TypeError or AttributeError where a row holds what was never written.
    """
    runs_s = [float(row[8]) for row in rows]
    spreads_s = [float(row[9]) for row in rows]
    transfer_bytes, detail, compile_s, features, made = rows[-1][10:]
    spread_s = max(*spreads_s, (max(runs_s) - min(runs_s)) / 2)
    text = str(detail) if len(rows) == 1 else f"{detail}, median of {len(rows)} measurements"
    read = {str(name): float(value) for name, value in json.loads(features).items()}
    cost = Cost(median(runs_s), spread_s, int(transfer_bytes), "measured", text)
    return Measurement(subject, cost, float(compile_s), read, str(made))
