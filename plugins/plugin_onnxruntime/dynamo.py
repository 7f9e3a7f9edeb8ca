"""`torch.compile(model, backend="hub-onnxrt")`: the hub with this backend alone."""

from __future__ import annotations

from hub.plugin import restricted

hub_onnxrt = restricted("onnxruntime")
