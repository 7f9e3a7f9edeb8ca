"""`torch.compile(model, backend="hub-openxla")`: the hub with this backend alone."""

from __future__ import annotations

from hub.plugin import restricted

hub_openxla = restricted("xla")
