"""Language models that generate, of sixteen architectures, small, with seeded weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

hf: Any = transformers
"""Its annotations leave out arguments that its configs take."""
hf.logging.set_verbosity_error()
VOCABULARY, WIDTH, HEADS = 128, 64, 4
_CAUSAL = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_EXPERTS = {
    "num_key_value_heads": HEADS, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 16, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
_STATES = {"mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_BOTH_SIDES = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "decoder_start_token_id": 2,
}  # fmt: skip


def _causal(config: str, **own: Any) -> Callable[[], Any]:
    return lambda: hf.AutoModelForCausalLM.from_config(getattr(hf, config)(**{**_CAUSAL, **own}))


def _t5() -> Any:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=VOCABULARY, d_model=WIDTH, d_kv=16, d_ff=96, num_layers=2, num_heads=HEADS,
            decoder_start_token_id=0, eos_token_id=None,
        )
    )  # fmt: skip


def _bart() -> Any:
    config = hf.BartConfig(**_BOTH_SIDES, max_position_embeddings=256, eos_token_id=None, forced_eos_token_id=None)
    return hf.BartForConditionalGeneration(config)


def _whisper() -> Any:
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(
            **_BOTH_SIDES, num_mel_bins=16, max_source_positions=50, max_target_positions=128, pad_token_id=0,
            bos_token_id=1, eos_token_id=3, begin_suppress_tokens=None, suppress_tokens=None,
        )
    )  # fmt: skip


MODELS: Mapping[str, Callable[[], Any]] = {
    "qwen3": _causal("Qwen3Config", head_dim=16),
    "gemma3": _causal(
        "Gemma3TextConfig", head_dim=16, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "llama": _causal("LlamaConfig"),
    "mixtral": _causal("MixtralConfig", num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v3": _causal("DeepseekV3Config", **_EXPERTS),
    "mamba2": _causal("Mamba2Config", num_heads=8, head_dim=16, state_size=16, n_groups=1, expand=2, chunk_size=8),
    "bamba": _causal("BambaConfig", attn_layer_indices=[1], mamba_n_heads=8, mamba_expand=2, **_STATES),
    "falcon_h1": _causal("FalconH1Config", mamba_d_ssm=64, mamba_n_heads=4, head_dim=16, **_STATES),
    "t5": _t5,
    "bart": _bart,
    "whisper": _whisper,
    "gpt2": _causal("GPT2Config", n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=256),
    "phi": _causal("PhiConfig", num_key_value_heads=HEADS),
    "olmo2": _causal("Olmo2Config"),
    "recurrent_gemma": _causal(
        "RecurrentGemmaConfig", num_hidden_layers=3, lru_width=WIDTH, attention_window_size=8, head_dim=16,
        block_types=["recurrent", "recurrent", "attention"],
    ),
    "lfm2": _causal("Lfm2Config", layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
}  # fmt: skip


def built(name: str) -> Any:
    """Return one of the models in eval mode, with the same weights each time."""
    torch.manual_seed(0)
    return MODELS[name]().eval()


def prompt(name: str, length: int = 12) -> dict[str, torch.Tensor]:
    """Return inputs of `generate`: two prompts of so many tokens, or two sounds."""
    generator = torch.Generator().manual_seed(1)
    if name == "whisper":
        return {"input_features": torch.randn(2, 16, 100, generator=generator)}
    return {"input_ids": torch.randint(4, VOCABULARY, (2, length), generator=generator)}
