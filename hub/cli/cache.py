"""`hub cache`."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from hub.cache.database import DATABASE
from hub.cache.imports import IMPORTS, KeptImports, forget_faults, read_imports
from hub.cache.measurements import MOST, Failure, Measurements
from hub.cache.trust import distrust, distrust_root
from hub.cache.tuning import MAX_BYTES, Tuned, clear_tuned, list_tuned
from hub.cache.upkeep import (
    Broken,
    Kept,
    clear,
    database_bytes,
    files_aside,
    find_broken,
    forget_plans,
    list_kept,
    prune,
)
from hub.cli.ending import say
from hub.cli.output import echo_json
from hub.config.suggest import did_you_mean
from hub.config.tables import CacheSettings
from hub.discovery.registry import registry
from hub.errors import CacheError, OptionError
from hub.report.columns import columns
from hub.report.numbers import count, names_text

_AS_ITS_OWNER = "run the command as the user who owns the cache, or set HUB_CACHE_DIR to another folder"
_BROKEN = 1
"""Exit status if corrupt entries remain."""
_SHOWN_KEY = 12
"""Digits of a key that suffice to identify it."""
_AGES_S = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def print_kept(cache: CacheSettings, *, as_json: bool) -> None:
    """Print the contents of a cache. Raise HubError on failure."""
    root = _trusted(cache)
    kept, (failures, n_rows), imports = list_kept(root), _recorded(root), read_imports(root)
    nbytes = sum(item.nbytes for item in kept)
    if as_json:
        facts = {"folder": str(root), "nbytes": nbytes, "limit_bytes": cache.gb * 1e9}
        found = {"failures": list(map(asdict, failures)), "imports": list(map(asdict, imports.found.values()))}
        rows = {"measurements": _rows_facts(root, n_rows), "tuning": _tuning_facts(root)}
        _echo({**facts, "kept": list(map(_facts, kept)), **rows, **found})
        return
    numbers = [count(sum(item.kind == kind for item in kept), kind) for kind in ("artifact", "plan")]
    typer.echo(f"{root}: {', '.join(numbers)}, {_size(nbytes)} of at most {_size(cache.gb * 1e9)}")
    headers, right = ("kind", "backend", "key", "size", "made", "used", "what"), frozenset({"size", "made", "used"})
    lines = columns(headers, list(map(_cells, kept)), right=right) if kept else []
    known = (*_rows_lines(root, n_rows), *_tuning_lines(root), *_import_lines(imports), *_failure_lines(failures, imports))
    for line in (*([""] if lines else []), *lines, *known):
        typer.echo(line)


def print_broken(cache: CacheSettings, *, as_json: bool, repair: bool) -> None:
    """Print corrupt entries, and exit with status 1 if any remain. Raise HubError on failure."""
    root = cache.root
    if root.exists() and (reason := distrust_root(root)):
        found: tuple[Broken, ...] = (Broken(root, reason),)
    elif not root.exists():
        root, found = _trusted(cache), ()
    else:
        found = (*find_broken(root, repair=repair), *_broken_rows(root, repair=repair))
    if as_json:
        _echo([{**asdict(item), "path": str(item.path)} for item in found])
    else:
        for item in found:
            typer.echo(f"{item.reason}{'; removed' if item.is_removed else ''}")
        typer.echo(f"{root}: {count(len(found), 'corrupt entry')}" if found else f"{root}: no corrupt entries")
    if any(not item.is_removed for item in found):
        raise typer.Exit(_BROKEN)


def print_pruned(cache: CacheSettings, *, as_json: bool) -> None:
    """Shrink a cache to its size limit, including recently used entries, and print what was removed.

    Raise HubError on failure.
    """
    root = _writable(cache)
    done = prune(root, cache.gb * 1e9, grace_s=0.0, aside_s=0.0)
    rows = _trimmed(root)
    if as_json:
        leftovers = [str(path) for path in done.leftovers]
        found = {"removed": list(map(_facts, done.removed)), "leftovers": leftovers, "aside": list(map(str, done.aside))}
        tuned = [str(kernel.path) for kernel in done.tuned]
        _echo({**found, "rows": rows, "tuning": tuned, "nbytes": done.nbytes})
        return
    freed = sum(item.nbytes for item in done.removed)
    left = f"{count(len(done.leftovers), 'leftover')} of killed processes"
    typer.echo(f"removed {count(len(done.removed), 'entry')}, {_size(freed)}, and {left}; {_size(done.nbytes)} are left")
    if rows or done.aside:
        aside = f"{count(len(done.aside), 'file')} no longer in use"
        typer.echo(f"{DATABASE}: removed {count(rows, 'old row')} and {aside}")
    if done.tuned:
        typer.echo(f"tuning: removed {_tuned_text(done.tuned)}")


def clear_and_print(cache: CacheSettings, *, as_json: bool, is_sure: bool, with_tuning: bool) -> None:
    """Empty a cache after confirmation, and print what was freed. Raise HubError on failure, Abort if the user declines.

    Tuning results may have taken hours, so they are removed only on request.
    """
    root = _writable(cache)
    tuned = list_tuned(root)
    if not is_sure:
        more = f", and {_tuned_text(tuned)}" if tuned and with_tuning else ""
        _confirm(f"Remove every executable, plan and measurement in {root}{more}?")
    gone = clear_tuned(root) if with_tuning else ()
    kept = [item.path for item in list_kept(root)]
    freed, rows = clear(root) + sum(kernel.nbytes for kernel in gone), 0
    if (root / DATABASE).exists():
        with _measurements(root) as measurements:
            rows = measurements.clear()
            measurements.trim()
    _check_gone(kept)
    if as_json:
        _echo({"nbytes": freed, "rows": rows, "tuning": [str(kernel.path) for kernel in gone]})
        return
    typer.echo(f"removed {_size(freed)} of files and {count(rows, 'row')} of measurements")
    if gone:
        typer.echo(f"removed {_tuned_text(gone)}")
    if tuned and not with_tuning:
        typer.echo(f"left {_tuned_text(tuned)}, for which tuning may have taken hours; `--tuning` removes that too")


def _confirm(question: str) -> None:
    """Ask a question. Raise Abort if the answer is no, OptionError if none can come."""
    no_answer = OptionError("there is no answer on standard input", hint="`--yes` does not ask")
    if sys.stdin is None:  # closed: there is not even an end of it to read
        raise no_answer
    try:
        is_sure = typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        typer.echo(err=True)
        raise no_answer from None
    if not is_sure:
        raise typer.Abort


def forget_and_print(backend: str | None, cache: CacheSettings, *, as_json: bool) -> None:
    """Forget failures, together with the plans made after them, and print how many.

    Raise HubError on failure, also for a backend that is neither installed nor recorded.
    """
    root = _writable(cache)
    if backend is not None:
        _check_named(backend, root)
    number = forget_faults(root, backend)
    if (root / DATABASE).exists():
        with _measurements(root) as kept:
            number += kept.forget(backend)
    n_plans = forget_plans(root, backend)
    whose = "" if backend is None else f" of {backend}"
    plans = f", and {count(n_plans, 'plan')} made after it" if n_plans else ""
    text = f"forgot {count(number, 'failure')}{whose}{plans}"
    if as_json:
        _echo({"forgotten": number, "plans": n_plans})
    else:
        typer.echo(text)


def _check_named(backend: str, root: Path) -> None:
    plugins = (one.plugin for one in read_imports(root).found.values())
    known = {*registry().entries, *plugins, *(failure.subject.backend for failure in _recorded(root)[0])}
    if backend not in known:
        raise OptionError(
            f"no backend is named {backend!r}{did_you_mean(backend, known)}", hint="`hub cache ls` shows what is remembered"
        )


def _trusted(cache: CacheSettings) -> Path:
    """Return the cache folder, which need not exist. Raise CacheError if other users could have written its contents."""
    root = cache.root
    if root.exists() and (reason := distrust_root(root)):
        raise CacheError(f"the cache folder is not used: {reason}")
    if not root.exists() and (file := next((one for one in root.parents if one.exists() and not one.is_dir()), None)):
        raise CacheError(f"{root} cannot be a cache folder: {file} is not a folder")
    return root


def _writable(cache: CacheSettings) -> Path:
    """Return the cache folder, which need not exist. Raise CacheError also if this process cannot change its contents."""
    root = _trusted(cache)
    shut = (one for one in (root, root / DATABASE) if one.exists() and not os.access(one, os.W_OK))
    if (first := next(shut, None)) is not None:
        raise CacheError(f"{first} cannot be changed: this user may not write to it", hint=_AS_ITS_OWNER)
    if (root / DATABASE).exists() and (reason := distrust(root / DATABASE)):
        raise CacheError(f"the measurements are not used: {reason}", hint=_AS_ITS_OWNER)
    return root


def _check_gone(paths: Iterable[Path]) -> None:
    """Raise CacheError if one of these paths, which should have been removed, is still there."""
    left = [path for path in paths if os.path.lexists(path)]
    if left:
        more = f", nor could {count(len(left) - 1, 'other')}" if len(left) > 1 else ""
        raise CacheError(f"{left[0]} could not be removed{more}", hint=_AS_ITS_OWNER)


@contextmanager
def _measurements(root: Path) -> Generator[Measurements]:
    """Yield the measurements of a cache; problems with them are reported on standard error."""
    kept, note = _opened(root)
    try:
        yield kept
    finally:
        kept.close()
        for text in filter(None, (note, *kept.notes)):
            say("warning", text, typer.colors.YELLOW)


def _opened(root: Path) -> tuple[Measurements, str]:
    """Return the measurements of a cache, and a note on a problem with them.

    They are only read if they cannot be written: on a read-only or full disk, or while another process holds the lock.
    """
    if all(os.access(place, os.W_OK) for place in (root, root / DATABASE)):
        before = _aside(root)
        kept, note = Measurements.open(root)
        if not note or _aside(root) != before:
            return kept, note
        kept.close()
    return Measurements.inspect(root)


def _aside(root: Path) -> dict[Path, int]:
    """Return the files of measurements that were set aside, with the time of that: the last name is used again."""
    return {path: path.lstat().st_mtime_ns for path in files_aside(root)}


def _recorded(root: Path) -> tuple[tuple[Failure, ...], int]:
    """Return the failures, and the number of rows of measurements."""
    if not (root / DATABASE).exists():
        return (), 0
    with _measurements(root) as kept:
        return kept.failures(), kept.count_all()


def _trimmed(root: Path) -> int:
    if not (root / DATABASE).exists():
        return 0
    with _measurements(root) as kept:
        return kept.trim()


def _broken_rows(root: Path, *, repair: bool) -> tuple[Broken, ...]:
    if not (root / DATABASE).exists():
        return ()
    path = root / DATABASE
    kept, note = _opened(root)
    is_repaired = repair and not kept.is_read_only
    found = kept.find_broken(repair=is_repaired)
    kept.close()
    unusable = [Broken(path, note, is_removed=not kept.is_read_only)] if note else []  # opening has set it aside
    return (*unusable, *(Broken(path, f"{path}: {text}", is_removed=is_repaired) for text in found))


# --- Text -------------------------------------------------------------------------------------------------------------


def _cells(item: Kept) -> tuple[str, ...]:
    made_s = datetime.datetime.fromisoformat(item.made).timestamp() if item.made else None
    key = item.key[:_SHOWN_KEY]
    return (item.kind, item.backend or "-", key, _size(item.nbytes), _age(made_s), _age(item.used), _what(item))


def _what(item: Kept) -> str:
    if not item.made:
        return "damaged: `hub cache verify --repair` removes it"
    inputs = names_text(item.about.get("inputs", ())) or "nothing"
    if item.kind == "plan":
        return f"{' + '.join(item.about['backends'])} for {inputs}"
    operators = (f"{name} x{number}" for name, number in item.about.get("operators", ()))
    return f"{names_text(operators)} on {inputs}"


def _rows_lines(root: Path, n_rows: int) -> list[str]:
    """Return the size of the measurements file, and what was moved aside from it."""
    facts = _rows_facts(root, n_rows)
    if not facts["nbytes"] and not facts["aside"]:
        return []
    aside = f"; {count(len(facts['aside']), 'file')} set aside as damaged" if facts["aside"] else ""
    numbers = f"{count(facts['rows'], 'row')} of at most {facts['limit_rows']:,}, {_size(facts['nbytes'])}"
    return ["", f"{DATABASE}: {numbers}{aside}"]


def _rows_facts(root: Path, n_rows: int) -> dict[str, Any]:
    aside = list(map(str, files_aside(root)))
    return {"rows": n_rows, "limit_rows": sum(MOST.values()), "nbytes": database_bytes(root), "aside": aside}


def _tuning_lines(root: Path) -> list[str]:
    """Return how much tuning has found and its size limit; nothing if there is none."""
    found = list_tuned(root)
    return ["", f"tuning: {_tuned_text(found)} of at most {_size(MAX_BYTES)}"] if found else []


def _tuning_facts(root: Path) -> dict[str, Any]:
    found = list_tuned(root)
    kernels = {name: sum(one.backend == name and not one.is_aside for one in found) for name in _backends_of(found)}
    aside = [str(one.path) for one in found if one.is_aside]
    return {"kernels": kernels, "nbytes": sum(one.nbytes for one in found), "limit_bytes": MAX_BYTES, "aside": aside}


def _tuned_text(found: Sequence[Tuned]) -> str:
    """Return what tuning found, as text: "12 tuned kernels (tvm), 3.1 MB"."""
    aside = sum(one.is_aside for one in found)
    kernels = f"{count(len(found) - aside, 'tuned kernel')} ({', '.join(_backends_of(found))})"
    more = f", {aside} set aside as damaged" if aside else ""
    return f"{kernels}{more}, {_size(sum(one.nbytes for one in found))}"


def _backends_of(found: Sequence[Tuned]) -> list[str]:
    return sorted({one.backend for one in found})


def _import_lines(imports: KeptImports) -> list[str]:
    """Return for how many plugins the effects of importing them are known."""
    if imports.problem:
        return ["", f"{imports.problem}: `hub cache verify --repair` removes it"]
    harmless = sum(not one.fault for one in imports.found.values())
    return ["", f"{IMPORTS}: {count(harmless, 'plugin')} imported without harm"] if harmless else []


def _failure_lines(failures: tuple[Failure, ...], imports: KeptImports) -> list[str]:
    rows = [(one.subject.backend, one.stage, one.made[:10], one.reason.partition("\n")[0]) for one in failures]
    rows += [(one.plugin, "import", one.made[:10], one.fault) for one in imports.found.values() if one.fault]
    if not rows:
        return []
    title = "recorded failures; `hub cache forget [BACKEND]` allows new attempts:"
    return ["", title, *columns(("backend", "stage", "made", "reason"), rows)]


def _facts(item: Kept) -> dict[str, Any]:
    used = datetime.datetime.fromtimestamp(item.used, datetime.UTC).isoformat(timespec="seconds")
    return {**asdict(item), "path": str(item.path), "used": used}


def _size(nbytes: float) -> str:
    scale, unit = next((pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if nbytes >= pair[0]), (1.0, "bytes"))
    return f"{nbytes / scale:.3g} {unit}"


def _age(since_s: float | None) -> str:
    if since_s is None:
        return "-"
    age_s = max(0.0, time.time() - since_s)
    scale, unit = next((pair for pair in _AGES_S if age_s >= pair[0]), _AGES_S[-1])
    return f"{age_s / scale:.0f} {unit}"


def _echo(facts: Any) -> None:
    echo_json(json.dumps(facts, indent=2))
