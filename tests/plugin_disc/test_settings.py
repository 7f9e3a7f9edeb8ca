"""What users set of DISC, by its own names and by TorchBlade's, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from hub import plans
from hub.config.options import resolve
from hub.discovery.registry import registry
from hub.errors import CompileError, OptionError
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.plugin.settings import checked_settings
from hub.testing.single import whole_cluster
from plugin_disc.backend import create
from plugin_disc.fastmath import FLAGS, with_fast_math
from plugin_disc.runtime import machine_text
from plugin_disc.settings import Settings
from tests.plugin_disc.programs import Wrapped

ONE = CompileSettings(threads=1)
OLD = ("TAO_MLIR_ENABLE_AMP", "DISC_CPU_FAST_MATH_LEVEL", "DISC_COMPILE_FOR_MULTI_CUDA_TARGETS")
WORKERS = "COMPILE_PARALLELISM"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OLD, WORKERS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def difference() -> tuple[Cluster, Sequence[torch.Tensor]]:
    """Return x * y - z where z is the rounded product: 0, unless product and difference are rounded once."""
    torch.manual_seed(0)
    x, y = torch.rand(64) + 1.0, torch.rand(64) + 1.0
    return whole_cluster(Wrapped(lambda x, y, z: x * y - z), (x, y, x * y))


def test_variables_of_torchblade_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old names set what the new ones set; an explicit setting is stronger."""
    for name, value in zip(OLD, ("true", "2", "1"), strict=True):
        monkeypatch.setenv(name, value)
    found = Settings()
    assert (found.enable_amp, found.cpu_fast_math_level, found.compile_for_multi_cuda_targets) == (True, 2, True)
    assert Settings(cpu_fast_math_level=1, enable_amp=False).model_dump(include={"enable_amp", "cpu_fast_math_level"}) == {
        "enable_amp": False,
        "cpu_fast_math_level": 1,
    }


@pytest.mark.parametrize("name", OLD)
def test_a_wrong_variable_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that makes no sense is an error that says which variable holds it."""
    monkeypatch.setenv(name, "7")
    with pytest.raises(OptionError, match=f"variable {name} holds '7'"):
        checked_settings("disc", Settings, {})


def test_the_number_of_compilations_at_once_is_torchblades(monkeypatch: pytest.MonkeyPatch) -> None:
    """COMPILE_PARALLELISM says how many; without it, the hub does. What is compiled, and so its key, is the same."""
    assert Settings().compile_workers is None
    before = Settings().model_dump()
    monkeypatch.setenv(WORKERS, "3")
    assert Settings().compile_workers == 3
    assert Settings(compile_parallelism=5).compile_workers == 5
    assert Settings().model_dump() == before
    monkeypatch.setenv(WORKERS, "many")
    with pytest.raises(OptionError, match="variable COMPILE_PARALLELISM holds 'many', a whole number expected"):
        checked_settings("disc", Settings, {})


def test_variables_of_the_hub_reach_the_backend(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HUB_DISC_COMPILER and its like are the plugin's settings."""
    environ = {"HUB_DISC_COMPILER": "/opt/disc_compiler_main", "HUB_DISC_CPU_FAST_MATH_LEVEL": "4"}
    own = registry().configured(resolve(None, environ, tmp_path)).entries["disc"].settings
    assert isinstance(own, Settings)
    assert (own.compiler, own.cpu_fast_math_level) == ("/opt/disc_compiler_main", 4)


@pytest.mark.parametrize("name", ["enable_amp", "compile_for_multi_cuda_targets"])
def test_what_our_compiler_cannot_honour_is_refused(name: str, difference: tuple[Cluster, Sequence[torch.Tensor]]) -> None:
    """A setting is never ignored in silence."""
    with pytest.raises(CompileError, match=name):
        create(Settings(**{name: True})).compile(difference[0], ONE)


def test_level_0_is_strict(difference: tuple[Cluster, Sequence[torch.Tensor]]) -> None:
    """The default rounds every operation, as eager does."""
    cluster, inputs = difference
    assert "fastmath" not in machine_text(cluster, threads=1, level=0)
    assert create().compile(cluster, ONE)(*inputs)[0].abs().max() == 0.0


