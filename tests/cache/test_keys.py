"""Cache keys: whatever changes what an executable does, or which plan is best, changes the key."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._higher_order_ops.wrap import wrap
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from hub.cache import keys
from hub.cache.keys import WITHOUT_EFFECT, artifact_parts, code_digest, digest_of, plan_parts
from hub.cache.measurements import Measurements
from hub.config.forms import KEYS
from hub.config.options import Options
from hub.config.tables import CacheSettings, WorkerSettings
from hub.discovery.registry import registry
from hub.partition.extract import extract
from hub.planning.context import PlanningContext, limits_of
from hub.plugin.backend import BackendInfo, CompileSettings
from hub.plugin.entry import Entry
from hub.plugin.graph import Cluster, Graph
from hub.plugin.settings import BackendSettings
from hub.plugin.table import ACCEPTED
from hub.process.modes import modes
from hub.report.progress import Progress
from hub.workers.in_process import InProcess
from hub.workers.session import Session
from hub.workers.transfer import Sample

aten = torch.ops.aten

# --- Programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """Everything about a small program: softmax((x + alpha * y) * first + second)."""

    operator: Any = aten.add.Tensor
    alpha: Any = 1
    dim: int = -1
    swap_wiring: bool = False
    swap_constants: bool = False
    outputs: tuple[int, ...] = (3,)
    x: Callable[[], torch.Tensor] = lambda: torch.empty(4, 4)
    y: Callable[[], torch.Tensor] = lambda: torch.empty(4, 4)
    share: bool = False
    first: Callable[[], torch.Tensor] = lambda: torch.arange(16.0).reshape(4, 4)
    second: Callable[[], torch.Tensor] = lambda: torch.arange(16.0).reshape(4, 4)
    names: str = "n"


def graph_of(form: Form) -> Graph:
    """Return the program as a graph whose constants are weights, with fake values computed operator by operator."""
    program = fx.Graph()
    with FakeTensorMode():
        x = form.x()
        y = x[:] if form.share else form.y()
        inputs = {"x": x, "y": y, "first": torch.empty_like(form.first()), "second": torch.empty_like(form.second())}
        nodes = {name: program.placeholder(f"{form.names}_{name}") for name in inputs}
        for name, value in inputs.items():
            nodes[name].meta["val"] = value
        a, b = (nodes["y"], nodes["x"]) if form.swap_wiring else (nodes["x"], nodes["y"])
        f, s = (nodes["second"], nodes["first"]) if form.swap_constants else (nodes["first"], nodes["second"])
        calls = [call(program, form.operator, (a, b), {"alpha": form.alpha})]
        calls.append(call(program, aten.mul.Tensor, (calls[-1], f)))
        calls.append(call(program, aten.add.Tensor, (calls[-1], s)))
        calls.append(call(program, aten.softmax.int, (calls[-1], form.dim)))
    program.output(tuple(calls[number] for number in form.outputs))
    for position, node in enumerate(calls):
        node.name = f"{form.names}_{position}"
    weights = (f"{form.names}_first", f"{form.names}_second")
    return Graph(fx.GraphModule(torch.nn.Module(), program), "g", weights=weights)


def call(program: fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> fx.Node:
    node = program.call_function(target, args, kwargs or {})
    values = fx.node.map_arg((args, kwargs or {}), lambda source: source.meta["val"])
    node.meta["val"] = target(*values[0], **values[1])
    return node


def cluster_of(form: Form) -> Cluster:
    graph = graph_of(form)
    values = dict(zip(graph.weights, (form.first(), form.second()), strict=True))
    return extract(graph, [node.name for node in graph.nodes], "c", values)


def strided() -> torch.Tensor:
    return torch.empty(4, 4).t()


def offset() -> torch.Tensor:
    return torch.empty(20)[4:].reshape(4, 4)


def changed(position: int, value: float) -> Callable[[], torch.Tensor]:
    def make() -> torch.Tensor:
        constant = torch.arange(16.0)
        constant[position] = value
        return constant.reshape(4, 4)

    return make


STRUCTURE: dict[str, Form] = {
    "operator": Form(operator=aten.sub.Tensor),
    "attribute": Form(alpha=2),
    "type of an attribute": Form(alpha=1.0),
    "sign of an attribute": Form(dim=1),
    "wiring": Form(y=strided, swap_wiring=True),
    "which output": Form(outputs=(2,)),
    "number of outputs": Form(outputs=(2, 3)),
    "shape": Form(x=lambda: torch.empty(1, 4)),
    "dtype": Form(x=lambda: torch.empty(4, 4, dtype=torch.float64)),
    "layout": Form(x=strided),
    "offset": Form(x=offset),
    "requires grad": Form(x=lambda: torch.empty(4, 4, requires_grad=True)),
    "inputs that share memory": Form(share=True),
    "layout of a weight": Form(first=lambda: torch.arange(16.0).reshape(4, 4).t().contiguous().t()),
    "dtype of a weight": Form(first=lambda: torch.arange(16, dtype=torch.float64).reshape(4, 4)),
}
CONSTANTS: dict[str, Form] = {
    "one element": Form(first=changed(7, 7.0000005)),
    "the sign of zero": Form(first=changed(0, -0.0)),
    "one element of another weight": Form(second=changed(15, 0.0)),
}


BEFORE = {"wiring": Form(y=strided)}
"""What a form is compared with, where that is not the usual one."""


@pytest.mark.parametrize("name", [*STRUCTURE, *CONSTANTS])
def test_every_part_of_a_program_is_in_an_executables_key(name: str) -> None:
    """Operators, attributes, wiring, shapes, dtypes, layouts, aliasing, and every constant's every byte."""
    assert cluster_of({**STRUCTURE, **CONSTANTS}[name]).digest != cluster_of(BEFORE.get(name, Form())).digest


