"""Ways to train and to differentiate around and inside compiled models: each matches eager, run by backends."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch._dynamo import config
from torch._dynamo.exc import Unsupported
from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import hub
from hub.plan import TROUBLE

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),  # Inductor's own imports
]

Function = Callable[..., Any]
X = torch.linspace(-1, 1, 24).reshape(4, 6)
TRAINS = ["disc", pytest.param("inductor", marks=pytest.mark.slow)]
SERVES = ["disc", "onnxruntime"]


class Net(nn.Module):
    """Two blocks, the second of which may be run again in the backward pass."""

    def __init__(self, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 3)
        self.is_checkpointed = is_checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = checkpoint(self.second, x, use_reentrant=False) if self.is_checkpointed else self.second(x)
        return self.head(x)


def compiled(function: Function, backend: str, **settings: Any) -> Any:
    """Compile for one backend of the hub, or with a backend of PyTorch's."""
    if backend == "aot_eager":
        return torch.compile(function, backend=backend, **settings)
    return torch.compile(function, backend="hub", options={"tune": "off", "backends": (backend,)}, **settings)


def close(found: Any, expected: Any) -> None:
    """Raise AssertionError unless all tensors equal eager's within the difference between two summation orders."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def modes_of(call: Any, backend: str) -> set[str]:
    """Return the kinds of graphs in which a backend runs clusters."""
    return {plan.mode for plan in hub.plans(call) if backend in plan.backends}


def step(call: Function, model: nn.Module, x: torch.Tensor = X) -> list[torch.Tensor]:
    """Return the loss of one step and every gradient, and move the weights along them."""
    model.zero_grad()
    loss = call(x).square().mean()
    loss.backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert len(gradients) == len(list(model.parameters()))
    with torch.no_grad():
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.sub_(0.1 * gradient)
    return [loss.detach(), *(gradient.clone() for gradient in gradients)]


def check_trains(call: Function, model: nn.Module, eager: Function, twin: nn.Module) -> None:
    """Raise AssertionError unless three steps follow eager's, including buffers."""
    for _ in range(3):
        close(step(call, model), step(eager, twin))
        close(list(model.buffers()), list(twin.buffers()))


# --- Checkpointing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", TRAINS)
def test_a_checkpointed_block_inside(backend: str) -> None:
    """Loss and gradients are eager's; less is saved for the backward pass, in which the block runs again."""
    model, plain = Net(is_checkpointed=True), Net()
    plain.load_state_dict(model.state_dict())
    n_kept: dict[bool, int] = {}
    for network in (model, plain):
        twin = copy.deepcopy(network)
        call = compiled(network, backend, fullgraph=True)
        check_trains(call, network, twin, twin)
        assert modes_of(call, backend) == {"forward", "backward"}
        n_kept[network.is_checkpointed] = sum(_values(_kept(call(X))))
    assert n_kept[True] < n_kept[False]


def _kept(output: torch.Tensor) -> Iterable[torch.Tensor]:
    """Return what a compiled program saves for its backward pass."""
    node: Any = output.grad_fn
    return [value for value in node.saved_tensors if not isinstance(value, nn.Parameter)]


def _values(tensors: Iterable[torch.Tensor]) -> Iterable[int]:
    return (tensor.numel() for tensor in tensors)


@pytest.mark.parametrize("backend", TRAINS)
def test_a_checkpoint_around_a_compiled_block(backend: str) -> None:
    """The compiled block runs twice a step, and its gradients are eager's."""
    model = Net()
    twin, call = copy.deepcopy(model), compiled(model, backend)
    check_trains(lambda x: checkpoint(call, x, use_reentrant=False), model, twin, twin)
    assert modes_of(call, backend) == {"forward", "backward"}


# --- torch.func -------------------------------------------------------------------------------------------------------


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters()}


def _loss(model: nn.Module) -> Function:
    return lambda weights, x: functional_call(model, weights, (x,)).square().mean()


def _steepness(call: Function) -> Function:
    """Return the gradient of the squared gradient of a loss, large compared with what `close` allows."""

    def slope(x: torch.Tensor) -> torch.Tensor:
        return grad(lambda y: (10 * call(y)).square().sum())(x).square().sum()

    return grad(slope)


