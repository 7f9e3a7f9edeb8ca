"""Plan files: the hub writes them, people edit them, option `plan` replays them; a file that does not fit says where."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import hub
from hub.cli.app import app
from hub.config.options import resolve
from hub.discovery.registry import registry
from hub.errors import CompileError, OptionError, PlanError
from hub.plan import FORMAT, DecidedBy, Event, Plan, PlannedCluster, Stage
from hub.plan_file import plans_json, read_plans, write_plans
from hub.planning import measure

Install = Callable[[str, str], None]
Edit = Callable[[dict[str, Any]], Any]

ORT = {"backends": ["onnxruntime"], "threads": 1}
X = torch.linspace(-1.0, 1.0, 8).reshape(2, 4)

SOURCE = """
import torch
def tiny(batch=2):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4), torch.nn.Softmax(-1))
    return model, (torch.ones(batch, 4),)
"""


def tiny(last: nn.Module | None = None) -> nn.Module:
    """Return a plan of the nodes linear, gelu, linear_1, softmax."""
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), last or nn.Softmax(-1)).eval()


def run(model: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> tuple[Any, tuple[Plan, ...]]:
    torch._dynamo.reset()
    compiled = cast("Any", torch).compile(model, backend="hub", options=options or None)
    with torch.no_grad():
        found = compiled(*inputs)
    return found, hub.plans(compiled)


def settled(plan: Plan) -> Plan:
    """Return the plan without what differs between any two runs."""
    return plan.model_copy(update={"graph": "", "plan_s": 0.0, "verify_s": 0.0, "events": told(plan)})


def told(plan: Plan) -> tuple[Event, ...]:
    """Return a plan's events, except those about checks that verification postponed: they depend on the machine."""
    return tuple(event for event in plan.events if event.stage is not Stage.LATER)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a plan file of `tiny()`, all of it on ONNX Runtime."""
    path = tmp_path / "plan.json"
    write_plans(path, hub.explain(tiny(), X, options=ORT))
    return path


def edited(path: Path, edit: Edit) -> Path:
    """Change the first plan of a file."""
    data = json.loads(path.read_text())
    edit(data["plans"][0])
    path.write_text(json.dumps(data))
    return path


def clusters(*parts: tuple[str, Sequence[str]]) -> Edit:
    """Write clusters as people do: only backends and nodes."""
    return lambda plan: plan.update(clusters=[{"backend": backend, "nodes": list(nodes)} for backend, nodes in parts])


def refusal(path: Path, model: Callable[..., Any] | None = None, x: torch.Tensor = X, **options: Any) -> PlanError:
    with pytest.raises(PlanError) as caught:
        run(model or tiny(), x, plan=path, **options)
    return caught.value


# --- The file ---------------------------------------------------------------------------------------------------------


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    """One file holds the plan of each captured graph."""
    plans = (*hub.explain(tiny(), X, options=ORT), *hub.explain(tiny(), X, options={"backends": ["eager"]}))
    write_plans(tmp_path / "plan.json", plans)
    assert read_plans(tmp_path / "plan.json") == plans
    assert json.loads(plans_json(plans))["format"] == FORMAT


def test_one_plan_by_itself_is_a_plan_file(tmp_path: Path) -> None:
    """`Plan.to_json` writes one too."""
    (plan,) = hub.explain(tiny(), X, options=ORT)
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert read_plans(tmp_path / "plan.json") == (plan,)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing replaces the file in one step, and leaves nothing next to it."""
    path = tmp_path / "plan.json"
    write_plans(path, (Plan(clusters=()),))
    before = path.read_text()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(PlanError, match="cannot be written: No space left on device"):
            write_plans(path, (Plan(clusters=(), threads=2),))
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_edited_plan_loses_the_evidence_of_the_plan_before(file: Path) -> None:
    """The edited plan was not measured: the times would be another plan's. Deleting evidence is no edit."""
    (plan,) = read_plans(file)
    assert plan.predicted_s is not None
    assert plan.clusters[0].bids
    (trimmed,) = read_plans(edited(file, lambda plan: plan.update(events=[], decided_by="")))
    assert trimmed.predicted_s == plan.predicted_s
    (changed,) = read_plans(edited(file, lambda plan: plan.update(threads=2)))
    assert changed.threads == 2
    assert (changed.predicted_s, changed.clusters[0].predicted_s, changed.clusters[0].bids) == (None, None, ())
    assert changed.decided_by == "edited by hand"
    _, (ran,) = run(tiny(), X, plan=file)
    assert [event.message for event in told(ran)] == ["edited by hand: the previous times and reasons are left out"]