@pytest.mark.parametrize("name", STRUCTURE)
def test_every_part_of_a_program_is_in_a_plans_key(name: str) -> None:
    """All but the constants' values."""
    assert graph_of(STRUCTURE[name]).digest != graph_of(BEFORE.get(name, Form())).digest


@pytest.mark.parametrize("name", CONSTANTS)
def test_the_values_of_constants_are_not_in_a_plans_key(name: str) -> None:
    """A plan is for any weights."""
    assert graph_of(CONSTANTS[name]).digest == graph_of(Form()).digest


def digest_on(value: torch.Tensor) -> str:
    """Return the digest of `x + x` for an x like this."""
    program = fx.Graph()
    x = program.placeholder("x")
    y = program.call_function(aten.add.Tensor, (x, x))
    program.output((y,))
    x.meta["val"], y.meta["val"] = value, torch.empty(4, device="meta")
    return Graph(fx.GraphModule(torch.nn.Module(), program), "g").digest


def test_devices_and_lazy_conjugates_are_in_the_key() -> None:
    """A conjugate that is not yet computed has the memory of the original."""
    plain, negative = torch.ones(4, dtype=torch.complex64), torch.ones(4, dtype=torch.complex64).conj().imag
    values = [plain, plain.conj(), plain.to("meta"), plain.imag, negative]
    assert len({digest_on(value) for value in values}) == len(values)


def test_which_node_reads_which_constant_is_in_the_key() -> None:
    """Even where both are alike in form: their order is that of the nodes that read them."""
    form = Form(second=changed(3, 8.0))
    assert cluster_of(form).digest != cluster_of(replace(form, swap_constants=True)).digest


def test_equal_programs_have_equal_keys_whatever_their_names() -> None:
    """Built twice, apart."""
    one, other = Form(), Form(names="m")
    assert cluster_of(one).digest == cluster_of(other).digest
    assert graph_of(one).digest == graph_of(other).digest


def reading(targets: Sequence[str], constants: dict[str, torch.Tensor]) -> Graph:
    """Return a program that adds up constants, each read by a node of its own."""
    program, root = fx.Graph(), torch.nn.Module()
    for name, value in constants.items():
        root.register_buffer(name, value)
    total = program.placeholder("x")
    total.meta["val"] = torch.empty(2, device="meta")
    for number, target in enumerate(targets):
        source = program.create_node("get_attr", target, name=f"r{number}")
        total = program.call_function(aten.sub.Tensor, (source, total), name=f"s{number}")
        for node in (source, total):
            node.meta["val"] = torch.empty(2, device="meta")
    program.output((total,))
    return Graph(fx.GraphModule(root, program), "g")