def test_level_4_shows_in_the_numbers(difference: tuple[Cluster, Sequence[torch.Tensor]]) -> None:
    """Product and difference become one operation, rounded once: what is left is the product's own rounding error."""
    cluster, inputs = difference
    found = create(Settings(cpu_fast_math_level=4)).compile(cluster, ONE)(*inputs)[0]
    x, y, z = (value.double() for value in inputs)
    assert torch.equal(found, (x * y - z).float())
    assert found.abs().max() > 0.0


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_levels_are_flags_of_the_arithmetic(level: int) -> None:
    """Sums, products and quotients carry the flags of their level; extremes and constants do not."""
    text = "%v1 = arith.divf %v2, %v3 : vector<16xf32>\n%v4 = arith.maximumf %v1, %v2 : f32\n%v5 = arith.addi %a, %b : i64"
    shown = with_fast_math(text, level).splitlines()
    assert shown[0] == f"%v1 = arith.divf %v2, %v3 fastmath<{FLAGS[level]}> : vector<16xf32>"
    assert shown[1:] == text.splitlines()[1:]


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_every_level_computes_softmax(level: int) -> None:
    """Fast mathematics differs by roundings, also where a row is masked by infinities."""
    torch.manual_seed(1)
    scores = torch.randn(5, 50).masked_fill(torch.rand(5, 50) < 0.2, -torch.inf)
    cluster, inputs = whole_cluster(Wrapped(lambda x: torch.softmax(x * 0.5, -1)), (scores,))
    executable = create(Settings(cpu_fast_math_level=level)).compile(cluster, ONE)
    torch.testing.assert_close(executable(*inputs)[0], torch.softmax(scores * 0.5, -1), rtol=1e-5, atol=1e-7)


def chain() -> Cluster:
    """Return sin(x) + x + 1 + 2: three additions of two overloads."""
    return whole_cluster(Wrapped(lambda x: (x.sin() + x + 1.0) + 2.0), (torch.ones(3),))[0]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, "sin add add add"),
        ({"deny": ["aten.add"]}, "sin"),
        ({"deny": ["aten::add@1"]}, "sin add - add"),
        ({"customize_op_black_list": ["aten.sin.default"]}, "- add add add"),
        ({"deny": "*", "allow": "aten.sin, aten.add@2"}, "sin - - add"),
        ({"deny": ["aten.add"], "customize_op_white_list": ["aten.add.Tensor@0"]}, "sin add"),
        ({"deny": ["aten.ad", "aten.add.out", "aten.add@7"]}, "sin add add add"),
    ],
)
def test_operators_are_kept_from_disc(given: dict[str, object], taken: str) -> None:
    """By name, overload or occurrence, in TorchBlade's words or ours; what is allowed comes back, and nothing else."""
    backend = create(Settings(**given))  # pyright: ignore[reportArgumentType] - text is taken, too
    nodes = [node for node in chain().module.graph.nodes if node.op == "call_function"]
    words = [str(node.target).split(".")[1] if backend.supports(node).accepted else "-" for node in nodes]
    assert " ".join(words).rstrip(" -") == taken
    reasons = [verdict.reason for node in nodes if not (verdict := backend.supports(node)).accepted]
    assert all("in its setting 'deny'" in reason for reason in reasons)


def test_a_list_that_names_no_operator_is_an_error(tmp_path) -> None:
    """Also where it comes from a variable, as text with commas."""
    environ = {"HUB_DISC_DENY": "aten.add@2,aten::mul", "HUB_DISC_ALLOW": "add"}
    with pytest.raises(OptionError, match="'add' names no operator"):
        registry().configured(resolve(None, environ, tmp_path))
    own = (
        registry().configured(resolve(None, {"HUB_DISC_DENY": environ["HUB_DISC_DENY"]}, tmp_path)).entries["disc"].settings
    )
    assert isinstance(own, Settings)
    assert own.deny == ("aten.add@2", "aten::mul")


def test_a_denied_operator_runs_elsewhere() -> None:
    """The plan of a model gives it to eager, and says why."""
    torch.compiler.reset()
    options = {
        "backends": ["disc"],
        "tune": "off",
        "isolate": False,
        "disc": {"deny": ["aten.tanh"]},
    }
    x = torch.randn(64)
    assert torch.equal(torch.compile(torch.tanh, backend="hub", options=options)(x), torch.tanh(x))
    model = torch.compile(lambda x: torch.tanh(x * 2.0 + 1.0) * 3.0, backend="hub", options=options)
    torch.testing.assert_close(model(x), torch.tanh(x * 2.0 + 1.0) * 3.0)
    (plan,) = plans(model)
    where = {name: cluster.backend for cluster in plan.clusters for name in cluster.nodes}
    assert where == {"mul": "disc", "add": "disc", "tanh": "eager", "mul_1": "disc"}