def test_no_plan_is_no_file(tmp_path: Path) -> None:
    """A program without a graph has nothing to write."""
    with pytest.raises(PlanError, match="no graph was captured"):
        write_plans(tmp_path / "plan.json", ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a plan file: not JSON"),
        (" \n", "is not a plan file: it is empty"),
        ('{"nbformat": 4, "cells": []}', "is not a plan file: it has neither plans nor clusters, but nbformat, cells"),
        ('{"format": 3, "model": "mlp"}', "is not a plan file: it has neither plans nor clusters, but format, model"),
        ("\x80", "is not a plan file: not JSON"),
        ("[]", 'is not a plan file: a JSON list, not {"format": 1, "plans": [...]}'),
        ("3", "is not a plan file: a JSON int"),
        ('{"format": 2, "plans": []}', "format: this hub reads format 1, the file says 2"),
        ('{"plans": [{"format": 7, "clusters": []}]}', "plans.0.format: this hub reads format 1, the file says 7"),
        ("{}", "plans: missing"),
        ('{"plans": []}', "plans: must be a list of at least one plan"),
        ('{"plan": []}', "plan: no such field; did you mean 'plans'?"),
        ('{"plans": [{}], "digests": 3}', "digests: must be a list"),
        ('{"plans": [3]}', "plans.0: input should be a valid dictionary"),
        ('{"plans": [{}]}', "plans.0.clusters: missing"),
        ('{"plans": [{"clusters": [{"nodes": []}]}]}', "plans.0.clusters.0.backend: missing"),
        ('{"clusters": [{"backend": "", "nodes": []}]}', "clusters.0.backend: string should have at least 1 character"),
        ('{"clusters": [{"backend": "a", "node": []}]}', "clusters.0.nodes: missing"),
        ('{"clusters": [], "thread": 2}', "thread: no such field; did you mean 'threads'?"),
        ('{"clusters": [], "threads": -2}', "threads: input should be greater than or equal to 0, got -2"),
        ('{"clusters": [], "threads": 100000}', "threads: input should be less than or equal to 1024, got 100000"),
    ],
)
def test_a_wrong_file_names_itself_the_field_and_a_remedy(tmp_path: Path, text: str, message: str) -> None:
    """The message is enough to fix the file."""
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PlanError) as caught:
        read_plans(path)
    assert f"{path}" in str(caught.value)
    assert message in str(caught.value)
    assert "hint: " in str(caught.value)


def test_a_file_that_is_not_there_is_named_and_so_is_a_folder(tmp_path: Path) -> None:
    """The system's reason is given."""
    with pytest.raises(OptionError, match=r"plan\.json cannot be read: No such file or directory"):
        read_plans(tmp_path / "plan.json")
    with pytest.raises(OptionError, match="cannot be read: Is a directory"):
        read_plans(tmp_path)
    with pytest.raises(OptionError, match="is not a file"):
        write_plans(tmp_path, (Plan(clusters=()),))
    with pytest.raises(OptionError, match="there is no folder"):
        write_plans(tmp_path / "nowhere" / "plan.json", (Plan(clusters=()),))


# --- Replaying --------------------------------------------------------------------------------------------------------


def test_a_replay_gives_eagers_numbers_and_measures_nothing(file: Path) -> None:
    """The plan runs as written, regardless of what would win."""
    model = tiny()
    found, (plan,) = run(model, X, plan=file)
    torch.testing.assert_close(found, model(X))
    assert (plan.decided_by, plan.backends, plan.contenders, plan.threads) == ("plan file", ("onnxruntime",), (), 1)


def test_the_same_file_gives_the_same_plan(file: Path, tmp_path: Path) -> None:
    """So does the file that a replay writes."""
    _, (plan,) = run(tiny(), X, plan=file)
    _, (again,) = run(tiny(), X, plan=file)
    assert settled(plan) == settled(again)
    write_plans(tmp_path / "again.json", (plan,))
    _, (third,) = run(tiny(), X, plan=tmp_path / "again.json")
    assert settled(third) == settled(plan)


def test_explaining_replays_without_compiling(file: Path) -> None:
    """`hub.explain` returns what a run would do."""
    (plan,) = hub.explain(tiny(), X, options={"plan": file})
    _, (ran,) = run(tiny(), X, plan=file)
    assert settled(plan) == settled(ran)


def test_a_plan_by_hand_needs_backends_and_nodes_only(tmp_path: Path) -> None:
    """Everything else has defaults, and is filled in."""
    path = tmp_path / "plan.json"
    parts = [
        {"backend": "onnxruntime", "nodes": ["linear", "gelu"]},
        {"backend": "eager", "nodes": ["linear_1"]},
        {"backend": "onnxruntime", "nodes": ["softmax"]},
    ]
    path.write_text(json.dumps({"clusters": parts}))
    model = tiny()
    found, (plan,) = run(model, X, plan=path)
    torch.testing.assert_close(found, model(X))
    assert [(cluster.name, cluster.nodes) for cluster in plan.clusters] == [
        ("c0", ("linear", "gelu")),
        ("e0", ("linear_1",)),
        ("c1", ("softmax",)),
    ]
    assert plan.clusters[0].operators == ("aten.linear.default", "aten.gelu.default")
    assert plan.clusters[0].reason == "as in the plan file"
    assert (plan.threads, plan.inputs) == (torch.get_num_threads(), ("float32[2, 4]",))
    assert plan.graph_digest
    assert not told(plan)