def digest_of_reading(targets: Sequence[str]) -> str:
    graph = reading(targets, {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])})
    return extract(graph, [node.name for node in graph.nodes], "c", {}).digest


def test_a_constant_that_is_read_twice_counts_where_it_is_read() -> None:
    """a, b, a is another program than a, b, b, and than a, a, b."""
    digests = [digest_of_reading(targets) for targets in ("aba", "abb", "aab", "bab")]
    assert len(set(digests)) == 4
    assert digest_of_reading("aba") == digests[0]


def nested(value: float, inner: str = "k") -> Cluster:
    """Return a cluster with a program inside the program, which has a constant of its own."""
    body = fx.Graph()
    source, constant = body.placeholder("x"), body.create_node("get_attr", inner)
    result = body.call_function(aten.add.Tensor, (source, constant))
    body.output((result,))
    root = torch.nn.Module()
    root.register_buffer(inner, torch.tensor([value]))
    program, outer = fx.Graph(), torch.nn.Module()
    outer.add_module("body", fx.GraphModule(root, body))
    x, function = program.placeholder("x"), program.create_node("get_attr", "body")
    y = program.call_function(wrap, (function, x))
    program.output((y,))
    for node in (source, constant, result, x, y):
        node.meta["val"] = torch.empty(1, device="meta")
    names = ((y.name,), ("x",), (y.name,))
    return Cluster("c", fx.GraphModule(outer, program), *names, (), ())


def test_constants_of_programs_inside_the_program_count() -> None:
    """Bodies of control flow have constants too."""
    assert nested(1.0).digest == nested(1.0).digest != nested(2.0).digest


def test_text_among_the_arguments_is_not_taken_for_a_node() -> None:
    """An argument "%0" and the value of node 0 print differently."""

    def digest(as_text: bool) -> str:
        program = fx.Graph()
        x = program.placeholder("x")
        y = program.call_function(aten.add.Tensor, ("%0" if as_text else x, x))
        program.output((y,))
        return Graph(fx.GraphModule(torch.nn.Module(), program), "g").digest

    assert digest(True) != digest(False)


def test_functions_of_python_have_the_same_name_in_every_process() -> None:
    """An address in a key would make every process compile anew."""
    program = fx.Graph()
    x = program.placeholder("x")
    program.output((program.call_function(torch.sym_max, (x, 2)), program.call_function(torch.sym_sqrt, (x,))))
    from hub.plugin.canonical import canonical_text

    text = canonical_text(fx.GraphModule(torch.nn.Module(), program))
    assert " torch.sym_max " in text
    assert " at 0x" not in text


# --- Symbolic sizes ---------------------------------------------------------------------------------------------------


def dynamic(teach: Callable[[Any, Any], object] = lambda n, m: None, same: bool = False) -> Graph:
    """Return the graph of x + x and y + y over n and m elements, with what is known about the two sizes."""
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    values = [
        mode.from_tensor(torch.empty(size), symbolic_context=context, source=_source(name))
        for name, size in (("x", 6), ("y", 8))
    ]
    teach(values[0].shape[0], values[1].shape[0])
    program = fx.Graph()
    for name, value in zip("xy", (values[0], values[0] if same else values[1]), strict=True):
        node = program.placeholder(name)
        node.meta["val"] = value
        with mode:
            call(program, aten.add.Tensor, (node, node))
    program.output(tuple(node for node in program.nodes if node.op == "call_function"))
    return Graph(fx.GraphModule(torch.nn.Module(), program), "g")


def _source(name: str) -> Any:
    from torch._dynamo.source import ConstantSource

    return ConstantSource(name)


def at_most_100(n: Any, m: Any) -> None:
    assert n <= 100


def even(n: Any, m: Any) -> None:
    assert n % 2 == 0


def ordered(n: Any, m: Any) -> None:
    assert n < m


@pytest.mark.parametrize("teach", [at_most_100, even, ordered], ids=lambda teach: teach.__name__)
def test_what_is_known_of_symbolic_sizes_is_in_the_key(teach: Callable[[Any, Any], object]) -> None:
    """A compiler may have made use of it: of ranges, of divisibility, of an order."""
    assert dynamic().digest == dynamic().digest != dynamic(teach).digest


