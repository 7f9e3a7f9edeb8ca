"""The comparison written in C: each kind of change is noticed, references are released, wrong arguments raise TypeError."""

from __future__ import annotations

import collections
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from hub.frontend.direct.watch import native, why_unwatched

pytestmark = pytest.mark.skipif(native is None, reason="native.c is not built for this Python")
MISSING = object()


def comparison(**parts: tuple[Any, ...]) -> Any:
    """Return a comparison of these parts alone."""
    names = ("dicts", "keyed", "objects", "lists", "cells", "functions", "classes", "calls")
    assert {*parts} <= {*names}
    return native.Comparison(*(parts.get(name, ()) for name in names), MISSING)


class Plain:
    """An object with attributes."""

    def __init__(self) -> None:
        self.first = 1


class Other(Plain):
    """Another class of the same layout."""


def default(x: int = 1, *, y: int = 2) -> int:
    """Return a sum of arguments that have defaults."""
    return x + y


def cell_of(value: Any) -> types.CellType:
    """Return a cell that holds a value."""
    return types.CellType(value)


def instance() -> tuple[dict[str, tuple[Any, ...]], Any]:
    """Return an object."""
    one = Plain()
    return {"objects": (one,)}, one


def plain_dict() -> tuple[dict[str, tuple[Any, ...]], Any]:
    """Return a dict."""
    one = {"a": 1, "b": 2}
    return {"dicts": (one,)}, one


def ordered_dict() -> tuple[dict[str, tuple[Any, ...]], Any]:
    """Return an OrderedDict, as an object and as a dict."""
    one = collections.OrderedDict(a=1, b=2)
    return {"dicts": (one,), "objects": (one,)}, one


def keyed() -> tuple[dict[str, tuple[Any, ...]], Any]:
    """Return a dict of which two keys are compared, one of them missing."""
    one = {"a": 1, "b": 2}
    return {"keyed": ((one, ("a", "absent"), (1, MISSING)),)}, one


def listed() -> tuple[dict[str, tuple[Any, ...]], Any]:
    """Return a list."""
    one = [1, [2], 3]
    return {"lists": (one,)}, one


def celled() -> tuple[dict[str, tuple[Any, ...]], Any]:
    """Return a cell."""
    one = cell_of(1)
    return {"cells": (one,)}, one


def function() -> tuple[dict[str, tuple[Any, ...]], Any]:
    """Return a function."""
    one = types.FunctionType(default.__code__, {}, "one", default.__defaults__)
    one.__kwdefaults__ = {"y": 2}
    return {"functions": (one,), "objects": (one,), "dicts": (one.__kwdefaults__,)}, one


def klass() -> tuple[dict[str, tuple[Any, ...]], Any]:
    """Return a class, with the dict of its attributes."""
    one: Any = type("One", (Plain,), {"attribute": 1})
    return {"classes": (one,), "dicts": (gc.get_referents(one.__dict__)[0],)}, one


