"""`torch.compile(model, backend="hub-onnxrt")`: the hub with this backend alone."""

from __future__ import annotations

from hub.dynamo import restricted

hub_onnxrt = restricted("onnxruntime")