def test_which_sizes_are_equal_is_in_the_key() -> None:
    """Two inputs of one size, or of two."""
    assert dynamic().digest != dynamic(same=True).digest


def test_only_what_concerns_a_clusters_own_sizes_is_in_its_key() -> None:
    """Else what is learned of one input would make every cluster be compiled again."""

    def digest(graph: Graph, which: int) -> str:
        return extract(graph, [graph.nodes[which].name], "c", {}).digest

    assert digest(dynamic(), 0) != digest(dynamic(even), 0)
    assert digest(dynamic(), 1) == digest(dynamic(even), 1)
    assert digest(dynamic(), 0) == digest(dynamic(ordered), 0)


def test_what_compilers_learn_later_changes_no_key() -> None:
    """The key under which an executable was saved has to be found again."""
    graph = dynamic()
    name = graph.nodes[0].name
    before = (graph.digest, extract(graph, [name], "c", {}).digest)
    even(graph.placeholders[0].meta["val"].shape[0], None)
    again = replace(graph)
    assert (again.digest, extract(again, [name], "c", {}).digest) == before


# --- Everything else --------------------------------------------------------------------------------------------------

SETTINGS = CompileSettings(threads=2)
INFO = BackendInfo(name="toy", factory="toy_plugin.backend:create", summary="", requires=("numpy>=1", "scipy"))
ENTRY = Entry(INFO, "toy-plugin", "1.0", ACCEPTED)


class ToySettings(BackendSettings):
    """Settings of the toy's own."""

    level: int = 0


class Tuned(BackendSettings):
    """Settings of a backend that tuning has changed since."""

    @property
    def state(self) -> str:
        return "tuned"


SETTINGS_FLIPS: dict[str, Any] = {"threads": 3, "busy_wait": True, "accuracy": 1e-3, "effort": "full"}
ENTRY_FLIPS: dict[str, Entry] = {
    "backend": replace(ENTRY, info=replace(INFO, name="other")),
    "plugin": replace(ENTRY, package_version="1.1"),
    "libraries": replace(ENTRY, info=replace(INFO, requires=("numpy>=1",))),
    "backend_settings": replace(ENTRY, settings=ToySettings(level=1)),
    "state": replace(ENTRY, settings=Tuned()),
}


@pytest.fixture
def toy_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a plugin's package on the path, as an editable installation leaves it."""
    folder = tmp_path / "site" / "toy_plugin"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "backend.py").write_text("def create(): ...")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def artifact_key(entry: Entry = ENTRY, settings: CompileSettings = SETTINGS) -> dict[str, str]:
    """Return the digest of each part; the last one covers all of them."""
    parts = artifact_parts("cluster", entry, settings)
    return {name: digest_of({"": value}) for name, value in parts.items()} | {"": digest_of(parts)}


def check_only(name: str, before: dict[str, str], after: dict[str, str]) -> None:
    """Check that one part has changed, and the key with it."""
    assert {part for part in before if before[part] != after.get(part)} == {name, ""}


def test_every_setting_of_a_compilation_is_in_the_key() -> None:
    """Also those that do not exist yet: each has to be flipped here."""
    assert {item.name for item in fields(CompileSettings)} == set(SETTINGS_FLIPS)
    for name, value in SETTINGS_FLIPS.items():
        check_only("settings", artifact_key(), artifact_key(settings=replace(SETTINGS, **{name: value})))


@pytest.mark.parametrize("name", ENTRY_FLIPS)
def test_what_names_a_backend_is_in_the_key(name: str) -> None:
    """Its plugin, the plugin's version, and the libraries under it."""
    check_only(name, artifact_key(), artifact_key(ENTRY_FLIPS[name]))