CHANGES: list[tuple[Callable[[], tuple[dict[str, tuple[Any, ...]], Any]], Callable[[Any], object]]] = [
    (instance, lambda one: setattr(one, "first", 2)),
    (instance, lambda one: setattr(one, "second", 2)),
    (instance, lambda one: delattr(one, "first")),
    (instance, lambda one: setattr(one, "__class__", Other)),
    (instance, lambda one: setattr(one, "__dict__", {"first": 1})),
    (instance, lambda one: delattr(one, "__dict__")),
    (instance, lambda one: vars(one).update(first=3)),
    (plain_dict, lambda one: one.update(a=2)),
    (plain_dict, lambda one: one.update(c=2)),
    (plain_dict, lambda one: one.pop("a")),
    (plain_dict, lambda one: one.popitem()),
    (plain_dict, lambda one: one.clear()),
    (plain_dict, lambda one: one.setdefault("c")),
    (plain_dict, lambda one: one.__ior__({"c": 1})),
    (plain_dict, lambda one: one.__delitem__("a")),
    (plain_dict, lambda one: one.update(a=one.pop("a"))),
    (plain_dict, lambda one: one.__init__(c=1)),
    (ordered_dict, lambda one: one.update(a=2)),
    (ordered_dict, lambda one: one.pop("a")),
    (ordered_dict, lambda one: one.popitem()),
    (ordered_dict, lambda one: one.clear()),
    (ordered_dict, lambda one: one.setdefault("c", 1)),
    (ordered_dict, lambda one: setattr(one, "attribute", 1)),
    (keyed, lambda one: one.update(a=2)),
    (keyed, lambda one: one.pop("a")),
    (keyed, lambda one: one.update(absent=None)),
    (keyed, lambda one: one.clear()),
    (listed, lambda one: one.append(1)),
    (listed, lambda one: one.pop()),
    (listed, lambda one: one.__setitem__(0, 1.0)),
    (listed, lambda one: one.__setitem__(1, [2])),
    (listed, lambda one: one.reverse()),
    (listed, lambda one: one.clear()),
    (celled, lambda one: setattr(one, "cell_contents", 2)),
    (celled, lambda one: delattr(one, "cell_contents")),
    (function, lambda one: setattr(one, "__code__", cell_of.__code__)),
    (function, lambda one: setattr(one, "__defaults__", (3,))),
    (function, lambda one: setattr(one, "__defaults__", None)),
    (function, lambda one: setattr(one, "__kwdefaults__", {"y": 2})),
    (function, lambda one: one.__kwdefaults__.update(y=3)),
    (function, lambda one: setattr(one, "attribute", 1)),
    (function, lambda one: setattr(one, "__dict__", {})),
    (klass, lambda one: setattr(one, "attribute", 2)),
    (klass, lambda one: setattr(one, "other", 2)),
    (klass, lambda one: setattr(one, "__bases__", (Other,))),
    (klass, lambda one: setattr(one, "__name__", "Two")),
    (klass, lambda one: setattr(one, "__qualname__", "Two")),
]


@pytest.mark.parametrize(("make", "change"), CHANGES)
def test_changes_are_noticed(
    make: Callable[[], tuple[dict[str, tuple[Any, ...]], Any]], change: Callable[[Any], object]
) -> None:
    """A comparison holds until something changes."""
    parts, one = make()
    found = comparison(**parts)
    assert found.holds()
    assert found.holds()
    change(one)
    assert not found.holds()
    assert not found.holds()


def test_a_base_of_a_base_is_noticed() -> None:
    """Other bases of a class are other bases of what derives from it."""
    base: Any = type("Base", (Plain,), {})
    derived = type("Derived", (base,), {})
    found = comparison(classes=(derived,))
    base.__bases__ = (Other,)
    assert not found.holds()


def test_other_keys_are_not_noticed() -> None:
    """Where only some keys count, the others may change."""
    parts, one = keyed()
    found = comparison(**parts)
    for number in range(3):
        one[f"other{number}"] = number
        assert found.holds()
    one["a"] = 2
    assert not found.holds()
    one["a"] = 1
    assert found.holds()


def test_the_first_look_is_at_the_keys() -> None:
    """A key that changed between the walk and the comparison is noticed."""
    assert not comparison(keyed=(({"a": 2}, ("a",), (1,)),)).holds()


class Meddler:
    """A key whose comparison runs code."""

    def __init__(self, hash_of: str, act: Callable[[], object]) -> None:
        self.hash, self.act = hash(hash_of), act

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        self.act()
        return False


def test_keys_may_run_code() -> None:
    """A key's __eq__ that changes the dict, collects garbage or raises leaves everything in order."""
    names: dict[Any, Any] = {}
    found: list[Any] = []
    acts: list[Callable[[], object]] = [
        gc.collect,
        lambda: names.update(another=1),
        lambda: found and found[0].holds() if len(names) < 0 else None,
        names.clear,
    ]
    for act in acts:
        names.clear()
        names[Meddler("a", act)] = 1
        names["a"] = 2
        found[:] = [comparison(keyed=((names, ("a",), (2,)),))]
        assert found[0].holds() in (True, False)

    def fail() -> None:
        raise ZeroDivisionError

    failing: dict[Any, Any] = {Meddler("b", fail): 1}
    with pytest.raises(ZeroDivisionError):
        comparison(keyed=((failing, ("b",), (MISSING,)),)).holds()


def test_a_comparison_frees_itself_in_its_key() -> None:
    """A comparison whose last name goes while it compares lives until it is done."""
    names: dict[Any, Any] = {}
    held: list[Any] = []
    names[Meddler("a", lambda: (held.clear(), gc.collect()))] = 1
    held.append(comparison(keyed=((names, ("a", "b"), (MISSING, MISSING)),)))
    assert held[0].holds()
    assert not held


