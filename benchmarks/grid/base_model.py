"""The grid's own tiny decoder as a Hugging Face folder, which torch's exporter and genai's builder both start from.

As `builtin:tiny`, but with every product's inner size a multiple of 128, so that blocks of 32 and of 128 weights are
full ones.
"""

from __future__ import annotations

from pathlib import Path

from qbpass.models.export.requirements import quiet, require
from qbpass.models.export.tiny import EOS_TOKEN, byte_tokenizer

SEED = 20261130


def write_base_model(folder: Path) -> None:
    """A Llama of 2 layers, 4 query heads over 2 KV heads of 32, bytes as tokens; the same every time."""
    torch, transformers = require("torch"), require("transformers")
    tokenizer = byte_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(EOS_TOKEN),
        pad_token_id=None,
        dtype="float32",
    )
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        saved = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS_TOKEN)
        saved.save_pretrained(folder)
