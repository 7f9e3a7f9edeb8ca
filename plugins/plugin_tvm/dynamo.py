"""`torch.compile(model, backend="hub-tvm")`: the hub with this backend alone."""

from __future__ import annotations

from hub.plugin import restricted

hub_tvm = restricted("tvm")
