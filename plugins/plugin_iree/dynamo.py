"""`torch.compile(model, backend="hub-iree")`: the hub with this backend alone."""

from __future__ import annotations

from hub.plugin import restricted

hub_iree = restricted("iree")
