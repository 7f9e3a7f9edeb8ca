"""The first launch of each kind goes through Triton, further ones through the handle that it gave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from torch import fx
from torch.nn import functional as F

from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster, ScalarSpec, TensorSpec
from hub.testing.single import whole_cluster
from hub.toolkit.cluster import lower
from plugin_triton.backend import create
from plugin_triton.interpreter import loaded
from plugin_triton.launch import Launcher, with_launchers
from plugin_triton.runtime import build
from plugin_triton.settings import Settings
from plugin_triton.source import file_of
from plugin_triton.targets import Target, source_of
from tests.plugin_disc.programs import PROGRAMS, Wrapped, inputs_of

# --- Stand-ins for Triton's functions and handles ---------------------------------------------------------------------


class Handle:
    """A compiled kernel that notes its launches."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments: self.launches.append((grid, *arguments))


class Function:
    """A kernel with memory, a size and a block size, that compiles one handle each time that it is called."""

    arg_names = ("memory", "size", "BLOCK")

    def __init__(self, compiled: Callable[[], Any] = Handle) -> None:
        self.compiled = compiled
        self.handles: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*_: Any, **options: Any) -> Any:
            assert options == {"BLOCK": 64, "num_warps": 4}
            self.handles.append(self.compiled())
            return self.handles[-1]

        return launch


def launch(launcher: Launcher, memory: torch.Tensor, size: Any = 16, grid: tuple[int, ...] = (3,)) -> None:
    """Launch as a file of kernels does."""
    launcher[grid](memory, size, BLOCK=64, num_warps=4)


ALIGNED = torch.zeros(64)


def test_further_launches_go_through_the_handle() -> None:
    """With all that the kernel is handed, its constants too, and three numbers of programs."""
    function = Function()
    launcher = Launcher(function)
    for size, grid in ((16, (3,)), (32, (5,)), (48, (7, 2))):
        launch(launcher, ALIGNED, size, grid)
    (handle,) = function.handles
    assert handle.launches == [((5, 1, 1), ALIGNED, 32, 64), ((7, 2, 1), ALIGNED, 48, 64)]


def test_memory_that_begins_elsewhere_has_a_handle_of_its_own() -> None:
    """Triton reads what begins at a multiple of 16 bytes in larger pieces."""
    function = Function()
    launcher = Launcher(function)
    for offset in (0, 1, 4, 3, 0, 1):
        launch(launcher, ALIGNED[offset:])
    assert [len(handle.launches) for handle in function.handles] == [2, 2]


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        (16, 4096, 1),
        (17, 18, 1),
        (16, 17, 2),
        (1, 17, 2),
        (0, 16, 1),
        ((1 << 31) - 16, 1 << 31, 2),
        (1 << 31, 1 << 40, 1),
        (-(1 << 31), -(1 << 32), 2),
        (0.5, 1.0, 1),
        (True, False, 1),
        (True, 1, 2),
    ],
)
def test_numbers_that_triton_compiles_for(first: float, second: float, count: int) -> None:
    """1, multiples of 16, and what fits into 32 bits."""
    function = Function()
    launcher = Launcher(function)
    for size in (first, second, first, second):
        launch(launcher, ALIGNED, size)
    assert len(function.handles) == count


def test_what_triton_raises_comes_through_and_is_tried_again() -> None:
    """A kernel that was not compiled has no handle."""
    answers: Iterator[Any] = iter([ValueError("too much shared memory"), Handle()])

    def compiled() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    launcher = Launcher(Function(compiled))
    with pytest.raises(ValueError, match="too much"):
        launch(launcher, ALIGNED)
    launch(launcher, ALIGNED)
    launch(launcher, ALIGNED)


def test_what_a_handle_raises_comes_through() -> None:
    """As from Triton."""

    class Broken(Handle):
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            raise RuntimeError("an illegal memory access")

    launcher = Launcher(Function(Broken))
    launch(launcher, ALIGNED)
    with pytest.raises(RuntimeError, match="illegal"):
        launch(launcher, ALIGNED)


def test_a_kernel_that_a_hook_keeps_from_being_compiled_has_no_handle() -> None:
    """Triton then gives none."""
    function = Function(lambda: None)
    launcher = Launcher(function)
    launch(launcher, ALIGNED)
    launch(launcher, ALIGNED)
    assert len(function.handles) == 2