def test_references_are_released() -> None:
    """A comparison holds what it compares, and nothing once it is gone; one in a cycle is collected."""
    one, other = Plain(), Plain()
    gone = [weakref.ref(one), weakref.ref(other)]
    found = comparison(objects=(one,), lists=([other],), cells=(cell_of(other),), dicts=(vars(one),))
    del one, other
    assert all(ref() is not None for ref in gone)
    del found
    assert all(ref() is None for ref in gone)
    cycle = Plain()
    cycle.first = comparison(objects=(cycle,))  # pyright: ignore
    gone = [weakref.ref(cycle)]
    del cycle
    gc.collect()
    assert gone[0]() is None


def test_what_was_there_is_kept() -> None:
    """Values are compared by address, so that what was there is not freed: another object could be put at its place."""
    holder = Plain()
    holder.first = Plain()  # pyright: ignore
    names: dict[str, Any] = {"a": Plain()}
    items: list[Any] = [Plain()]
    cell = cell_of(Plain())
    kept = [weakref.ref(one) for one in (names["a"], items[0], cell.cell_contents)]
    found = comparison(keyed=((names, ("a",), (names["a"],)),), lists=(items,), cells=(cell,))
    names["a"] = items[0] = cell.cell_contents = None
    assert all(ref() is not None for ref in kept)
    assert not found.holds()


@pytest.mark.parametrize(
    "args",
    [
        (),
        ((),) * 8,
        ((),) * 10,
        ([], (), (), (), (), (), (), (), MISSING),
        ((1,), (), (), (), (), (), (), (), MISSING),
        ((), (1,), (), (), (), (), (), (), MISSING),
        ((), ((1, (), ()),), (), (), (), (), (), (), MISSING),
        ((), (({}, (), []),), (), (), (), (), (), (), MISSING),
        ((), (), (), (1,), (), (), (), (), MISSING),
        ((), (), (), ((),), (), (), (), (), MISSING),
        ((), (), (), (), (1,), (), (), (), MISSING),
        ((), (), (), (), (), (len,), (), (), MISSING),
        ((), (), (), (), (), (), (int,), MISSING),
        ((), (), (), (), (), (), (1,), MISSING),
    ],
)
def test_wrong_arguments_raise(args: tuple[Any, ...]) -> None:
    """What cannot be compared is refused with TypeError."""
    with pytest.raises(TypeError):
        native.Comparison(*args)


def test_other_wrong_uses_raise() -> None:
    """Keywords, unlike numbers of keys and values, and subclasses are refused."""
    with pytest.raises(TypeError):
        native.Comparison((), (), (), (), (), (), (), (), MISSING, more=1)
    with pytest.raises(ValueError, match="as many values"):
        comparison(keyed=(({}, ("a",), ()),))
    with pytest.raises(TypeError):
        type("Sub", (native.Comparison,), {})
    with pytest.raises(TypeError):
        native.have_no_attributes([])


def test_attributes_of_tensors_are_seen() -> None:
    """Anything in a tuple with an attribute is distinguished from what has none."""
    bare: Any = type("Bare", (), {})()
    assert native.have_no_attributes((bare, 1, None, "a"))
    bare.attribute = 1
    assert not native.have_no_attributes((1, bare))
    del bare.attribute
    assert native.have_no_attributes((bare,))


def test_this_python_can_be_watched() -> None:
    """Every way of changing an object is tried before anything is trusted."""
    assert why_unwatched() == ""


def test_answers_are_compared() -> None:
    """A call that gives another object, or raises, is noticed."""
    box = ["first"]
    found = comparison(calls=((box.__getitem__, (0,), box[0]), (len, (box,), 1)))
    assert found.holds()
    box.append("second")
    assert not found.holds()
    box.pop()
    assert found.holds()
    box[0] = "".join(("fi", "rst"))  # equal, and another one
    assert not found.holds()
    box.clear()
    with pytest.raises(IndexError):
        found.holds()


def test_a_call_may_end_its_comparison() -> None:
    """The garbage collector may run in a call, and clear what is compared."""
    holder: list[Any] = []

    def ends() -> None:
        holder.clear()
        gc.collect()

    holder.append(comparison(calls=((ends, (), None), (ends, (), None))))
    assert holder[0].holds()
    assert not holder
