"""The comparison written in C: each kind of change is noticed, references are released, wrong arguments raise TypeError."""

from __future__ import annotations

import collections
import gc
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, cast

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
    (function, lambda one: setattr(one, "__name__", "other")),
    (function, lambda one: setattr(one, "__qualname__", "other")),
    (function, lambda one: setattr(one, "__doc__", "other")),
    (function, lambda one: setattr(one, "__module__", "other")),
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
    about = types.FunctionType(default.__code__, {}, "one")
    about.__doc__, about.__module__ = cast("Any", Plain()), cast("Any", Plain())
    kept = [
        weakref.ref(one) for one in (names["a"], items[0], cell.cell_contents, about.__doc__, cast("Any", about.__module__))
    ]
    found = comparison(keyed=((names, ("a",), (names["a"],)),), lists=(items,), cells=(cell,), functions=(about,))
    names["a"] = items[0] = cell.cell_contents = about.__doc__ = about.__module__ = cast("Any", None)
    assert all(ref() is not None for ref in kept)
    assert not found.holds()
    del found
    assert all(ref() is None for ref in kept)


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


def form(*leaves: Any, n_args: int | None = None, names: tuple[str, ...] = (), **given: Any) -> native.Form:
    """Return the form of some inputs, in which lists stand for tensors."""
    n_args = len(leaves) - len(names) if n_args is None else n_args
    fit, modes, strange = given.get("fit", lambda *_: True), given.get("modes", comparison()), given.get("strange", ())
    return native.Form(n_args, names, leaves, list, strange, fit, modes)


class Tensor(list[int]):
    """A stand-in for a tensor, which may have attributes."""


def test_inputs_of_a_form_are_returned() -> None:
    """Positional inputs come as they are, keyword inputs follow; other numbers, names and orders do not fit."""
    args = (Tensor(), 2)
    assert form(Tensor(), 2).leaves(args, {}) is args
    assert form(Tensor(), 2).leaves((Tensor(),), {}) is None
    assert form(Tensor(), 2).leaves(args, {"a": 1}) is None
    found = form(Tensor(), 2, "x", names=("a", "b")).leaves(args[:1], {"a": 2, "b": "x"})
    assert found == ([], 2, "x")
    assert form(Tensor(), 2, "x", names=("a", "b")).leaves(args[:1], {"b": "x", "a": 2}) is None
    assert form(Tensor(), 2, names=("a",)).leaves(args[:1], {"".join(("a", "")): 2}) == ([], 2)
    assert form(Tensor(), 2, names=("a",)).leaves(args[:1], {"b": 2}) is None
    assert form().leaves((), {}) == ()


@pytest.mark.parametrize(
    ("first", "other"), [(1, 2), (1, True), (1, 1.0), (0.0, -0.0), (1.0, 2.0), ("a", "b"), (None, 0), (True, False)]
)
def test_inputs_that_are_no_tensors_are_compared(first: Any, other: Any) -> None:
    """Equal values of one type fit, and no others."""
    assert form(first, Tensor()).takes([first, Tensor()])
    assert not form(first, Tensor()).takes([other, Tensor()])
    assert not form(other, Tensor()).takes((first, Tensor()))


def test_equal_inputs_fit_wherever_they_are_stored() -> None:
    """Values are compared, not objects; NaN fits itself."""
    large, text, number, nan = 10**30, "".join(("te", "xt")), float("1.5"), float("nan")
    assert form(10**30, "text", 1.5, float("nan")).takes([large, text, number, nan])


def test_tensors_fit_by_their_form_identity_and_attributes() -> None:
    """The check of the tensors gets them in order; attributes, and tensors that must not come, do not fit."""
    seen: list[Any] = []
    one, other, weight = Tensor(), Tensor(), Tensor()
    found = form(
        one, 5, other, fit=lambda *tensors: bool(seen.append(tensors)) or len(seen) < 3, strange=(weight, Tensor())
    )
    assert found.takes([other, 5, one])
    assert seen[0][0] is other
    assert seen[0][1] is one
    assert not found.takes([other, 5, weight])
    assert not found.takes([weight, 5, one])
    assert len(seen) == 1
    other.attribute = 1  # pyright: ignore[reportAttributeAccessIssue]
    assert not found.takes([other, 5, one])
    del other.attribute  # pyright: ignore[reportAttributeAccessIssue]
    assert found.takes([other, 5, one])
    assert not found.takes([other, 5, one])  # the check says no
    assert not form(Tensor(), fit=lambda _: 1).takes([Tensor()])  # only True counts


def test_a_form_holds_in_its_modes_alone() -> None:
    """What the modes compare is compared last."""
    box = {"a": 1}
    found = form(Tensor(), modes=comparison(dicts=(box,)))
    assert found.takes([Tensor()])
    box["a"] = 2
    assert not found.takes([Tensor()])
    assert found.leaves((Tensor(),), {}) is None


def test_a_form_keeps_no_tensor() -> None:
    """Inputs of a finished call are freed."""
    given, value = Tensor(), "".join(("a", "b"))
    found = form(given, value)
    kept = sys.getrefcount(given), sys.getrefcount(value)
    assert found.takes([given, value])
    assert found.leaves((given, value), {}) is not None
    assert (sys.getrefcount(given), sys.getrefcount(value)) == kept
    assert kept[0] == 2


def test_errors_of_a_form_reach_the_caller() -> None:
    """Errors of the check and of the modes are raised, and wrong arguments are refused."""

    def fail(*_: Any) -> bool:
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        form(Tensor(), fit=fail).takes([Tensor()])
    with pytest.raises(KeyError, match="broken"):
        form(Tensor(), fit=fail).leaves((Tensor(),), {})
    with pytest.raises(KeyError, match="broken"):
        form(modes=comparison(calls=((fail, (), True),))).takes(())
    wrong: Any = object()
    for call in (
        lambda: form().takes(wrong),
        lambda: form().leaves(wrong, {}),
        lambda: form().leaves((), wrong),
        lambda: cast("Any", form().leaves)(()),
        lambda: form(modes=wrong),
        lambda: native.Form(0, wrong, (), list, (), fail, comparison()),
        lambda: native.Form(0, (), (), wrong, (), fail, comparison()),
        lambda: native.Stamps((), (), (0,) * 10, wrong),
    ):
        with pytest.raises(TypeError):
            call()


def test_a_form_in_a_cycle_is_freed() -> None:
    """The garbage collector finds what a form holds."""

    def fit(*_: Any) -> bool:
        return True

    fit.form = form(Tensor(), fit=fit)  # pyright: ignore[reportFunctionMemberAccess]
    gone = weakref.ref(fit)
    del fit
    gc.collect()
    assert gone() is None


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