INSIDE: dict[str, Callable[[nn.Module], tuple[Function, tuple[Any, ...]]]] = {
    "grad": lambda model: (grad(_loss(model)), (_weights(model), X)),
    "vmap": lambda model: (vmap(lambda row: model(row)), (X,)),  # Dynamo cannot name a module that is mapped itself
    "grad of each sample": lambda model: (vmap(grad(_loss(model)), in_dims=(None, 0)), (_weights(model), X)),
    "functional_call": lambda model: (_loss(model), ({name: 2 * w for name, w in _weights(model).items()}, X)),
    "vjp": lambda model: (lambda x, v: vjp(model, x)[1](v), (X, torch.ones(4, 3))),
    "jvp": lambda model: (lambda x, v: jvp(model, (x,), (v,)), (X, torch.ones(4, 6))),
    "jacrev": lambda model: (jacrev(model), (X,)),
    "second derivative": lambda model: (_steepness(model), (X,)),
}


@pytest.mark.parametrize("transform", INSIDE)
@pytest.mark.parametrize("backend", SERVES)
def test_a_transform_inside(transform: str, backend: str) -> None:
    """What aot_eager captures in one graph, the hub captures and a backend runs, with eager's result."""
    model = Net().requires_grad_(False)
    function, inputs = INSIDE[transform](model)
    expected = function(*inputs)
    close(compiled(function, "aot_eager", fullgraph=True)(*inputs), expected)
    torch._dynamo.reset()
    call = compiled(function, backend, fullgraph=True)
    for _ in range(2):
        close(call(*inputs), expected)
    assert modes_of(call, backend) == {"inference"}


AROUND: dict[str, Callable[[Function, nn.Module], Any]] = {
    "grad": lambda call, model: grad(lambda x: call(x).square().mean())(X),
    "vmap": lambda call, model: vmap(call)(X),
    "jvp": lambda call, model: jvp(call, (X,), (torch.ones(4, 6),)),
    "jacrev": lambda call, model: jacrev(call)(X),
    "second derivative": lambda call, model: _steepness(call)(X),
    "functional_call": lambda call, model: functional_call(
        call if isinstance(call, nn.Module) else model,
        {f"{'_orig_mod.' if call is not model else ''}{name}": 2 * w for name, w in _weights(model).items()},
        (X,),
    ),
}


@pytest.mark.parametrize("transform", AROUND)
@pytest.mark.parametrize("backend", SERVES)
def test_a_transform_around(transform: str, backend: str) -> None:
    """A model that is compiled and has a plan is differentiated and mapped as eager is, and continues to serve."""
    model = Net().requires_grad_(False)
    expected, transformed = model(X), AROUND[transform](model, model)
    call = compiled(model, backend)
    close(call(X), expected)
    for _ in range(2):
        close(AROUND[transform](call, model), transformed)
    close(call(X), expected)
    assert modes_of(call, backend) == {"inference"}


@pytest.mark.parametrize("backend", ["aot_eager", *TRAINS])
def test_double_backward_is_pytorchs_error(backend: str) -> None:
    """A gradient of a compiled model has no gradient of its own: PyTorch raises, as with each of its backends."""
    call, x = compiled(Net(), backend), X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("backend", [*TRAINS, "onnxruntime"])
def test_a_batch_of_gradients(backend: str, is_first: bool) -> None:
    """One backward for many gradients is eager's, before and after the plan is made, and the plan goes on without it."""
    model = Net()
    call = compiled(model, backend)
    x = X.clone().requires_grad_()
    gradients = torch.randn(5, 4, 3)
    for turn in range(2):
        if turn or not is_first:
            call(x).sum().backward()
        found = torch.autograd.grad(call(x), x, gradients, is_grads_batched=True)
        close(found, torch.autograd.grad(model(x), x, gradients, is_grads_batched=True))
    assert "backward" in modes_of(call, backend)
    assert not [event for plan in hub.plans(call) for event in plan.events if event.kind in TROUBLE]


