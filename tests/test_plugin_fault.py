"""Which exceptions are a plugin's own, and which come from outside."""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import pytest

from hub.discovery.plugin_fault import is_plugins


def caught(action: Callable[[], Any]) -> BaseException:
    """Return what an action raises."""
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - any exception is the subject here
        return error
    raise AssertionError("nothing was raised")


def raising(error: BaseException) -> Callable[[], NoReturn]:
    """Return an action with an explicit `raise`."""

    def action() -> NoReturn:
        raise error

    return action


class Odd(BaseException):
    """An exception that `except Exception` does not catch."""


@pytest.mark.parametrize(
    "error", [RuntimeError(), MemoryError(), SystemExit(3), GeneratorExit(), KeyboardInterrupt(), Odd()], ids=repr
)
def test_what_code_raises_is_the_plugins(error: BaseException) -> None:
    """An explicit `raise` in a plugin is its own fault, regardless of the type."""
    assert is_plugins(caught(raising(error)))


def test_exits_that_c_code_makes_are_the_plugins() -> None:
    """`exit()` or a library under a plugin that exits ends the plugin, not the user's process."""
    assert is_plugins(caught(lambda: next(iter(()))))
    assert is_plugins(SystemExit())


def _interrupted_loop() -> None:
    _thread.interrupt_main()
    for _ in range(1_000_000):
        pass


def test_a_real_interrupt_is_the_users() -> None:
    """Ctrl-C arrives at any instruction of Python, and must get through."""
    error = caught(_interrupted_loop)
    assert isinstance(error, KeyboardInterrupt)
    assert not is_plugins(error)


def test_a_real_interrupt_that_a_plugin_raises_again_is_the_users() -> None:
    """Cleaning up and raising again, or raising another one instead, does not make it the plugin's."""

    def again() -> None:
        try:
            _interrupted_loop()
        except KeyboardInterrupt:
            raise

    def another() -> None:
        try:
            _interrupted_loop()
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None

    assert not is_plugins(caught(again))
    assert not is_plugins(caught(another))


@pytest.fixture
def handle() -> Iterator[Callable[[int, Callable[..., Any]], None]]:
    """Return `handle(signal, handler)`; the old handlers are restored afterwards."""
    before: dict[int, Any] = {}

    def install(number: int, handler: Callable[..., Any]) -> None:
        before[number] = signal.signal(number, handler)

    yield install
    for number, handler in before.items():
        signal.signal(number, handler)


class _Application:
    def stop(self, number: int, frame: FrameType | None) -> NoReturn:
        raise (KeyboardInterrupt if number == signal.SIGINT else TimeoutError)("asked to stop")


def test_what_a_signal_handler_raises_is_the_users(handle: Any) -> None:
    """A user's own handler also uses `raise`; it must get through nevertheless, with any exception."""
    handle(signal.SIGINT, _Application().stop)
    assert not is_plugins(caught(_interrupted_loop))
    handle(signal.SIGUSR1, _Application().stop)

    def alarm() -> None:
        signal.raise_signal(signal.SIGUSR1)

    error = caught(alarm)
    assert isinstance(error, TimeoutError)
    assert not is_plugins(error)


def test_without_a_traceback_only_interrupts_are_the_users() -> None:
    """An exception that was never raised says nothing about where it came from."""
    assert is_plugins(RuntimeError())
    assert not is_plugins(KeyboardInterrupt())
