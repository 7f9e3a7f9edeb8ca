"""First actions in a fork of this process: no code of the hub may wait for threads that only the parent has."""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_Lock = TypeVar("_Lock")
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_actions: list[Callable[[], None]] = []
_has_runtimes = False
_has_lost_threads = False
LOST_THREADS = "this process is a fork of one that had loaded compilers, whose threads do not survive a fork"
"""Reason why the hub runs everything in eager in such a fork."""


def freed_in_forks(lock: _Lock) -> _Lock:
    """Return a lock that is free in a fork of this process, even if another thread of the parent held it."""
    _locks.add(lock)
    return lock


def in_forks(action: Callable[[], None]) -> Callable[[], None]:
    """Register an action to run at the start of every fork of this process; return it."""
    _actions.append(action)
    return action


def note_runtimes() -> None:
    """Record that a backend's library may have threads in this process from now on."""
    global _has_runtimes
    _has_runtimes = True


def has_lost_threads() -> bool:
    """Return whether this process is a fork of one in which backends' libraries may have had threads."""
    return _has_lost_threads


def never_freed(value: object) -> None:
    """Keep a value until the process ends, so that its finalizer does not join threads that only the parent has."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _start() -> None:
    global _has_lost_threads
    _has_lost_threads = _has_runtimes
    for lock in list(_locks):
        is_own = getattr(lock, "_is_owned", bool)  # a thread that forks while it holds a lock still holds it
        if not is_own():
            lock._at_fork_reinit()  # what Python's own modules do with theirs
    for action in _actions:
        with contextlib.suppress(Exception):  # a failing action must not keep the others from running
            action()


os.register_at_fork(after_in_child=_start)
