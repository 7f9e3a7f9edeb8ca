"""Lowering: the ONNX model holds the device's operators only and computes what eager does; refusals say why."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional

from hub.errors import CompileError
from hub.testing.single import capture, whole_cluster
from plugin_mdla.emit import device_outputs, onnx_model
from plugin_mdla.lower import lower
from plugin_mdla.program import KINDS
from plugin_mdla.support import OPERATORS
from tests.plugin_mdla.nets import Bottleneck, Fire, Inception, Inverted, Residual


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., object], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(*self.layers, *inputs)


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


X = image(2, 4, 9, 8)
NETS: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
    "conv": (nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), groups=2), (X,)),
    "same padding of an even kernel": (nn.Conv2d(4, 6, (2, 4), padding="same"), (X,)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2, dilation=2), (X,)),
    "norm folded into conv": (nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6, eps=0.3)), (X,)),
    "norm folded into transposed": (nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2), nn.BatchNorm2d(6)), (X,)),
    "norm folded into linear": (nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)), (image(3, 5),)),
    "norm alone": (nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4)), (X,)),
    "norm beside another reader": (
        Function(lambda conv, norm, x: (lambda y: norm(y) + y)(conv(x)), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)),
        (X,),
    ),
    "linear alone is Gemm": (nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 2)), (image(3, 5),)),
    "linear after an image": (nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3), nn.ReLU()), (X,)),
    "max pool": (nn.MaxPool2d((3, 2), (1, 2), (1, 0)), (X,)),
    "means without pads": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (X,)),
    "means with pads": (nn.AvgPool2d((3, 2), 1, (1, 1)), (X,)),
    "adaptive": (nn.AdaptiveAvgPool2d((3, 4)), (X,)),
    "global": (Function(lambda x: x.mean([2, 3])), (X,)),
    "upsample": (nn.Upsample(scale_factor=(2, 3)), (X,)),
    "functions": (
        Function(lambda x: torch.sigmoid(functional.leaky_relu(x, 0.2)) * torch.tanh(x) + functional.silu(x)),
        (X,),
    ),
    "relu6": (Function(lambda x: functional.relu6(x * 9)), (X,)),
    "constants": (Function(lambda x: 2 - (x * -3 + 1).sub(x, alpha=2)), (X,)),
    "gates": (Function(lambda conv, x: x * torch.sigmoid(conv(x.mean([2, 3], keepdim=True))), nn.Conv2d(4, 4, 1)), (X,)),
    "two inputs, three outputs": (
        Function(lambda x, y: (x + y, torch.cat([x, y], 1), (x - y).relu())),
        (X, image(2, 4, 9, 8)),
    ),
    "an input passes through": (Function(lambda x, y: (x.relu(), y.relu(), x.mean((2, 3)))), (X, image(2, 3))),
    "resnet": (nn.Sequential(Residual(4, 6, 2), Residual(6, 6, 1)), (X,)),
    "bottleneck": (Bottleneck(4, 3, 2), (X,)),
    "squeezenet": (Fire(4, 2, 5), (X,)),
    "mobilenet": (nn.Sequential(Inverted(4, 4, 1), Inverted(4, 6, 2)), (X,)),
    "inception": (Inception(4, 3), (X,)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("name", NETS)
def test_the_model_computes_what_eager_does(name: str) -> None:
    """ONNX of the device's operators, checked by onnx, gives eager's results in another runtime."""
    torch.manual_seed(1)
    module, inputs = NETS[name]
    for layer in module.modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
            layer.weight.data.normal_()
    cluster, values = whole_cluster(module.eval(), inputs)
    refused = [
        answer.reason for answer in map(OPERATORS.supports, capture(module, inputs).graph.nodes) if not answer.accepted
    ]
    assert [reason for reason in refused if "getitem" not in reason] == []
    program = lower(cluster)
    model = onnx_model(program)
    onnx.checker.check_model(model, full_check=True)
    assert {node.op_type for node in model.graph.node} <= set(KINDS)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    shapes = program.inputs
    fed = {name: value.reshape(shapes[name]).numpy() for name, value in zip(cluster.input_names, values, strict=True)}
    found = dict(zip(device_outputs(program), session.run(None, fed), strict=True))
    for output, wanted in zip(program.outputs, cluster.module(*values), strict=True):
        np.testing.assert_allclose(found[output].reshape(wanted.shape), wanted.detach().numpy(), atol=2e-5, rtol=1e-4)


def test_norms_are_folded_only_where_nobody_else_reads() -> None:
    """A norm after a convolution leaves one layer; with another reader, and alone, it stays."""

    def kinds(name: str) -> list[str]:
        module, inputs = NETS[name]
        return [layer.kind for layer in lower(whole_cluster(module.eval(), inputs)[0]).layers]

    assert kinds("norm folded into conv") == ["Conv"]
    assert kinds("norm folded into linear") == ["Gemm"]
    assert "BatchNormalization" in kinds("norm beside another reader")
    assert kinds("linear alone is Gemm") == ["Gemm", "Tanh", "Gemm"]


REFUSED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, str]] = {
    "ceil mode": (lambda x: functional.max_pool2d(x, 2, ceil_mode=True), X, "ceil_mode=True"),
    "dilated pool": (lambda x: functional.max_pool2d(x, 2, dilation=2), X, "dilation="),
    "divisor": (lambda x: functional.avg_pool2d(x, 2, divisor_override=3), X, "divisor_override=3"),
    "unequal windows": (lambda x: functional.adaptive_avg_pool2d(x, 7), X, "unequal size"),
    "broken ratio": (lambda x: functional.interpolate(x, size=(11, 12)), X, "only whole ratios"),
    "three dims": (lambda x: torch.relu(x), image(2, 3, 4), "3 dims, 2 or 4 here"),
    "double": (lambda x: torch.relu(x), X.double(), "dtype float64"),
    "steep slope": (lambda x: functional.leaky_relu(x, 3.0), X, "negative_slope=3"),
    "rows": (lambda x: torch.cat([x, x], 2), X, "only the channels"),
    "clamp": (lambda x: functional.hardtanh(x), X, "clamp from -1"),
    "broadcast rows": (lambda x: x + x[:, :, :1], X, "one number a channel"),
    "mean of channels": (lambda x: x.mean(1), X, "mean over dims"),
    "weight made at run time": (lambda x: functional.conv2d(x, x[:, :, :3, :3] * 2), X, "weight is computed at run time"),
    "flattened for others": (lambda x: torch.flatten(x, 1).relu(), X, "reads the flattened image"),
    "long sums": (nn.Linear(70_000, 1), torch.ones(1, 70_000), "sums of 70000 products"),
    "softmax": (lambda x: torch.softmax(x, 1), X, "not in the operator table"),
    "empty": (lambda x: torch.relu(x), X[:0], "empty tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name: str) -> None:
    """What the device does not take is refused with the reason in numbers."""
    function, x, reason = REFUSED[name]
    module = function if isinstance(function, nn.Module) else Function(function)
    graph = capture(module, (x,)).graph
    reasons = [answer.reason for answer in map(OPERATORS.supports, graph.nodes) if not answer.accepted]
    assert any(reason in found for found in reasons), reasons


def test_symbolic_sizes_are_refused() -> None:
    """The device is compiled for one size."""
    graph = capture(nn.ReLU(), (X,), dynamic=True).graph
    (answer,) = [OPERATORS.supports(node) for node in graph.nodes if "relu" in str(node.target)]
    assert "symbolic dims" in answer.reason


def test_a_weight_that_is_an_input_does_not_compile() -> None:
    """A cluster that slipped through says which node."""
    from hub.testing.conformance.draw import Drawing

    drawing = Drawing()
    node = drawing.call("aten.linear.default", drawing.input(image(2, 3)), drawing.input(image(4, 3)))
    with pytest.raises(CompileError, match="weight is not a constant") as caught:
        lower(drawing.cluster("c", [node]))
    assert caught.value.node == node.name
