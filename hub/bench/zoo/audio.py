"""Speech models from `transformers` configs."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from hub.bench.zoo.call import Call

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]

hf: Any = transformers
"""`transformers`, whose annotations omit arguments that its configs take."""


def whisper_encoder(batch: int, *, layers: int = 4, hidden: int = 384, positions: int = 1500) -> Built:
    """Return Whisper's encoder (tiny) on mel bins [batch, 80, 2 * positions]; the output is [batch, positions, hidden]."""
    config = hf.WhisperConfig(
        d_model=hidden,
        encoder_layers=layers,
        encoder_attention_heads=max(2, hidden // 64),
        encoder_ffn_dim=4 * hidden,
        max_source_positions=positions,
        num_mel_bins=80,
    )
    return Call(WhisperEncoder(config), ("input_features",), "last_hidden_state"), (torch.randn(batch, 80, 2 * positions),)


def whisper(
    batch: int, *, layers: int = 4, hidden: int = 384, positions: int = 1500, tokens: int = 16, vocabulary: int = 51865
) -> Built:
    """Return Whisper (tiny): the encoder on mel bins [batch, 80, 2 * positions], the decoder on ids [batch, tokens].

    The output is the decoder's last layer [batch, tokens, hidden].
    """
    heads = max(2, hidden // 64)
    config = hf.WhisperConfig(
        vocab_size=vocabulary,
        d_model=hidden,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * hidden,
        decoder_ffn_dim=4 * hidden,
        max_source_positions=positions,
        num_mel_bins=80,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
    )
    inputs = (torch.randn(batch, 80, 2 * positions), torch.randint(0, vocabulary, (batch, tokens)))
    names = ("input_features", "decoder_input_ids")
    return Call(hf.WhisperModel(config), names, "last_hidden_state", use_cache=False), inputs


def wav2vec2(batch: int, *, layers: int = 4, hidden: int = 384, samples: int = 16000) -> Built:
    """Return a wav2vec 2.0 on sound [batch, samples]; the output is [batch, frames, hidden]."""
    config = hf.Wav2Vec2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 64),
        intermediate_size=4 * hidden,
        conv_dim=(min(hidden, 256),) * 7,
    )
    return Call(hf.Wav2Vec2Model(config), ("input_values",), "last_hidden_state"), (torch.randn(batch, samples),)
