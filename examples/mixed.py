"""One model on three backends: convolutions on OpenVINO, attention on ONNX Runtime, the rest on the cheapest backend."""

from typing import Any

import torch

import hub


class Net(torch.nn.Module):
    """A convolutional stem, one attention layer, and a normalising head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 64, 7, stride=4, padding=3)
        self.attention = torch.nn.MultiheadAttention(64, 4, batch_first=True)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return class probabilities [B, 10] of images [B, 3, H, W]."""
        x = torch.relu(self.stem(image)).flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return torch.fft.rfft(self.head(x).mean(1)).abs().softmax(-1)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


model = Net().eval()
force = {"aten.conv2d": "openvino", "aten.scaled_dot_product_attention": "onnxruntime"}
options: dict[str, Any] = {"force": force}
compiled = torch.compile(model, backend="hub", options=options)  # pyright: ignore[reportUnknownMemberType] - torch's
with torch.no_grad():
    image = torch.randn(4, 3, 96, 96)
    compiled(image)  # answers immediately, in eager
    hub.wait(compiled)
    print("largest difference from eager:", float((compiled(image) - model(image)).abs().max()))
print(hub.plans(compiled)[0])