# --- Other processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Create a group of one process."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("backend", TRAINS)
def test_a_model_that_is_trained_in_parallel(backend: str) -> None:
    """`DistributedDataParallel` around a model that is then compiled: losses and gradients are eager's."""
    model = Net()
    twin, call = copy.deepcopy(model), compiled(DistributedDataParallel(model), backend)
    check_trains(call, model, twin, twin)
    assert modes_of(call, backend) == {"forward", "backward"}


# --- Hooks and parametrizations ---------------------------------------------------------------------------------------


def _with_hooks(model: nn.Module) -> nn.Module:
    model.first.register_forward_hook(lambda module, inputs, output: 2 * output)
    model.head.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    model.head.weight.register_hook(lambda gradient: 3 * gradient)
    return model


@pytest.mark.parametrize("backend", TRAINS)
def test_hooks_in_training(backend: str) -> None:
    """Hooks of modules inside and of the compiled module itself act as in eager, and so do hooks of gradients."""
    state = Net().state_dict()
    model, twin = _with_hooks(Net()), _with_hooks(Net())
    model.load_state_dict(state)
    twin.load_state_dict(state)
    call = compiled(model, backend)
    check_trains(call, model, twin, twin)
    call.register_forward_hook(lambda module, inputs, output: output - 5)
    check_trains(call, model, lambda x: twin(x) - 5, twin)
    assert modes_of(call, backend) == {"forward", "backward"}


@pytest.mark.parametrize("backend", SERVES)
def test_hooks_that_come_and_go(backend: str) -> None:
    """If PyTorch is set to guard hooks, one that is registered after the first call counts until it is removed."""
    model = Net().requires_grad_(False)
    with config.patch(skip_nnmodule_hook_guards=False):
        call = compiled(model, backend)
        close(call(X), model(X))
        before = model(X)
        handle = model.first.register_forward_hook(lambda module, inputs, output: 2 * output)
        assert not torch.allclose(model(X), before)
        close(call(X), model(X))
        handle.remove()
        close(call(X), before)
    assert modes_of(call, backend) == {"inference"}


PARAMETRIZED: dict[str, Function] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.parametrize("name", PARAMETRIZED)
@pytest.mark.parametrize("backend", TRAINS)
def test_parametrizations_are_trained(name: str, backend: str) -> None:
    """Gradients reach the parameters behind a weight, and a parametrization's counts in buffers continue."""
    model = Net()
    PARAMETRIZED[name](model.head)
    twin = copy.deepcopy(model)
    call = compiled(model, backend)
    check_trains(call, model, twin, twin)
    assert modes_of(call, backend) == {"forward", "backward"}


@pytest.mark.parametrize("name", PARAMETRIZED)
@pytest.mark.parametrize("backend", SERVES)
def test_parametrizations_serve(name: str, backend: str) -> None:
    """A computed weight always follows its current parameters."""
    model = Net().eval().requires_grad_(False)
    PARAMETRIZED[name](model.head)
    call = compiled(model, backend)
    for _ in range(2):
        close(call(X), model(X))
        next(model.head.parametrizations.weight.parameters()).mul_(-1.5)
    assert modes_of(call, backend) == {"inference"}


# --- One graph --------------------------------------------------------------------------------------------------------


def test_fullgraph_means_one_graph() -> None:
    """One plan of each kind if all can be captured; otherwise PyTorch's error, and without fullgraph two plans."""
    model = Net()
    twin, call = copy.deepcopy(model), compiled(model, "disc", fullgraph=True)
    check_trains(call, model, twin, twin)
    assert sorted(plan.mode for plan in hub.plans(call)) == ["backward", "forward"]

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x) * 2
        torch._dynamo.graph_break()
        return torch.exp(x) + 1

    with pytest.raises(Unsupported, match="graph_break"):
        compiled(broken, "onnxruntime", fullgraph=True)(X)
    torch._dynamo.reset()
    call = compiled(broken, "onnxruntime")
    close(call(X), broken(X))
    assert [plan.backends for plan in hub.plans(call)] == [("onnxruntime",)] * 2