def test_threads_spin_and_effort_come_from_the_plan(file: Path) -> None:
    """They are part of a plan, and decide what is compiled."""
    edited(file, lambda plan: plan.update(threads=2, busy_wait=False, effort="full"))
    _, (plan,) = run(tiny(), X, plan=file)
    assert (plan.threads, plan.busy_wait, plan.effort) == (2, False, "full")


def test_an_option_beats_the_plans_setting_and_is_noted(file: Path) -> None:
    """A user who gives both `plan` and `threads` means both."""
    _, (plan,) = run(tiny(), X, plan=file, threads=2)
    assert plan.threads == 2
    assert [event.message for event in told(plan)] == ["threads 2 (from options=) and not 1 as in the plan"]


def test_nodes_are_put_in_order_and_clusters_too(file: Path) -> None:
    """People need not know the order of a graph."""
    edited(file, clusters(("onnxruntime", ["softmax", "linear_1"]), ("eager", ["gelu", "linear"])))
    model = tiny()
    found, (plan,) = run(model, X, plan=file)
    torch.testing.assert_close(found, model(X))
    assert [cluster.nodes for cluster in plan.clusters] == [("linear", "gelu"), ("linear_1", "softmax")]
    assert "cannot run in the plan's order" in plan.events[-1].message
    assert plan.events[-1].kind == "note"


def test_eager_is_split_where_the_others_could_not_run_otherwise(file: Path) -> None:
    """Pieces of eager cost nothing, so a node can be assigned to it without regard to order."""
    edited(file, clusters(("eager", ["linear", "linear_1"]), ("onnxruntime", ["gelu"]), ("onnxruntime", ["softmax"])))
    model = tiny()
    found, (plan,) = run(model, X, plan=file)
    torch.testing.assert_close(found, model(X))
    assert [(cluster.name, cluster.nodes) for cluster in plan.clusters] == [
        ("e0", ("linear",)),
        ("c0", ("gelu",)),
        ("e1", ("linear_1",)),
        ("c1", ("softmax",)),
    ]


def test_elements_of_a_tuple_follow_it(file: Path) -> None:
    """A tuple cannot cross a cluster's edge."""

    def halves(x: torch.Tensor) -> torch.Tensor:
        first, second = x.relu().split(1)
        return first + second

    names = [name for cluster in hub.explain(halves, X)[0].clusters for name in cluster.nodes]
    elements = [name for name in names if name.startswith("getitem")]
    assert len(elements) == 2
    rest = [name for name in names if name not in elements]
    edited(file, clusters(("onnxruntime", elements), ("eager", rest)))
    found, (plan,) = run(halves, X, plan=file)
    torch.testing.assert_close(found, halves(X))
    assert plan.backends == ("eager",)


def test_each_graph_takes_its_own_plan_from_one_file(tmp_path: Path) -> None:
    """A model with a graph break has two."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x.relu() * 2
        torch._dynamo.graph_break()
        return x.tanh() + 1

    path = tmp_path / "plan.json"
    first, second = hub.explain(broken, X, options=ORT)
    write_plans(path, (second, first))
    found, plans = run(broken, X, plan=path)
    torch.testing.assert_close(found, broken(X))
    assert [plan.clusters[0].nodes for plan in plans] == [first.clusters[0].nodes, second.clusters[0].nodes]
    assert {plan.backends for plan in plans} == {("onnxruntime",)}


def test_training_is_replayed_too(tmp_path: Path) -> None:
    """Forward and backward have a plan each."""
    model = tiny()
    torch._dynamo.reset()
    compiled = cast("Any", torch).compile(model, backend="hub", options={"backends": ["eager"]})
    compiled(X).sum().backward()
    expected = cast("torch.Tensor", next(model.parameters()).grad).clone()
    path = tmp_path / "plan.json"
    write_plans(path, hub.plans(compiled))
    model.zero_grad()
    torch._dynamo.reset()
    compiled = cast("Any", torch).compile(model, backend="hub", options={"plan": path})
    compiled(X).sum().backward()
    torch.testing.assert_close(next(model.parameters()).grad, expected)
    assert {(plan.mode, plan.decided_by) for plan in hub.plans(compiled)} == {
        ("forward", "plan file"),
        ("backward", "plan file"),
    }


def test_new_weights_keep_the_plan_even_when_the_file_is_gone(file: Path) -> None:
    """The file is read once for each graph."""
    model = tiny()
    compiled = cast("Any", torch).compile(model, backend="hub", options={"plan": file})
    with torch.no_grad():
        compiled(X)
        file.unlink()
        next(model.parameters()).mul_(2.0)
        torch.testing.assert_close(compiled(X), model(X))
    assert hub.plans(compiled)[0].decided_by == "plan file"


def test_events_of_the_run_that_made_a_plan_are_over(file: Path) -> None:
    """Old fallbacks would warn again; what backends refused still explains the plan."""
    old = [{"kind": kind, "stage": "compile", "message": kind} for kind in ("fallback", "failed", "note", "refused")]
    edited(file, lambda plan: plan.update(events=old))
    _, (plan,) = run(tiny(), X, plan=file)
    assert [event.kind for event in told(plan)] == ["refused"]


def test_strict_accepts_what_a_plan_puts_in_eager(file: Path) -> None:
    """The plan's author requested it."""
    edited(file, clusters(("onnxruntime", ["linear", "gelu"]), ("eager", ["linear_1", "softmax"])))
    _, (plan,) = run(tiny(), X, plan=file, strict=True)
    assert plan.backends == ("onnxruntime", "eager")


