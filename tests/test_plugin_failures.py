"""A plugin that fails, at any point, costs its cluster and nothing else."""

from __future__ import annotations

import importlib.util
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import hub
from hub.discovery.registry import MIGRATION, registry
from hub.errors import HubError, HubWarning, PlanError, PluginError, PluginLoadError, RunError
from hub.plugin import API_VERSION

PLUGIN = """
from hub import Backend, BackendInfo, Executable, Support, hookimpl
from hub.errors import ConstantsRefused

FAULT = {fault!r}

def fail(stage):
    if FAULT == stage:
        raise RuntimeError(f"fault at {{stage}}")

fail("import")

@hookimpl
def hub_backends():
    fail("register")
    return [BackendInfo(name="faulty", factory="hub_faulty:create", summary="", dynamic_shapes=True)]

def create():
    fail("create")
    return Faulty()

class Faulty(Backend):
    def supports(self, node):
        fail("supports")
        if FAULT == "supports_type":
            return True
        return Support(accepted=True)

    def estimate(self, cluster, settings):
        fail("estimate")
        return "soon" if FAULT == "estimate_type" else None

    def compile(self, cluster, settings):
        fail("compile")
        if FAULT == "constants":
            raise ConstantsRefused("not with these weights")
        return 7 if FAULT == "compile_type" else Run(cluster)

class Run(Executable):
    def __init__(self, cluster):
        self.module = cluster.module
        self.calls = 0

    def __call__(self, *inputs):
        import torch
        self.calls += 1
        if FAULT == "run" or (FAULT == "later" and self.calls > 1):
            raise RuntimeError("fault at run")
        with torch.no_grad():
            if FAULT == "mutate":
                inputs[0].add_(1)
            outputs = [value + 0 for value in self.module(*inputs)]
        if FAULT == "value":
            outputs[0].view(-1)[3] += 0.01
        if FAULT == "shape":
            outputs[0] = outputs[0][:1]
        if FAULT == "dtype":
            outputs[0] = outputs[0].double()
        if FAULT == "count":
            outputs.append(outputs[0])
        if FAULT == "alias":
            outputs[0] = inputs[0]
        if FAULT == "stride":
            outputs[0] = outputs[0].t().contiguous().t()
        if FAULT == "nan":
            outputs[0].view(-1)[0] = float("nan")
        return outputs
"""

BEFORE_PLANNING = ("import", "register", "create")
WHILE_PLANNING = ("supports", "supports_type", "estimate", "estimate_type", "compile", "compile_type", "run")
WRONG_RESULTS = ("value", "shape", "dtype", "count", "alias", "mutate", "nan")


class Net(torch.nn.Module):
    """A program that keeps its input's shape, so that an aliased input could pass for the output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * 2


def run(model: torch.nn.Module, x: torch.Tensor, **options: Any) -> tuple[torch.Tensor, hub.Plan]:
    """Run a model twice through the hub; return the second result and the plan."""
    compiled = torch.compile(model, backend="hub", options={"tune": "off", **options})
    with torch.no_grad():
        compiled(x)
        result = compiled(x)
    return result, hub.plans(compiled)[0]


@pytest.mark.parametrize("fault", [*BEFORE_PLANNING, *WHILE_PLANNING, *WRONG_RESULTS, "later"])
def test_failing_plugin_costs_only_its_cluster(fault: str, install_plugin: Any) -> None:
    """Whatever the plugin does, the result is eager's, and the report names the plugin."""
    install_plugin("faulty", PLUGIN.format(fault=fault))
    model, x = Net().eval(), torch.randn(4, 8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result, plan = run(model, x, backends=["faulty"])
    assert torch.equal(result, model(x).detach())
    assert any("fault" in event.message or event.backend == "faulty" for event in plan.events)
    assert "faulty" not in plan.backends or fault in ("estimate", "estimate_type", "later")
    assert any(issubclass(item.category, HubWarning) and "faulty" in str(item.message) for item in caught)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("constants", "ConstantsRefused"),
        ("compile", "CompileError"),
        ("value", "AccuracyError"),
        ("shape", "ContractError"),
        ("later", "RunError"),
    ],
)
@pytest.mark.filterwarnings("ignore::hub.errors.HubWarning")
def test_an_event_names_the_class_of_its_error(fault: str, error: str, install_plugin: Any) -> None:
    """The type is the same in a worker and here: no caller has to read messages to tell one failure from another."""
    install_plugin("faulty", PLUGIN.format(fault=fault))
    _, plan = run(Net().eval(), torch.randn(4, 8), backends=["faulty"])
    assert [event.error for event in plan.events if event.kind in ("failed", "fallback")] == [error]


