"""`builtin:tiny`: a seeded random decoder with grouped queries, small enough to test everything on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qbpass.models.export.loaded import LoadedModel, Progress
from qbpass.models.export.requirements import require

SEED = 20240607
EOS_TOKEN = "<|end|>"
CONTEXT_LENGTH = 512
# Wide enough that greedy text wanders, narrow enough that it comes back to earlier phrases: lookup drafts hit at times.
WEIGHT_STD = 0.1


def load_tiny(implementation: str, progress: Progress) -> LoadedModel:
    """A Llama-like decoder, the same every time: 3 layers, 4 query heads over 2 KV heads, bytes as tokens."""
    progress("making the tiny model", None)
    torch, transformers = require("torch"), require("transformers")
    tokenizer = byte_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT_LENGTH,
        initializer_range=WEIGHT_STD,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(EOS_TOKEN),
        pad_token_id=None,
        attn_implementation=implementation,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = transformers.LlamaForCausalLM(config)
    return LoadedModel(model.eval(), lambda folder: _write_tokenizer(tokenizer, folder))


def byte_tokenizer() -> Any:
    """256 byte tokens and an end token: any text is a prompt and any output is text."""
    tokenizers = require("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS_TOKEN])
    return tokenizer


def _write_tokenizer(tokenizer: Any, folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
