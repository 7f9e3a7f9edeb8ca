"""Measurements on this hardware, in SQLite under the cache folder, so that nothing is timed twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from hub.cache.database import damage_of, is_damage, open_database, read_database, why
from hub.cache.keys import available_cores, backend_parts, digest_of, machine_parts
from hub.plan import Stage
from hub.plugin.cost import Cost
from hub.plugin.entry import Entry
from hub.process.modes import Modes
from hub.report.numbers import count

MAX_ROWS = 5
"""Rows kept for one subject: enough that one noisy phase of the machine does not move the median."""
_BATCH = 500
"""Keys in one query; SQLite allows 32,766 parameters."""
_HURRIED_MS = 50
"""Milliseconds that writes wait after a first one has waited in vain: planning must not stall at every row."""
MOST: Mapping[str, int] = {"measurements": 50_000, "failures": 5_000, "choices": 5_000, "profiles": 500}
"""Most rows of each table; new ones replace the oldest. With all tables full, the file has about 60 MB."""

_SUBJECT = "key, structure, backend, versions, machine, threads, busy_wait, effort, accuracy, modes"
_COLUMNS: Mapping[str, str] = {
    "measurements": f"{_SUBJECT}, run_s, spread_s, transfer_bytes, detail, compile_s, features, made, digest",
    "failures": f"{_SUBJECT}, stage, reason, node, made, digest",
    "profiles": "machine, threads, profile, digest",
    "choices": "key, about, backend, choice, run_s, made, digest",
}
"""Columns of each table. The last one is the digest of the others: a row that has changed since counts as absent."""
_CHANGED = "it is not as it was written"

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Subject:
    """Identity of a measured thing. Every part belongs to the key: a row that differs in any of them is not found."""

    structure: str
    """Digest of operators, attributes, wiring, shapes, dtypes and layout, without the weights' values."""
    backend: str
    versions: str
    """See `versions_of`."""
    machine: str
    """See `machine_digest`."""
    threads: int
    busy_wait: bool
    effort: str
    accuracy: float | None
    modes: str
    """See `modes_digest`."""

    @property
    def key(self) -> str:
        """Digest of all parts."""
        return digest_of(asdict(self))


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurement of a subject."""

    subject: Subject
    cost: Cost
    """Cost with source "measured"."""
    compile_s: float
    features: Mapping[str, float]
    """Features of the subject for the learned model, by name: "flops", "bytes"."""
    made: str
    """Time of the measurement in UTC, as ISO 8601."""

    def __post_init__(self) -> None:
        if not self.cost.is_measured:
            raise ValueError(f"the cost must be measured, got one of source {self.cost.source}")


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why a backend's candidate is disabled, so that no later process tries it again."""

    subject: Subject
    stage: Stage
    """Stage at which it failed: compiling, loading, verification, the trial run, or later while the model runs."""
    reason: str
    node: int | None
    """Position in its cluster of the node at fault; None if unknown."""
    made: str
    """Time of the failure in UTC, as ISO 8601."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest of several ways to do one thing, as timed by a backend: for example, block sizes of a kernel."""

    key: str
    """Digest of everything that affects it: what is done, on which device, by which versions."""
    about: str
    """Description, for people, of what the choice is for."""
    backend: str
    choice: str
    """The choice in the backend's own format."""
    run_s: float
    """Seconds of one run with it."""
    made: str
    """Time of the choice in UTC, as ISO 8601."""