def test_a_plugins_code_is_in_the_key(toy_plugin: Path) -> None:
    """Its version does not change while it is edited. What a running process has imported stays as it was."""
    keys._digest_of_files.cache_clear()
    before = artifact_key()
    (toy_plugin / "backend.py").write_text("def create(): return 1")
    assert artifact_key() == before
    keys._digest_of_files.cache_clear()
    check_only("plugin_code", before, artifact_key())
    second = artifact_key()
    (toy_plugin / "kernel.txt").write_text("compiled into the executable")
    keys._digest_of_files.cache_clear()
    check_only("plugin_code", second, artifact_key())
    third = artifact_key()
    (toy_plugin / "__pycache__").mkdir()
    (toy_plugin / "__pycache__" / "backend.pyc").write_bytes(b"compiled")
    keys._digest_of_files.cache_clear()
    assert artifact_key() == third


def test_a_plugin_of_one_file_has_code_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is not there has none."""
    (tmp_path / "flat_plugin.py").write_text("A = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = code_digest("flat_plugin")
    (tmp_path / "flat_plugin.py").write_text("A = 2")
    keys._digest_of_files.cache_clear()
    assert "" != before != code_digest("flat_plugin") != ""
    assert (code_digest("no_such_plugin"), code_digest("")) == ("", "")


def test_code_that_lies_elsewhere_is_told_apart() -> None:
    """Every first-party plugin has code of its own."""
    packages = {entry.info.factory.partition(".")[0] for entry in registry().entries.values()}
    digests = {code_digest(package) for package in packages}
    assert len(digests) == len(packages)
    assert "" not in digests


def _flip_installed(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def flip(patch: pytest.MonkeyPatch) -> None:
        real = keys.installed_version
        patch.setattr(keys, "installed_version", lambda wanted: "0.0.0" if wanted == name else real(wanted))

    return flip


SURROUNDINGS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], object]]] = {
    "a library's version": ("libraries", _flip_installed("numpy")),
    "the hub's version": ("hub", _flip_installed("compiler-hub")),
    "the hub's code": (
        "hub_code",
        lambda patch: patch.setattr(keys, "code_digest", lambda package: package == "hub" or ""),
    ),
    "the contract": ("api", lambda patch: patch.setattr(keys, "API_VERSION", (1, 99))),
    "PyTorch's version": ("torch", lambda patch: patch.setattr(torch, "__version__", "2.99")),
    "PyTorch's build": ("torch", lambda patch: patch.setattr(torch.version, "git_version", "x")),
    "Python's version": ("python", lambda patch: patch.setattr(platform, "python_version", lambda: "3.99")),
    "Python's kind": ("python", lambda patch: patch.setattr(platform, "python_implementation", lambda: "PyPy")),
    "libc": ("libc", lambda patch: patch.setattr(platform, "libc_ver", lambda: ("musl", "1"))),
    "the processor": ("cpu", lambda patch: patch.setattr(keys, "_processor", lambda: "x86_64 | avx2")),
    "accelerators": ("accelerators", lambda patch: patch.setattr(keys, "_accelerators", lambda: ["H100, (9, 0)"])),
    "a variable of the plugin": ("variables", lambda patch: patch.setenv("HUB_TOY_FAST_MATH", "1")),
    "the default dtype": (
        "default_dtype",
        lambda patch: patch.setattr(torch, "get_default_dtype", lambda: torch.float64),
    ),
    "determinism": (
        "deterministic",
        lambda patch: patch.setattr(torch, "get_deterministic_debug_mode", lambda: 2),
    ),
    "the precision of products": (
        "matmul_precision",
        lambda patch: patch.setattr(torch, "get_float32_matmul_precision", lambda: "medium"),
    ),
    **{
        part: (part, lambda patch, part=part: patch.setattr(keys, "modes", lambda: replace(modes(), **{part: "other"})))
        for part in sorted(modes().numeric_parts.keys() - {"default_dtype", "deterministic", "matmul_precision"})
    },
}


TOLD = "is_mkl_told"


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_surrounds_a_compilation_is_in_both_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions, hardware, and PyTorch's settings of the whole process."""
    monkeypatch.setattr(keys, "code_digest", lambda package: "")
    part, flip = SURROUNDINGS[name]
    artifact, plan = artifact_key(), plan_key()
    flip(monkeypatch)
    check_only(part, artifact, artifact_key())
    check_only("backends" if part in ("libraries", "variables") else part, plan, plan_key())