def test_a_kernel_that_is_compiled_on_the_side_is_waited_for() -> None:
    """Triton gives what is to come while the user has it compile so."""
    handle = Handle()
    launcher = Launcher(Function(lambda: SimpleNamespace(result=lambda: handle)))
    launch(launcher, ALIGNED)
    launch(launcher, ALIGNED)
    assert len(handle.launches) == 1


def test_threads_have_a_kernel_compiled_once() -> None:
    """Those that come while it is being compiled wait for it."""
    count = 8
    begin, arrived = threading.Barrier(count), threading.Event()

    def compiled() -> Handle:
        arrived.wait(0.2)
        return Handle()

    function = Function(compiled)
    launcher = Launcher(function)

    def run(_: int) -> None:
        begin.wait()
        launch(launcher, ALIGNED)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))
    (handle,) = function.handles
    assert len(handle.launches) == count - 1


# --- Files ------------------------------------------------------------------------------------------------------------


def test_kernels_of_a_file_are_launched_so_and_what_they_call_stays(tmp_path: Path) -> None:
    """The text is as it was."""
    cluster, _ = whole_cluster(Wrapped(lambda x: x.amax(1)), (torch.randn(3, 5),))
    path = tmp_path / "kernels.py"
    path.write_text(file_of(cluster, lower(cluster), is_interpreted=False).text)
    module = with_launchers(loaded(path, is_interpreted=False))
    assert isinstance(module.k0, Launcher)
    assert isinstance(module.row_max, triton.JITFunction)


def test_the_interpreter_is_called_as_before() -> None:
    """There are no handles."""
    cluster, _ = whole_cluster(Wrapped(torch.relu), (torch.randn(3, 5),))
    executable = create(Settings(interpret=True)).compile(cluster, CompileSettings(threads=1))
    assert not isinstance(executable._call.__globals__["k0"], Launcher)  # pyright: ignore[reportAttributeAccessIssue]


# --- Triton itself, before a GPU that is not there --------------------------------------------------------------------


class Driver:
    """A substitute for a GPU: kernels are compiled for it, and launches are recorded."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.launches: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []
        """What was compiled, the programs along each axis, and what these are handed."""
        self.utils = SimpleNamespace(
            get_device_properties=lambda _: {"max_shared_mem": 232448},
            load_binary=lambda *_: (None, "function", 0, 0, 1024),
        )

    def get_current_target(self) -> Any:
        return self.target.triton

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(x: int, y: int, z: int, stream: int, function: str, *rest: Any) -> None:
            assert (stream, function) == (0, "function")
            self.launches.append((source, (x, y, z), rest[4:]))

        return launch


@pytest.fixture
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Driver]:
    """Make Triton take a GPU for the current one."""
    stand_in = Driver(Target.parse(getattr(request, "param", "cuda:90")))
    monkeypatch.setattr(triton.runtime.driver, "_active", stand_in)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    yield stand_in


def scaled(dtype: torch.dtype) -> tuple[Cluster, Sequence[Any]]:
    """Return x * number, a number that is known at the call."""
    graph = fx.Graph()
    value, number = graph.placeholder("x"), graph.placeholder("number")
    result = graph.call_function(torch.ops.aten.mul.Scalar, (value, number))
    graph.output((result,))
    value.meta["val"] = result.meta["val"] = torch.empty(7, dtype=dtype, device="meta")
    number.meta["val"] = 0.1
    spec = TensorSpec((7,), (1,), dtype, torch.device("cpu"))
    cluster = Cluster(
        "c0",
        fx.GraphModule(torch.nn.Module(), graph),
        (result.name,),
        ("x", "number"),
        (result.name,),
        (spec, ScalarSpec("float", 0.1)),
        (spec,),
    )
    return cluster, (torch.arange(7, dtype=dtype), 0.1)


def attention() -> tuple[Cluster, Sequence[Any]]:
    """Return a batch of attention, with a mask of booleans."""
    heads = torch.randn(2, 3, 33, 16)
    mask = torch.ones(33, 33, dtype=torch.bool)
    return whole_cluster(
        Wrapped(lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m) @ q.transpose(-1, -2)), (heads, mask)
    )


def embedding() -> tuple[Cluster, Sequence[Any]]:
    """Return rows at indices that may be out of range."""
    return whole_cluster(Wrapped(lambda i, w: F.embedding(i, w).exp()), (torch.arange(9), torch.randn(11, 5)))


def dynamic() -> tuple[Cluster, Sequence[Any]]:
    """Return a case whose sizes are known at the call."""
    return whole_cluster(Wrapped(PROGRAMS["residual_norm"]), inputs_of("residual_norm", 6, 25), dynamic=True)


CLUSTERS: Mapping[str, Callable[[], tuple[Cluster, Sequence[Any]]]] = {
    "number": lambda: scaled(torch.float64),
    "attention": attention,
    "embedding": embedding,
    "dynamic": dynamic,
}


def known(attributes: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what the compiler knows about arguments, without those about which it knows nothing."""
    return {place: told for place, told in attributes.items() if told}