@pytest.mark.parametrize("fault", ["supports", "compile", "run", "value"])
def test_strict_turns_a_failure_into_an_error(fault: str, install_plugin: Any) -> None:
    """With strict=True the first failure reaches the caller as an error of the hub's, naming the plugin."""
    install_plugin("faulty", PLUGIN.format(fault=fault))
    with pytest.raises(HubError) as caught:
        run(Net().eval(), torch.randn(4, 8), backends=["faulty"], strict=True)
    assert isinstance(caught.value, (PluginError, PlanError))
    assert "faulty" in str(caught.value)


def test_strict_reports_a_failure_at_run_time(install_plugin: Any) -> None:
    """With strict=True an executable that fails in a later call raises RunError."""
    install_plugin("faulty", PLUGIN.format(fault="later"))
    with pytest.raises(RunError, match="faulty"):
        run(Net().eval(), torch.randn(4, 8), backends=["faulty"], strict=True)


def test_strides_are_eagers(install_plugin: Any) -> None:
    """An executable whose output has other strides is trusted, and its output is copied to eager's layout."""
    install_plugin("faulty", PLUGIN.format(fault="stride"))
    model, x = Net().eval(), torch.randn(4, 8)
    result, plan = run(model, x, backends=["faulty"])
    assert plan.backends == ("faulty",)
    assert result.stride() == model(x).stride()


def test_accuracy_budget_lets_a_rough_backend_in(install_plugin: Any) -> None:
    """An error within the granted budget is accepted, and one beyond it is refused with the numbers."""
    install_plugin("faulty", PLUGIN.format(fault="value"))
    model, x = Net().eval(), torch.randn(4, 8)
    result, plan = run(model, x, backends=["faulty"], accuracy=0.5)
    assert plan.backends == ("faulty",)
    assert 0 < (result - model(x)).abs().max() < 0.02
    torch._dynamo.reset()
    with pytest.warns(HubWarning, match="expected .* got .* allowed"):
        run(model, x, backends=["faulty"], accuracy=1e-6)


def test_wrong_api_version_is_refused_by_name(install_plugin: Any) -> None:
    """A plugin built for another major version is listed as unavailable, with both versions."""
    install_plugin("faulty", PLUGIN.format(fault="").replace('summary=""', 'summary="", api=(9, 0)'))
    status = hub.list_backends()
    found = next(item for item in status if item.name == "faulty")
    assert not found.available
    assert "9.0" in found.reason
    assert f"this hub has {API_VERSION[0]}.{API_VERSION[1]}" in found.reason


@pytest.mark.parametrize("place", ["when it is registered", "when it is first used"])
def test_a_plugin_for_an_earlier_version_is_refused_with_where_things_are(install_plugin: Any, place: str) -> None:
    """It imports names that have moved: the reason names both versions and the page, whenever the import fails."""
    old = "from hub.support import OperatorTable\n"
    source = textwrap.dedent(PLUGIN.format(fault=""))
    if place == "when it is registered":
        install_plugin("faulty", old + source)
        reason = next(item for item in hub.list_backends() if item.name == "faulty").reason
    else:
        install_plugin("faulty", source.replace("def create():", f"def create():\n    {old}"))
        with pytest.raises(PluginLoadError) as caught:
            registry().backend("faulty")
        reason = caught.value.message
    assert f"built for plugin API {API_VERSION[0] - 1}, this hub has {API_VERSION[0]}.{API_VERSION[1]}" in reason
    assert "hub.support" in reason and MIGRATION in reason
    assert (Path(__file__).parent.parent / MIGRATION).exists()