def test_every_part_is_flipped_here() -> None:
    """A part that is added to a key needs a test that flips it."""
    flipped = {part for part, _ in SURROUNDINGS.values()} | {"cluster", "settings", "plugin_code", *ENTRY_FLIPS}
    assert set(artifact_parts("cluster", ENTRY, SETTINGS)) == flipped
    shared = flipped - {"cluster", "settings", "plugin_code", "libraries", "variables", *ENTRY_FLIPS}
    assert set(plan_parts(GRAPH, "inference", Options(), 2, "fast", [ENTRY])) == shared | {*PLAN_FLIPS, "options", TOLD}


def test_what_mkl_was_told_is_in_a_plans_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes times and no number: an executable serves both, and its price is that of one state."""
    artifact, plan = artifact_key(), plan_key()
    before = modes()
    monkeypatch.setattr(keys, "modes", lambda: replace(before, **{TOLD: not before.is_mkl_told}))
    assert artifact_key() == artifact
    check_only(TOLD, plan, plan_key())


X86 = "processor\t: 0\nmodel name\t: Xeon 8480\nflags\t\t: fpu sse2 avx2 avx512f amx_tile\n\nprocessor\t: 1\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
PROCESSOR = {"machine": "x86_64", "system": "Linux", "processor": "x86_64", "capability": "AVX512", "cpuinfo": X86}
PROCESSOR_FLIPS: dict[str, dict[str, str]] = {
    "one feature less": {"cpuinfo": X86.replace(" amx_tile", "")},
    "one feature more": {"cpuinfo": X86.replace("amx_tile", "amx_tile amx_fp16")},
    "the model": {"cpuinfo": X86.replace("8480", "8490")},
    "what PyTorch may use": {"capability": "AVX2"},
    "the instruction set": {"machine": "aarch64"},
    "the system": {"system": "Darwin"},
    "a feature of ARM's": {"cpuinfo": ARM.replace(" sve", " sve sve2")},
    "the maker of an ARM": {"cpuinfo": ARM.replace("0x41", "0xc0")},
    "the part of an ARM": {"cpuinfo": ARM.replace("0xd40", "0xd4f")},
}


@pytest.mark.parametrize("name", PROCESSOR_FLIPS)
def test_each_feature_of_the_processor_is_in_both_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the rest stays the same: two models of one series, or a switch of the system's that hides a feature."""
    change = PROCESSOR_FLIPS[name]
    before = {**PROCESSOR, **({"cpuinfo": ARM} if "ARM" in name else {})}
    monkeypatch.setattr(keys, "_processor", lambda: keys.processor_text(**before))
    artifact, plan = artifact_key(), plan_key()
    monkeypatch.setattr(keys, "_processor", lambda: keys.processor_text(**{**before, **change}))
    check_only("cpu", artifact, artifact_key())
    check_only("cpu", plan, plan_key())


def test_other_cores_of_a_processor_change_nothing() -> None:
    """What differs from one boot to the next, such as their frequency, is not in the key."""
    assert keys.processor_text(**PROCESSOR) == keys.processor_text(**{**PROCESSOR, "cpuinfo": f"{X86}cpu MHz\t: 2000\n"})


def gpus(*found: tuple[str, tuple[int, int]]) -> Any:
    """Return a substitute for `torch.cuda` on a machine with these GPUs."""
    return SimpleNamespace(
        device_count=lambda: len(found),
        get_device_name=lambda index: found[index][0],
        get_device_capability=lambda index: found[index][1],
    )


SOFTWARE = {"CUDA": "12.8", "ROCm": "None", "driver": "12080", "its build": "570.86.15", "cuDNN": "91002"}
H100 = ("NVIDIA H100", (9, 0))
GPU_FLIPS: dict[str, tuple[Any, dict[str, str]]] = {
    "another model": (gpus(("NVIDIA H200", (9, 0))), SOFTWARE),
    "another capability": (gpus(("NVIDIA H100", (9, 1))), SOFTWARE),
    "a second one": (gpus(H100, H100), SOFTWARE),
    "none": (gpus(), SOFTWARE),
    **{f"another {name}": (gpus(H100), {**SOFTWARE, name: "other"}) for name in SOFTWARE},
}


