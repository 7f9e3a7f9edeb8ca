"""Registers the backend `numpy`. Imports nothing heavy: the hub does this whenever it lists backends."""

from hub.plugin import BackendInfo, OperatorTable, dtypes, hookimpl

NAMES = ("aten.linear.default", "aten.relu.default", "aten.add.Tensor", "aten.tanh.default")
OPERATORS = OperatorTable(dict.fromkeys(NAMES, ()), everywhere=(dtypes("float32"),))
NUMPY = BackendInfo(
    name="numpy",
    factory="hub_numpy.backend:NumpyBackend",
    summary="NumPy, operator by operator: an example",
    requires=("numpy>=1.26",),
    operators="hub_numpy:OPERATORS",
)


@hookimpl
def hub_backends():
    return [NUMPY]