# --- Files that do not fit --------------------------------------------------------------------------------------------


def test_other_sizes_fit_with_a_note(file: Path) -> None:
    """A plan is about operators; its times are about sizes."""
    model = tiny()
    x = torch.ones(5, 4)
    found, (plan,) = run(model, x, plan=file)
    torch.testing.assert_close(found, model(x))
    assert plan.inputs == ("float32[5, 4]",)
    assert [event.message for event in told(plan)] == [
        "the plan's times are for other sizes: float32[2, 4]; here: float32[5, 4]"
    ]


def test_other_attributes_fit_with_a_note(file: Path) -> None:
    """Nodes and inputs are equal, and the graph is another one."""
    model = tiny(nn.Softmax(0))
    found, (plan,) = run(model, X, plan=file)
    torch.testing.assert_close(found, model(X))
    assert "the plan's times are for another graph" in plan.events[0].message


def test_a_graph_with_dynamic_shapes_takes_the_plan_of_the_static_one(file: Path) -> None:
    """PyTorch captures again when sizes change; arithmetic on sizes, which the plan lacks, can only run in eager."""

    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = tiny()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).reshape(x.shape[0] * 2, 2)

    model = Folded()
    write_plans(file, hub.explain(model, X, options=ORT))
    torch._dynamo.reset()
    compiled = cast("Any", torch).compile(model, backend="hub", options={"plan": file})
    with torch.no_grad():
        for rows in (2, 3, 5):
            torch.testing.assert_close(compiled(torch.ones(rows, 4)), model(torch.ones(rows, 4)))
    static, dynamic = hub.plans(compiled)
    assert static.backends == ("onnxruntime",)
    assert dynamic.decided_by == "plan file"
    assert (dynamic.clusters[0].backend, dynamic.clusters[0].reason) == (
        "eager",
        "arithmetic on sizes, which the plan file lacks",
    )
    assert set(static.clusters[0].nodes) == set(dynamic.clusters[1].nodes)


def test_another_operator_is_named_with_both(file: Path) -> None:
    """The first node that differs is in the message and on the error."""
    edited(file, lambda plan: plan["clusters"][0]["operators"].__setitem__(2, "aten.addmm.default"))
    error = refusal(file, tiny(), torch.ones(3, 4))
    assert error.node == "linear_1"
    assert "plan.json does not fit graph" in error.message
    assert error.message.endswith("node 'linear_1' is aten.addmm.default in the plan and aten.linear.default here")


def test_an_operator_list_that_was_not_moved_with_its_nodes_does_no_harm(file: Path) -> None:
    """For the graph that a plan was made for, its operators say nothing new."""
    edited(file, lambda plan: plan["clusters"][0]["operators"].reverse())
    _, (plan,) = run(tiny(), X, plan=file)
    assert plan.clusters[0].operators[0] == "aten.linear.default"


def test_a_node_that_the_plan_lacks_is_named(file: Path) -> None:
    """A changed model shows where it changed."""
    error = refusal(file, tiny(nn.Sigmoid()))
    assert error.message.endswith("node 'sigmoid' is in the graph and not in the plan")
    assert "the plan's 'softmax' is not in the graph" in str(error.hint)


def test_a_node_that_the_graph_lacks_is_named(file: Path) -> None:
    """The model without one layer."""
    error = refusal(file, tiny(nn.Identity()))
    assert error.message.endswith("node 'softmax' is not in the graph")


def test_another_dtype_is_named_with_its_input(file: Path) -> None:
    """Backends were chosen for a dtype."""
    error = refusal(file, tiny().double(), X.double())
    assert error.message.endswith("input 0 changed its dtype: float32[2, 4] in the plan and float64[2, 4] here")