@pytest.mark.parametrize("name", GPU_FLIPS)
def test_each_fact_of_a_gpu_is_in_both_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model and capability, and the versions of the driver and of the libraries that compilers call."""
    monkeypatch.setattr(keys, "_accelerators", lambda: keys.accelerator_texts(gpus(H100), lambda: SOFTWARE))
    artifact, plan = artifact_key(), plan_key()
    devices, software = GPU_FLIPS[name]
    monkeypatch.setattr(keys, "_accelerators", lambda: keys.accelerator_texts(devices, lambda: software))
    check_only("accelerators", artifact, artifact_key())
    check_only("accelerators", plan, plan_key())


@pytest.mark.parametrize(("code", "answer"), [(0, "13000"), (1, "unknown (RuntimeError)")])
def test_the_driver_says_its_version(code: int, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's own library is asked: PyTorch has no function for it."""

    class Library:
        def cuDriverGetVersion(self, place: Any) -> int:
            place._obj.value = 13000
            return code

    monkeypatch.setattr(keys.ctypes, "CDLL", lambda name: {"libcuda.so.1": Library()}[name])
    assert keys.answer_of(keys._driver_version) == answer


def test_the_software_under_gpus_is_asked_for_without_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What cannot be had says so and raises nothing: PyTorch without CUDA, no driver, a cuDNN that does not fit."""
    assert set(keys._accelerator_software()) == set(SOFTWARE)
    for error in (AttributeError, OSError, RuntimeError):

        def fail(error: type[Exception] = error) -> object:
            raise error("no")

        assert keys.answer_of(fail) == f"unknown ({error.__name__})"
    (tmp_path / "version").write_text("570.86.15\n")
    assert keys.answer_of((tmp_path / "version").read_text) == "570.86.15"


def test_a_machine_without_gpus_asks_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading cuDNN takes time."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(keys, "_accelerator_software", lambda: pytest.fail("asked"))
    assert keys._accelerators() == []


def test_the_processor_is_known_by_its_features() -> None:
    """Its model's name, and on x86 its flags: code may use any of them."""
    text = keys._processor()
    assert platform.machine() in text
    assert platform.machine() != "x86_64" or " avx" in text or " sse2" in text


# --- Plans ------------------------------------------------------------------------------------------------------------

GRAPH = reading("ab", {"a": torch.ones(2), "b": torch.ones(2)})

PLAN_FLIPS: dict[str, dict[str, Any]] = {
    "graph": {"graph": reading("a", {"a": torch.ones(2)})},
    "mutated": {"graph": replace(GRAPH, mutated=("x",))},
    "constants": {"graph": replace(GRAPH, weights=("x",))},
    "pinned": {"graph": replace(GRAPH, pinned={"s0": "sizes"})},
    "is_part": {"graph": replace(GRAPH, is_part=True)},
    "mode": {"mode": "forward"},
    "threads": {"threads": 3},
    "cores": {"cores": 99},
    "effort": {"effort": "full"},
    "backends": {"entries": [replace(ENTRY, package_version="2.0")]},
}
OPTIONS_FLIPS: dict[str, Any] = {
    "backends": ("toy",),
    "exclude": ("toy",),
    "force": {"aten.add": "eager"},
    "threads": 5,
    "accuracy": 1e-3,
    "cuda_graphs": True,
    "workers.compile_limit_s": 5.0,
    "workers.memory_limit_gb": 1.0,
    "workers.output_limit_mb": 1.0,
    "own": {"toy": {"level": 1}},
}
"""Options that change which plan is best, or may be chosen."""
EFFECTLESS: dict[str, Any] = {
    "strict": True,
    "shadow": 0.5,
    "renew": True,
    "tune": "full",
    "budget_s": 1.0,
    "isolate": False,
    "background": False,
    "start": "wait",
    "plan": Path("p.json"),
    "debug_dir": Path("d"),
    "workers.count": 1,
    "cache.dir": Path("c"),
    "cache.gb": 1.0,
}
"""Other values for the options that do not; `WITHOUT_EFFECT` says why each does not."""
COMPILED_IN = {"threads": 5, "accuracy": 1e-3, "tune": "full", "own": {"triton": {"interpret": True}}}
"""Options that reach the compiler."""