@pytest.mark.parametrize("driver", ["cuda:90", "hip:gfx942"], indirect=True)
@pytest.mark.parametrize("name", CLUSTERS)
def test_what_is_compiled_for_a_gpu_that_is_not_here_is_what_a_launch_compiles(
    name: str, driver: Driver, tmp_path: Path
) -> None:
    """The same types, the same constants, the same promises."""
    cluster, inputs = CLUSTERS[name]()
    file = file_of(cluster, lower(cluster), is_interpreted=False)
    path = tmp_path / "kernels.py"
    path.write_text(file.text)
    module = loaded(path, is_interpreted=False)
    module.call(*inputs, torch.device("cpu"))
    assert len(driver.launches) == len(file.kernels)
    for (launched, _, _), kernel in zip(driver.launches, file.kernels, strict=True):
        wanted = source_of(getattr(module, kernel.name), kernel, file, driver.target)
        assert dict(launched.signature) == dict(wanted.signature)
        assert launched.constants == wanted.constants
        assert known(launched.attrs) == known(wanted.attrs)
        sizes = {kind for name, kind in launched.signature.items() if name[0] == "n"}
        assert sizes <= {"i64"}, "products of such sizes would have 32 bits"


def test_numbers_are_handed_over_in_float64(driver: Driver, tmp_path: Path) -> None:
    """Triton would round them to float32 by itself: 0.1 is another number there."""
    cluster, inputs = scaled(torch.float64)
    path = tmp_path / "kernels.py"
    path.write_text(file_of(cluster, lower(cluster), is_interpreted=False).text)
    loaded(path, is_interpreted=False).call(*inputs, torch.device("cpu"))
    ((launched, _, arguments),) = driver.launches
    assert launched.signature["i1"] == "fp64"
    assert arguments[list(launched.signature).index("i1")] == 0.1


@pytest.mark.parametrize("name", ["embedding", "dynamic"])
def test_a_handle_is_launched_as_triton_launches_it(
    name: str, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same kernel, programs and arguments, memory apart that each call makes anew."""
    cluster, inputs = CLUSTERS[name]()
    path = tmp_path / "kernels.py"
    path.write_text(file_of(cluster, lower(cluster), is_interpreted=False).text)
    module = with_launchers(loaded(path, is_interpreted=False))
    module.call(*inputs, torch.device("cpu"))
    first = list(driver.launches)
    driver.launches.clear()
    monkeypatch.setattr(triton.JITFunction, "run", None)
    module.call(*inputs, torch.device("cpu"))
    assert len(driver.launches) == len(first)
    for (source, grid, arguments), (once, grid_once, arguments_once) in zip(driver.launches, first, strict=True):
        assert source is once
        assert grid == grid_once
        assert list(map(_shown, arguments)) == list(map(_shown, arguments_once))


def _shown(argument: Any) -> Any:
    return (argument.dtype, argument.shape) if isinstance(argument, torch.Tensor) else argument


@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=str)
def test_numbers_that_are_known_at_the_call(kind: torch.dtype) -> None:
    """What is annotated for launches means nothing to the interpreter."""
    cluster, (values, number) = scaled(kind)
    (found,) = build(cluster)(values, number)
    torch.testing.assert_close(found, values * number, rtol=0.0, atol=0.0)