def test_the_error_is_about_the_plan_that_fits_longest(file: Path) -> None:
    """Of several plans, the nearest is the most informative."""
    data = json.loads(file.read_text())
    far = {"clusters": [{"backend": "eager", "nodes": ["conv2d"]}]}
    file.write_text(json.dumps({"plans": [far, data["plans"][0], far]}))
    assert refusal(file, tiny(nn.Sigmoid())).node == "sigmoid"


def test_the_plan_made_for_a_graph_is_meant_even_if_another_fits(file: Path) -> None:
    """A slip in an edit is no reason to take another plan silently."""
    data = json.loads(file.read_text())
    other = json.loads(file.read_text())["plans"][0] | {"graph_digest": ""}
    data["plans"][0]["clusters"][0]["nodes"].remove("gelu")
    data["plans"][0]["clusters"][0]["operators"] = []
    data["plans"].append(other)
    file.write_text(json.dumps(data))
    assert refusal(file).node == "gelu"


def test_a_node_in_two_clusters_is_named(file: Path) -> None:
    """Every node runs once."""
    edited(file, clusters(("onnxruntime", ["linear", "gelu"]), ("eager", ["gelu", "linear_1", "softmax"])))
    error = refusal(file)
    assert error.node == "gelu"
    assert "node 'gelu' is in the plan twice: in the cluster on onnxruntime with linear, gelu and in" in error.message


def test_clusters_that_need_each_other_are_named_with_the_nodes(file: Path) -> None:
    """A cluster around another one can run neither before it nor after it."""
    edited(file, clusters(("onnxruntime", ["linear", "linear_1"]), ("inductor", ["gelu", "softmax"])))
    error = refusal(file)
    assert "need each other" in error.message
    assert "'gelu' of the cluster on inductor with gelu, softmax needs 'linear' of" in error.message
    assert "'linear_1' of the cluster on onnxruntime with linear, linear_1 needs 'gelu' of" in error.message


def test_a_pinned_node_has_to_stay_in_eager(file: Path) -> None:
    """The reason is the one in the plan of a model with such a node."""

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x.relu() + torch.rand(2, 4)

    names = [name for cluster in hub.explain(noisy, X)[0].clusters for name in cluster.nodes]
    edited(file, clusters(("onnxruntime", names)))
    error = refusal(file, noisy)
    assert error.node == "rand"
    assert "node 'rand' (aten.rand.default) has to run in eager: draws random numbers" in error.message


def test_a_node_that_its_backend_refuses_is_named_with_the_backends_reason(file: Path) -> None:
    """The first one in the order of the graph."""

    def wide(x: torch.Tensor) -> torch.Tensor:
        return x.relu().to(torch.complex64).abs()

    names = [name for cluster in hub.explain(wide, X)[0].clusters for name in cluster.nodes]
    edited(file, clusters(("onnxruntime", names)))
    error = refusal(file, wide)
    assert error.backend == "onnxruntime"
    assert error.node == names[1]
    assert "onnxruntime does not take node" in error.message
    assert "complex64" in error.message


def test_an_unknown_backend_is_named_with_the_nearest(file: Path) -> None:
    """It is a typing mistake."""
    edited(file, clusters(("onxruntime", ["linear", "gelu", "linear_1", "softmax"])))
    error = refusal(file)
    assert error.backend == "onxruntime"
    assert "no backend is named 'onxruntime'; did you mean 'onnxruntime'?" in error.message


def test_a_backend_that_is_not_installed_is_named_with_what_installs_it(file: Path, install_plugin: Install) -> None:
    """A plan travels to a machine that lacks a library."""
    install_plugin(
        "absent",
        """
        from hub import BackendInfo, hookimpl
        @hookimpl
        def hub_backends():
            return [BackendInfo(name="absent", factory="no:where", summary="", requires=("no-such-library-xyz",),
                                install="pip install no-such-library-xyz")]
        """,
    )
    edited(file, clusters(("absent", ["linear", "gelu", "linear_1", "softmax"])))
    error = refusal(file)
    assert "needs 'absent', which cannot be used here: no-such-library-xyz is not installed" in error.message
    assert error.hint == "pip install no-such-library-xyz"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ["onnxruntime"]}, "needs 'onnxruntime', which option 'exclude' (from options=) does not allow"),
        ({"backends": ["inductor"]}, "needs 'onnxruntime', which option 'backends' (from options=) does not allow"),
        (
            {"force": {"aten.gelu": "eager"}},
            "contradict each other: aten.gelu.default is on 'onnxruntime' in the plan and forced to 'eager'",
        ),
    ],
)
def test_options_that_contradict_the_plan_are_named(file: Path, options: Mapping[str, Any], message: str) -> None:
    """Two contradictory settings are an error, not a guess."""
    assert message in refusal(file, **options).message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tune": "full"}, "tune full (from options=) and not fast as in the plan"),
        ({"accuracy": 0.01}, "accuracy 0.01 (from options=) and not exact as in the plan"),
        ({"tune": "fast"}, ""),
    ],
)
def test_what_overrides_the_plan_is_noted(file: Path, options: Mapping[str, Any], message: str) -> None:
    """The effort that the user asks for, and the tolerance where the plan allows none."""
    _, (plan,) = run(tiny(), X, plan=file, **options)
    assert [event.message for event in told(plan)] == ([message] if message else [])