def plan_key(**changes: Any) -> dict[str, str]:
    given = {"graph": GRAPH, "mode": "inference", "options": Options(), "threads": 2, "effort": "fast", "entries": [ENTRY]}
    cores = changes.pop("cores", None)
    before = keys.available_cores
    keys.available_cores = before if cores is None else lambda: cores
    try:
        parts = plan_parts(**{**given, **changes})
    finally:
        keys.available_cores = before
    return {name: digest_of({"": value}) for name, value in parts.items()} | {"": digest_of(parts)}


@pytest.mark.parametrize("name", PLAN_FLIPS)
def test_every_part_is_in_a_plans_key(name: str) -> None:
    """The key contains what is planned, with which backends, and on how much of the machine."""
    check_only(name, plan_key(), plan_key(**PLAN_FLIPS[name]))


@pytest.mark.parametrize("name", OPTIONS_FLIPS)
def test_options_that_change_the_plan_are_in_its_key(name: str) -> None:
    """Each of them."""
    check_only("options", plan_key(), plan_key(options=options_with(name, OPTIONS_FLIPS[name])))


@pytest.mark.parametrize("name", EFFECTLESS)
def test_options_that_change_no_plan_are_not_in_its_key(name: str) -> None:
    """Else a plan would be lost with every folder that is written to."""
    assert plan_key() == plan_key(options=options_with(name, EFFECTLESS[name]))


def test_every_option_is_flipped_or_declared_without_effect() -> None:
    """One that is added needs a value here that changes a plan's key, or a reason why it changes none."""
    assert {*KEYS, "own"} == {*OPTIONS_FLIPS, *WITHOUT_EFFECT}
    assert set(EFFECTLESS) == set(WITHOUT_EFFECT)
    assert not set(OPTIONS_FLIPS) & set(WITHOUT_EFFECT)
    assert all(WITHOUT_EFFECT.values())
    assert plan_key() == plan_key(options=Options(origins={"threads": "elsewhere"}))


def test_the_page_names_every_option_without_effect() -> None:
    """Readers learn there which options make no new plan."""
    page = Path(__file__).parents[2] / "docs" / "explanation" / "caches.md"
    (row,) = (line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| options |"))
    assert [name for name in WITHOUT_EFFECT if "." not in name and f"`{name}`" not in row] == []


def options_with(name: str, value: Any) -> Options:
    """Return options in which one setting, of a table by its full name, has another value."""
    table, dot, inner = name.partition(".")
    if not dot:
        return Options(**{name: value})
    return Options(**{table: {"workers": WorkerSettings, "cache": CacheSettings}[table](**{inner: value})})


def compiled_key(options: Options) -> dict[str, str]:
    """Return the digest of each part of what Triton compiles under some options."""
    found = registry().configured(options)
    threads = options.threads or 2
    sample = Sample(GRAPH, ())
    session, here = Session(sample, threads, limits_of(options.workers)), InProcess(sample, found)
    context = PlanningContext(
        sample, options, threads, found, Path(), Measurements.open(Path("m"))[0], Progress(), session, here
    )
    return artifact_key(found.entries["triton"], context.settings(busy_wait=False))


@pytest.mark.parametrize("name", sorted({*KEYS, "own"}))
def test_options_that_reach_the_compiler_are_in_an_executables_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no others: what was compiled serves every plan that wants it."""
    monkeypatch.chdir(tmp_path)
    given = {**OPTIONS_FLIPS, **EFFECTLESS, **COMPILED_IN}[name]
    before, after = compiled_key(Options()), compiled_key(options_with(name, given))
    changed = {part for part in before if before[part] != after[part]}
    part = "backend_settings" if name == "own" else "settings"
    assert changed == ({part, ""} if name in COMPILED_IN else set())


def test_a_key_is_the_same_in_every_process() -> None:
    """Nothing in it depends on the order of sets, on addresses, or on when it is made."""
    import subprocess

    code = (
        "from hub.discovery.registry import registry; from hub.plugin.backend import CompileSettings\n"
        "from hub.cache.keys import artifact_parts, digest_of\n"
        "for entry in registry().entries.values():\n"
        "    print(digest_of(artifact_parts('c', entry, CompileSettings(threads=2))))"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == len(registry().entries)
