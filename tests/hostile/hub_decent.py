"""A plugin that does nothing wrong: its backend computes with PyTorch itself, and competes with the hostile one."""

from hub import Backend, BackendInfo, Support, hookimpl


@hookimpl
def hub_backends():
    """Register the backend."""
    return [BackendInfo(name="decent", factory="hub_decent:Decent", summary="", dtypes=("float32", "int64", "bool"))]


class Decent(Backend):
    """A backend that supports everything."""

    def supports(self, node):
        return Support(accepted=True)

    def compile(self, cluster, settings):
        return lambda *inputs: [value.clone() for value in cluster.module(*inputs)]