def test_a_plan_that_was_written_while_planning_went_on_is_refused(file: Path) -> None:
    """It would pin all of the model to eager; once somebody has put nodes on a backend, it is a plan."""
    nodes = ["linear", "gelu", "linear_1", "softmax"]
    path = edited(file, lambda plan: (clusters(("eager", nodes))(plan), plan.update(decided_by=DecidedBy.PENDING)))
    error = refusal(path)
    assert "was written before planning was over" in error.message
    assert "hub.wait" in str(error)
    single = path.with_name("single.json")
    single.write_text(json.dumps(json.loads(path.read_text())["plans"][0]))
    with pytest.raises(PlanError, match="before planning was over"):
        read_plans(single)
    edited(path, clusters(("onnxruntime", nodes)))
    assert run(tiny(), X, plan=path)[1][0].backends == ("onnxruntime",)


def test_a_missing_file_reaches_the_caller(tmp_path: Path) -> None:
    """It does so even without `strict`: the user requested that plan."""
    with pytest.raises(OptionError, match="cannot be read"):
        run(tiny(), X, plan=tmp_path / "plan.json")
    with pytest.raises(OptionError, match="cannot be read"):
        hub.explain(tiny(), X, options={"plan": tmp_path / "plan.json"})


# --- Failures while replaying -----------------------------------------------------------------------------------------


def _failing_on(monkeypatch: pytest.MonkeyPatch, node: str) -> None:
    """Make ONNX Runtime's compiler raise on clusters with this node, naming it; in this process only."""
    backend = registry().backend("onnxruntime")
    real = backend.compile

    def compile_cluster(cluster: Any, *rest: Any, **more: Any) -> Any:
        if node in cluster.node_names:
            raise CompileError("it exploded", backend="onnxruntime", cluster=cluster.name, node=node)
        return real(cluster, *rest, **more)

    monkeypatch.setattr(backend, "compile", compile_cluster)


def test_a_cluster_that_fails_to_compile_gives_up_the_named_node_only(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the plan stays as the user wrote it, and the event says what happened."""
    _failing_on(monkeypatch, "linear_1")
    model = tiny()
    with pytest.warns(hub.HubWarning, match="it exploded"):
        found, (plan,) = run(model, X, plan=file, isolate=False)
    torch.testing.assert_close(found, model(X))
    assert [(cluster.backend, cluster.nodes) for cluster in plan.clusters] == [
        ("onnxruntime", ("linear", "gelu")),
        ("eager", ("linear_1",)),
        ("onnxruntime", ("softmax",)),
    ]
    assert plan.decided_by == "plan file"
    assert [(event.kind, event.stage) for event in told(plan)] == [("fallback", "compile")]


def test_under_strict_a_failure_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one without a plan file, too."""
    _failing_on(monkeypatch, "linear_1")
    with pytest.raises(CompileError, match="it exploded"):
        run(tiny(), X, plan=file, strict=True, isolate=False)


# --- The option and the commands --------------------------------------------------------------------------------------


def test_a_plan_can_be_named_in_the_call_a_variable_or_a_file(tmp_path: Path) -> None:
    """Relative paths start at the folder of the file that contains them."""
    assert resolve({"plan": "p.json"}, {}, tmp_path).plan == tmp_path / "p.json"
    assert resolve(None, {"HUB_PLAN": "p.json"}, tmp_path).plan == tmp_path / "p.json"
    (tmp_path / "hub.toml").write_text('plan = "p.json"\n')
    (tmp_path / "deep").mkdir()
    assert resolve(None, {}, tmp_path / "deep").plan == tmp_path / "p.json"
    assert resolve({"plan": None}, {}, tmp_path / "deep").plan is None
    with pytest.raises(OptionError, match="must be the path of a plan file"):
        resolve({"plan": 3}, {}, tmp_path)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("10m", 600.0), ("1h", 3600.0), ("1.5m", 90.0)])
def test_budgets_are_written_with_units(text: str, seconds: float) -> None:
    """Variables and flags accept them."""
    assert resolve(None, {"HUB_BUDGET_S": text}, Path("/")).budget_s == seconds