class Measurements:
    """The measurements under one cache folder. Thread-safe; no method raises because of the file.

    Not to be used in a process forked after it was opened.
    """

    def __init__(self, root: Path, connection: sqlite3.Connection, *, is_read_only: bool = False) -> None:
        self.notes: list[str] = []
        """Problems since opening, each once."""
        self.is_read_only = is_read_only
        """True if nothing is written or set aside."""
        self._root = root
        self._connection = connection
        self._lock = threading.Lock()
        self._was_renewed = is_read_only

    @classmethod
    def open(cls, root: Path) -> tuple[Measurements, str]:
        """Return the measurements under `root`, and a note: "", or why an older file was set aside or nothing is stored."""
        connection, note = open_database(root)
        return cls(root, connection), note

    @classmethod
    def inspect(cls, root: Path) -> tuple[Measurements, str]:
        """Return the measurements under `root`, to be read only, and a note: "", or why they cannot be read."""
        connection, note = read_database(root)
        return cls(root, connection, is_read_only=True), note

    def find(self, subject: Subject) -> Measurement | None:
        """Return the measurement of a subject, from its latest 5 rows, or None."""
        return self.find_many((subject,)).get(subject)

    def find_many(self, subjects: Iterable[Subject]) -> dict[Subject, Measurement]:
        """Return the measurements of those subjects that have any, in their order."""
        keys = {subject: subject.key for subject in subjects}
        rows = self._attempt(lambda connection: self._rows(connection, "measurements", list(keys.values())), {})
        found = {subject: self._combined(subject, rows[key]) for subject, key in keys.items() if key in rows}
        return {subject: measurement for subject, measurement in found.items() if measurement is not None}

    def keep(self, measurement: Measurement) -> None:
        """Add a measurement and drop all but the latest 5 of its subject. If it cannot be written, it is lost."""
        row = _row_of(measurement)
        self._attempt(lambda connection: _insert_measurement(connection, row), None)

    def samples(
        self, backend: str, machine: str, threads: int, versions: str | None = None, most: int = 500
    ) -> tuple[Measurement, ...]:
        """Return the measurements of a backend, one per subject, newest first. `versions` None means any versions."""
        wanted = "backend = ? AND machine = ? AND threads = ?" + ("" if versions is None else " AND versions = ?")
        values = [backend, machine, threads, *(() if versions is None else (versions,))]
        query = f"SELECT key FROM measurements WHERE {wanted} GROUP BY key ORDER BY max(id) DESC LIMIT ?"

        def read(connection: sqlite3.Connection) -> dict[str, list[Sequence[Any]]]:
            keys = [key for (key,) in connection.execute(query, [*values, most])]
            rows = self._rows(connection, "measurements", keys)
            return {key: rows[key] for key in keys if key in rows}

        found = (self._combined(_subject_of(rows[-1]), rows) for rows in self._attempt(read, {}).values())
        return tuple(measurement for measurement in found if measurement is not None)

    def keep_choice(self, choice: Choice) -> None:
        """Store a choice, replacing an older one of its key. If it cannot be written, it is lost."""
        row = (choice.key, choice.about, choice.backend, choice.choice, float(choice.run_s), choice.made)
        self._attempt(lambda connection: _insert_bounded(connection, "choices", row), None)

    def find_choices(self, keys: Iterable[str]) -> dict[str, Choice]:
        """Return the choices that were made under some keys."""
        wanted = list(dict.fromkeys(keys))
        rows = self._attempt(lambda connection: self._rows(connection, "choices", wanted), {})
        return {key: Choice(key, *found[-1]) for key, found in rows.items()}

    def keep_profile(self, machine: str, threads: int, profile_json: str) -> None:
        """Replace the profile of a machine. If it cannot be written, it is lost."""
        row = (machine, threads, profile_json)
        self._attempt(lambda connection: _insert_bounded(connection, "profiles", row), None)

    def profile(self, machine: str, threads: int) -> str | None:
        """Return the stored profile of a machine, or None."""
        query = f"SELECT {_COLUMNS['profiles']} FROM profiles WHERE machine = ? AND threads = ?"
        found = self._attempt(lambda connection: connection.execute(query, (machine, threads)).fetchone(), None)
        if found is not None and not _is_sound(found):
            self._note(f"measurements: the profile of this machine cannot be read: {_CHANGED}")
            return None
        return None if found is None else str(found[2])

    def keep_failure(self, failure: Failure) -> None:
        """Store a failure, replacing an older one of its subject. If it cannot be written, it is lost."""
        # Messages from plugins and compilers may hold lone surrogates, which SQLite cannot store.
        stage, reason, made = map(_encodable, (failure.stage, failure.reason, failure.made))
        row = (*_subject_row(failure.subject), stage, reason, failure.node, made)
        self._attempt(lambda connection: _insert_bounded(connection, "failures", row), None)

    def find_failures(self, subjects: Iterable[Subject]) -> dict[Subject, Failure]:
        """Return the failures of those subjects that failed, in their order."""
        keys = {subject: subject.key for subject in subjects}
        rows = self._attempt(lambda connection: self._rows(connection, "failures", list(keys.values())), {})
        return {subject: _failure(subject, rows[key][-1][9:]) for subject, key in keys.items() if key in rows}

    def failures(self) -> tuple[Failure, ...]:
        """Return all stored failures, latest first."""
        query = f"SELECT {_COLUMNS['failures']} FROM failures ORDER BY rowid DESC"
        rows = self._attempt(lambda connection: self._sound("failures", connection.execute(query)), [])
        return tuple(_failure(_subject_of(row[1:]), row[10:]) for row in rows)

    def forget(self, backend: str | None = None) -> int:
        """Forget the failures of a backend, or all of them, so that its candidates are retried; return how many."""
        query = "DELETE FROM failures" + ("" if backend is None else " WHERE backend = ?")
        values = () if backend is None else (backend,)
        return self._attempt(lambda connection: connection.execute(query, values).rowcount, 0)

    def forget_subjects(self, subjects: Iterable[Subject]) -> None:
        """Forget the failures of these subjects."""
        keys = [(subject.key,) for subject in subjects]
        self._attempt(lambda connection: connection.executemany("DELETE FROM failures WHERE key = ?", keys).rowcount, 0)

    def clear(self) -> int:
        """Remove every row of every table; return how many."""
        return sum(
            self._attempt(lambda connection, table=table: connection.execute(f"DELETE FROM {table}").rowcount, 0)
            for table in _COLUMNS
        )

    def trim(self) -> int:
        """Drop the oldest rows beyond each table's limit, and free their disk space; return how many were dropped."""
        dropped = sum(self._attempt(lambda connection, table=table: _drop_oldest(connection, table), 0) for table in MOST)
        self._attempt(lambda connection: connection.execute("VACUUM"), None)
        return dropped

    def find_broken(self, *, repair: bool = False) -> tuple[str, ...]:
        """Read the whole file and return its problems in words; with `repair`, drop damaged rows or set the file aside."""
        n_before = len(self.notes)
        damage = self._attempt(damage_of, "")
        if damage and repair:
            self._renew()
        rows = {table: self._attempt(lambda connection, table=table: _unsound(connection, table), []) for table in _COLUMNS}
        for table, broken in rows.items() if repair else ():
            query = f"DELETE FROM {table} WHERE rowid = ?"
            self._attempt(lambda connection, query=query, broken=broken: connection.executemany(query, broken), None)
        texts = [f"{count(len(broken), 'row')} of {table}: {_CHANGED}" for table, broken in rows.items() if broken]
        return (*((damage,) if damage else ()), *texts, *self.notes[n_before:])

    def count(self) -> int:
        """Return the number of measurements."""
        query = "SELECT count(*) FROM measurements"
        return self._attempt(lambda connection: int(connection.execute(query).fetchone()[0]), 0)

    def count_all(self) -> int:
        """Return the number of rows of all tables."""
        query = f"SELECT {' + '.join(f'(SELECT count(*) FROM {table})' for table in _COLUMNS)}"
        return self._attempt(lambda connection: int(connection.execute(query).fetchone()[0]), 0)

    def close(self) -> None:
        """Close the file. Later queries find nothing."""
        with self._lock:
            self._connection.close()

    def _attempt(self, work: Callable[[sqlite3.Connection], _Found], otherwise: _Found) -> _Found:
        with self._lock:
            try:
                return work(self._connection)
            except (sqlite3.Error, OverflowError, UnicodeError) as error:  # beyond 64 bits; text that is not Unicode
                self._note(f"measurements: {why(error, self._root)}")
                if isinstance(error, (sqlite3.Error, UnicodeDecodeError)):
                    self._mend(error)
                return otherwise

    def _mend(self, error: sqlite3.Error | UnicodeDecodeError) -> None:
        """Continue with a new file after damage, once, and stop waiting for a process that holds the lock."""
        if is_damage(error) and not self._was_renewed:
            self._renew()
        elif getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            self._connection.execute(f"PRAGMA busy_timeout = {_HURRIED_MS}")

    def _renew(self) -> None:
        self._was_renewed = True
        self._connection.close()
        self._connection, note = open_database(self._root, is_doubted=True)
        self._note(note)

    def _rows(self, connection: sqlite3.Connection, table: str, keys: Sequence[str]) -> dict[str, list[Sequence[Any]]]:
        """Return the intact rows of each key that has any, oldest first, without key and digest."""
        rows: dict[str, list[Sequence[Any]]] = {}
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            marks = ", ".join("?" * len(batch))
            query = f"SELECT {_COLUMNS[table]} FROM {table} WHERE key IN ({marks}) ORDER BY rowid"
            for row in self._sound(table, connection.execute(query, batch)):
                rows.setdefault(row[0], []).append(row[1:])
        return rows

    def _sound(self, table: str, rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the rows that are as written, without their digest, and note which are not."""
        found: list[Sequence[Any]] = []
        for row in rows:
            if _is_sound(row):
                found.append(row[:-1])
            else:
                self._note(f"{table}: a row of {row[2]} cannot be read: {_CHANGED}")
        return found

    def _note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def _combined(self, subject: Subject, rows: Sequence[Sequence[Any]]) -> Measurement | None:
        try:
            return _combined(subject, rows)
        except (ValueError, TypeError, AttributeError) as error:  # SQLite stores any type in any column
            self._note(f"measurements: a row of {subject.backend} cannot be read: {error}")
            return None


def versions_of(entry: Entry | None) -> str:
    """Return the digest of the software that runs a subject: the backend's plugin and libraries, torch, hub, Python.

    None means eager.
    """
    parts = machine_parts()
    software = {name: parts[name] for name in ("hub", "api", "torch", "python")}
    return digest_of({**software, **({"backend": "eager"} if entry is None else backend_parts(entry))})


def modes_digest(modes: Modes) -> str:
    """Return the digest of PyTorch's settings: some select faster kernels, of eager and of compilers that call them."""
    return digest_of(modes.parts)


@cache
def machine_digest() -> str:
    """Return the fingerprint of the hardware: processor model and flags, the cores this process may use, accelerators."""
    parts = machine_parts()
    return digest_of({"cpu": parts["cpu"], "cores": available_cores(), "accelerators": parts["accelerators"]})


def _is_sound(row: Sequence[Any]) -> bool:
    return row[-1] == _row_digest(row[:-1])


def _row_digest(row: Sequence[Any]) -> str:
    """Return the digest of a row's values, which SQLite returns exactly as stored: floats to the last bit."""
    return hashlib.sha256(repr(tuple(row)).encode()).hexdigest()


def _failure(subject: Subject, row: Sequence[Any]) -> Failure:
    """Return a failure from its columns. A stage unknown to this version counts as compiling."""
    stage = Stage(row[0]) if row[0] in {*Stage} else Stage.COMPILE
    return Failure(subject, stage, *row[1:])


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _unsound(connection: sqlite3.Connection, table: str) -> list[tuple[int]]:
    """Return the row numbers of rows that are not as written."""
    rows = connection.execute(f"SELECT rowid, {_COLUMNS[table]} FROM {table}")
    return [(row[0],) for row in rows if not _is_sound(row[1:])]


def _insert(connection: sqlite3.Connection, table: str, row: Sequence[Any]) -> None:
    marks = ", ".join("?" * (len(row) + 1))
    query = f"INSERT OR REPLACE INTO {table} ({_COLUMNS[table]}) VALUES ({marks})"
    connection.execute(query, (*row, _row_digest(row)))


def _insert_bounded(connection: sqlite3.Connection, table: str, row: Sequence[Any]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        _insert(connection, table, row)
        _drop_oldest(connection, table)


def _drop_oldest(connection: sqlite3.Connection, table: str) -> int:
    """Drop the rows beyond the limit, and return how many. Costs nothing if there are none: row numbers only grow."""
    query = f"DELETE FROM {table} WHERE rowid <= (SELECT max(rowid) FROM {table}) - ?"
    return connection.execute(query, (MOST[table],)).rowcount


def _insert_measurement(connection: sqlite3.Connection, row: Sequence[Any]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        _insert(connection, "measurements", row)
        connection.execute(
            "DELETE FROM measurements WHERE key = ? AND id NOT IN "
            "(SELECT id FROM measurements WHERE key = ? ORDER BY id DESC LIMIT ?)",
            (row[0], row[0], MAX_ROWS),
        )
        _drop_oldest(connection, "measurements")


def _row_of(measurement: Measurement) -> tuple[Any, ...]:
    cost = measurement.cost
    features = {name: float(value) for name, value in measurement.features.items()}
    return (
        *_subject_row(measurement.subject),
        float(cost.run_s),
        float(cost.spread_s),
        int(cost.transfer_bytes),
        cost.detail,
        float(measurement.compile_s),
        json.dumps(features, sort_keys=True),
        measurement.made,
    )


def _subject_row(subject: Subject) -> tuple[Any, ...]:
    """Return a subject's values in the types of their columns, so that they are read back unchanged."""
    return (
        subject.key,
        subject.structure,
        subject.backend,
        subject.versions,
        subject.machine,
        int(subject.threads),
        int(subject.busy_wait),
        subject.effort,
        None if subject.accuracy is None else float(subject.accuracy),
        subject.modes,
    )


def _subject_of(row: Sequence[Any]) -> Subject:
    structure, backend, versions, machine, threads, busy_wait, effort, accuracy, modes = row[:9]
    return Subject(structure, backend, versions, machine, threads, bool(busy_wait), effort, accuracy, modes)


def _combined(subject: Subject, rows: Sequence[Sequence[Any]]) -> Measurement:
    """Return the median of a subject's rows, with a spread that covers them; the other facts are the latest row's.

    Raises ValueError, TypeError or AttributeError if a row holds values that were never written.
    """
    runs_s = [float(row[9]) for row in rows]
    spreads_s = [float(row[10]) for row in rows]
    transfer_bytes, detail, compile_s, features, made = rows[-1][11:]
    spread_s = max(*spreads_s, (max(runs_s) - min(runs_s)) / 2)
    text = str(detail) if len(rows) == 1 else f"{detail}, median of {len(rows)} measurements"
    read = {str(name): float(value) for name, value in json.loads(features).items()}
    cost = Cost(median(runs_s), spread_s, int(transfer_bytes), "measured", text)
    return Measurement(subject, cost, float(compile_s), read, str(made))