@pytest.mark.parametrize("fact", ["error_class", "explains", "saveable", "tunes"])
def test_a_plugin_that_registers_a_dropped_fact_is_refused_by_its_name(fact: str, install_plugin: Any) -> None:
    """The reason names the fact and the page that says what replaced it."""
    source = textwrap.dedent(PLUGIN.format(fault="")).replace('name="faulty",', f'name="faulty", {fact}=True,')
    install_plugin("faulty", source)
    reason = next(item for item in hub.list_backends() if item.name == "faulty").reason
    assert f"built for plugin API {API_VERSION[0] - 1}, this hub has {API_VERSION[0]}.{API_VERSION[1]}" in reason
    assert f"BackendInfo.{fact} no longer exists" in reason and MIGRATION in reason
    page = (Path(__file__).parent.parent / MIGRATION).read_text()
    assert fact in page.partition("## From version 1")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        ("name=None", "name None is not a short lower-case word"),
        ("name=['faulty']", "name ['faulty'] is not a short lower-case word"),
        ("name='x' * 300", "is not a short lower-case word"),
        ("requires=(3,)", "requires is (3,), a tuple of words expected"),
        ("requires=('numpy>>1',)", "requires names 'numpy>>1', which is no requirement"),
        ("never_ran_on='a GPU'", "never_ran_on is 'a GPU', a tuple of words expected"),
        ("install=3", "install is 3, a command expected"),
        ("peers=['a']", "peers is a list, a mapping expected"),
        ("api='2.0'", "api is '2.0', the two numbers of `hub.plugin.API_VERSION` expected"),
        ("max_relative_error=10**400", "a number of at least 0 expected"),
    ],
)
def test_a_description_with_anything_in_a_field_is_refused_by_that_field(fact: str, said: str, install_plugin: Any) -> None:
    """Nothing else reads what its plugin filled in: other backends are listed as ever."""
    source = textwrap.dedent(PLUGIN.format(fault=""))
    facts = f"**{{**dict(name='faulty'), **dict({fact})}}, "
    install_plugin("faulty", source.replace('name="faulty", ', facts))
    listed = hub.list_backends()
    assert [item.reason for item in listed if said in item.reason and not item.available]
    assert any(item.name == "inductor" and item.available for item in listed)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "its entry point is '', which names no module"),
        ("no module!", "its entry point is 'no module!', which names no module"),
        ("hub_nowhere", "No module named 'hub_nowhere'"),
        ("hub_faulty:nowhere", "has no attribute 'nowhere'"),
    ],
)
def test_an_entry_point_that_leads_nowhere_costs_its_own_backend(value: str, said: str, install_plugin: Any) -> None:
    """Whatever is written there, others are found, and models run."""
    install_plugin("faulty", textwrap.dedent(PLUGIN.format(fault="")))
    facts = Path(_site_of("hub_faulty"), "astray-1.0.dist-info")
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: astray\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[hub]\nastray = {value}\n")
    found = {item.name: item for item in hub.list_backends()}
    assert said in found["astray"].reason
    assert found["faulty"].available


def test_a_distribution_without_metadata_has_its_modules_name(install_plugin: Any) -> None:
    """Installations that were interrupted leave such a folder; the listing is of text all the same."""
    install_plugin("faulty", textwrap.dedent(PLUGIN.format(fault="")))
    Path(_site_of("hub_faulty"), "hub_faulty-1.0.dist-info", "METADATA").unlink()
    found = next(item for item in hub.list_backends() if item.name == "faulty")
    assert (found.package, found.package_version) == ("hub_faulty", "unknown")


def _site_of(module: str) -> Path:
    """Return the folder from which a module that was not imported yet would be."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def test_a_requirement_of_another_platform_is_none(install_plugin: Any) -> None:
    """Markers of a requirement count as they do for pip."""
    source = textwrap.dedent(PLUGIN.format(fault=""))
    install_plugin("faulty", source.replace('summary=""', """summary="", requires=("nope; python_version < '3'",)"""))
    assert next(item for item in hub.list_backends() if item.name == "faulty").available


def test_a_misspelt_fact_is_no_earlier_version(install_plugin: Any) -> None:
    """A new plugin with a mistake is told the mistake."""
    source = textwrap.dedent(PLUGIN.format(fault="")).replace('name="faulty",', 'name="faulty", trainng=True,')
    install_plugin("faulty", source)
    reason = next(item for item in hub.list_backends() if item.name == "faulty").reason
    assert "'trainng'" in reason and "plugin API" not in reason


def test_a_misspelt_module_of_the_hub_is_no_earlier_version(install_plugin: Any) -> None:
    """A new plugin with a mistake is told the mistake."""
    install_plugin("faulty", "from hub.plugn import OperatorTable\n" + textwrap.dedent(PLUGIN.format(fault="")))
    reason = next(item for item in hub.list_backends() if item.name == "faulty").reason
    assert "hub.plugn" in reason and "plugin API" not in reason