@pytest.mark.parametrize("text", ["10x", "m", "10 minutes", "-1m", "nan"])
def test_a_wrong_budget_shows_how_to_write_one(text: str) -> None:
    """The message has an example with a unit."""
    with pytest.raises(OptionError, match=r"a number of seconds above 0, got (.|\n)*10m"):
        resolve(None, {"HUB_BUDGET_S": text}, Path("/"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a model in tiny.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "tiny.py").write_text(SOURCE)
    return tmp_path


def hub_command(*arguments: str, exit_code: int = 0) -> str:
    """Run a command and return what it printed: on standard output, or on standard error if it was to fail."""
    torch._dynamo.reset()
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code == exit_code, found.output
    return found.stdout or found.stderr


def test_explain_writes_a_file_that_show_prints_and_run_replays(here: Path) -> None:
    """This is how a prediction becomes a pinned plan."""
    text = hub_command("explain", "tiny.py:tiny", "-o", "plan.json", "--backends", "onnxruntime", "--threads", "1")
    shown = hub_command("plan", "show", "plan.json")
    assert "1 cluster on onnxruntime" in shown
    assert text.startswith(shown)
    assert "skip Dynamo" in text.removeprefix(shown)
    facts = json.loads(hub_command("run", "tiny.py:tiny", "--plan", "plan.json", "--json"))
    assert facts["plans"][0]["decided_by"] == "plan file"
    assert facts["max_abs_error"] < 1e-6
    assert "plan file" in hub_command("explain", "tiny.py:tiny", "--plan", "plan.json")


def test_lines_in_a_pipe_are_as_long_as_they_are(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal has set a width there, and programs read lines; COLUMNS still sets one."""
    names = [f"a_node_with_a_rather_long_name_{number}" for number in range(5)]
    for file, backend in (("a.json", "openvino"), ("b.json", "onnxruntime")):
        clusters = [PlannedCluster(backend=backend, nodes=(name,), source=(f"{name}.py:1",)) for name in names]
        (here / file).write_text(plans_json([Plan(graph="g" * 100, clusters=tuple(clusters))]))
    for command in (("show", "a.json"), ("diff", "a.json", "b.json")):
        monkeypatch.setenv("COLUMNS", "")
        status = 0 if command[0] == "show" else 1
        long = hub_command("plan", *command, exit_code=status).splitlines()
        assert any("g" * 100 in line for line in long)
        monkeypatch.setenv("COLUMNS", "40")
        assert all(len(line) <= 40 for line in hub_command("plan", *command, exit_code=status).splitlines())


def test_explain_completes_a_file_by_hand(here: Path) -> None:
    """`--plan` with `-o` checks and fills in what was omitted."""
    (here / "by_hand.json").write_text(
        '{"clusters": [{"backend": "onnxruntime", "nodes": ["softmax", "gelu", "linear", "linear_1"]}]}'
    )
    hub_command("explain", "tiny.py:tiny", "--plan", "by_hand.json", "-o", "plan.json")
    (plan,) = read_plans(here / "plan.json")
    assert plan.clusters[0].nodes == ("linear", "gelu", "linear_1", "softmax")
    assert plan.inputs == ("float32[2, 4]",)


def test_explain_prints_a_plan_file_as_json(here: Path) -> None:
    """A shell can redirect it."""
    text = hub_command("explain", "tiny.py:tiny", "--backends", "eager", "--batch", "3", "--json")
    (here / "plan.json").write_text(text)
    (plan,) = read_plans(here / "plan.json")
    assert plan.inputs == ("float32[3, 4]",)
    assert hub_command("plan", "show", "plan.json", "--json") == text


def test_plan_diff_says_what_moved_and_exits_with_1(here: Path) -> None:
    """`diff` does the same."""
    hub_command("explain", "tiny.py:tiny", "-o", "a.json", "--backends", "onnxruntime", "--threads", "1")
    hub_command("explain", "tiny.py:tiny", "-o", "b.json", "--backends", "eager", "--threads", "1")
    assert hub_command("plan", "diff", "a.json", "a.json") == "a.json and a.json: the same plan\n"
    text = hub_command("plan", "diff", "a.json", "b.json", exit_code=1)
    assert "c0 onnxruntime -> e0 eager: 4 nodes" in text
    assert max(map(len, text.splitlines())) <= 100
    facts = json.loads(hub_command("plan", "diff", "a.json", "b.json", "--json", exit_code=1))
    assert not facts["equal"]
    assert facts["graphs"][0]["moved"][0]["nodes"] == ["linear", "gelu", "linear_1", "softmax"]
    assert json.loads(hub_command("plan", "diff", "a.json", "a.json", "--json")) == {"equal": True, "graphs": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "show"), "Missing argument 'FILE'"),
        (("plan", "show", "a.json"), "a.json cannot be read"),
        (("plan", "diff", "a.json"), "Missing argument 'FILE'"),
        (("plan", "diff", "a.json", "b.json"), "a.json cannot be read"),
        (("plan", "mlp"), "No such command 'mlp'"),
        (("explain", "mlpp"), "did you mean 'mlp'"),
        (("explain", "mlp", "-o", "nowhere/plan.json"), "there is no folder"),
        (("explain", "mlp", "-o", "."), "is not a file"),
        (("explain", "mlp", "--plan", "a.json"), "a.json cannot be read"),
    ],
)
def test_a_mistake_in_a_command_is_one_message(here: Path, arguments: Sequence[str], message: str) -> None:
    """The message comes before anything is built."""
    assert message in hub_command(*arguments, exit_code=2)


def test_a_plan_in_the_environment_does_not_stop_one_from_being_made(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hub explain -o` and `hub tune` make the file that `HUB_PLAN` names; without -o, it is the plan to explain."""
    monkeypatch.setenv("HUB_PLAN", "plan.json")
    hub_command("explain", "tiny.py:tiny", "-o", "plan.json", "--backends", "eager")
    assert "decided by  plan file" in hub_command("explain", "tiny.py:tiny")
    facts = json.loads(hub_command("tune", "tiny.py:tiny", "-o", "plan.json", "--backends", "eager", "--json"))
    assert facts["plans"][0]["decided_by"] != "plan file"


def test_a_plan_that_does_not_fit_is_one_message_of_the_commands(here: Path) -> None:
    """A failure, of `hub run` and `hub explain` alike."""
    (here / "plan.json").write_text('{"clusters": [{"backend": "eager", "nodes": ["linear"]}]}')
    for name in ("run", "explain"):
        text = hub_command(name, "tiny.py:tiny", "--plan", "plan.json", exit_code=1)
        assert "node 'gelu' is in the graph and not in the plan" in text


def test_tune_says_where_the_plan_is_kept_and_writes_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has full effort, the budget that was given, and a file that can be replayed."""
    kept = str(here / "kept")
    monkeypatch.setenv("HUB_CACHE_DIR", kept)
    flags = ("--budget", "1m", "--backends", "onnxruntime", "--threads", "1")
    text = hub_command("tune", "tiny.py:tiny", "-o", "plan.json", *flags)
    assert "on onnxruntime" in text
    assert "budget 60.0 s" in text
    assert kept in text
    assert "replay it with" in text
    facts = json.loads(hub_command("tune", "tiny.py:tiny", "--json", *flags))
    assert (facts["budget_s"], facts["kept_in"], len(facts["plans"])) == (60.0, kept, 1)
    assert json.loads(hub_command("run", "tiny.py:tiny", "--plan", "plan.json", "--json"))["max_abs_error"] < 1e-6


def test_a_tuned_plan_that_cannot_be_kept_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of the tuning, unless a plan file was asked for."""
    monkeypatch.setenv("HUB_CACHE_DIR", str(here / "kept"))
    (here / "kept").mkdir(mode=0o700)
    (here / "kept" / "plans").write_text("")  # in the way, as a full disk is
    flags = ("--budget", "5", "--backends", "eager")
    text = hub_command("tune", "tiny.py:tiny", *flags, exit_code=1)
    assert "the plan is not kept, so the next process plans again" in text
    assert "kept in " not in text
    assert "not kept" in hub_command("tune", "tiny.py:tiny", "-o", "plan.json", *flags)
    assert json.loads((here / "plan.json").read_text())["plans"]


def test_a_plan_that_was_tuned_next_to_other_work_is_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disturbance is mentioned and is no failure; neither is a debug folder that cannot be written."""
    monkeypatch.setenv("HUB_CACHE_DIR", str(here / "kept"))
    monkeypatch.setattr(measure, "MAX_DISTURBED", -1.0)
    flags = ("--budget", "5", "--exclude", "inductor,openvino", "--threads", "1", "--debug-dir", "/proc/nowhere")
    text = hub_command("tune", "tiny.py:tiny", *flags)
    assert f"kept in     {here / 'kept'}" in text
    assert "disturbed   other work used the cores" in text
    (plan,) = json.loads(hub_command("tune", "tiny.py:tiny", "--json", *flags))["plans"]
    assert not plan["is_provisional"], "what is tuned again stays, because the machine may always be busy"


@pytest.mark.parametrize(
    ("flags", "message"), [(("--tune", "off"), "tunes fully"), (("--plan", "plan.json"), "looks for a plan")]
)
def test_tune_refuses_what_it_cannot_mean(here: Path, flags: Sequence[str], message: str) -> None:
    """A replay is not tuned, and tuning is not half done."""
    write_plans(here / "plan.json", (Plan(clusters=()),))
    assert message in hub_command("tune", "tiny.py:tiny", *flags, exit_code=2)
