"""Tiny seeded random decoders of many families, made from the classes that transformers ships."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SEED = 20250101
NOISE = 0.05
WIDTHS = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
COMMON = {
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": 127,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Family:
    """One architecture: the prefix of its transformers classes, and what its tiny config says.

    prefix: PrefixConfig and PrefixForCausalLM; settings override WIDTHS and COMMON, and None takes a key out.
    """

    prefix: str
    settings: dict[str, Any] = field(default_factory=dict)
    widths: dict[str, Any] = field(default_factory=lambda: dict(WIDTHS))
    model: str = "{}ForCausalLM"
    config: str = "{}Config"


def config_of(family: Family, implementation: str) -> Any:
    """The family's tiny config."""
    settings = COMMON | family.widths | family.settings
    absent = {key for key, value in family.settings.items() if value is None}
    settings = {key: value for key, value in settings.items() if key not in absent}
    kind = getattr(transformers, family.config.format(family.prefix))
    return kind(**settings, attn_implementation=implementation, dtype="float32")


def build(name: str, implementation: str = "eager") -> Any:
    """The tiny model of the family `name`, in eval mode, float32, the same every time."""
    family = FAMILIES[name]
    config = config_of(family, implementation)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = getattr(transformers, family.model.format(family.prefix))(config)
        with torch.no_grad():
            for parameter in model.parameters():  # norms of ones, biases and sinks of zeros would hide what reads them
                parameter.add_(torch.randn_like(parameter) * NOISE)
    return model.eval()


GPT2_WIDTHS = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}

FAMILIES = {
    "llama": Family("Llama", GROUPED),
    "qwen2": Family("Qwen2", GROUPED),
    "qwen3": Family("Qwen3", GROUPED | {"head_dim": 16}),
    "mistral": Family("Mistral", GROUPED | {"head_dim": 16, "sliding_window": 8}),
    "gemma2": Family("Gemma2", GROUPED | {"head_dim": 16, "sliding_window": 8}),
    "gemma3": Family(
        "Gemma3",
        GROUPED | {"head_dim": 16, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
        config="{}TextConfig",
    ),
    "phi3": Family("Phi3", GROUPED | {"original_max_position_embeddings": 256}),
    "phi": Family("Phi", {"partial_rotary_factor": 0.5}),
    "gpt2": Family("GPT2", widths=GPT2_WIDTHS, model="{}LMHeadModel"),
    "gpt_bigcode": Family("GPTBigCode", widths=GPT2_WIDTHS),
    "gptj": Family("GPTJ", {"rotary_dim": 8}, GPT2_WIDTHS),
    "codegen": Family("CodeGen", {"rotary_dim": 8}, GPT2_WIDTHS),
    "gpt_neox": Family("GPTNeoX"),
    "falcon": Family("Falcon"),
    "falcon_alibi": Family("Falcon", {"alibi": True, "multi_query": False, "bias": True}),
    "bloom": Family("Bloom", widths={"hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "mpt": Family("Mpt", widths={"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 256, "expansion_ratio": 2}),
    "olmo2": Family("Olmo2", GROUPED),
    "granite": Family("Granite", GROUPED | {"attention_multiplier": 0.2}),
    "deepseek_v3": Family(
        "DeepseekV3",
        EXPERTS
        | {
            "num_key_value_heads": 4,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "gpt_oss": Family(
        "GptOss",
        GROUPED | {"head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "mixtral": Family("Mixtral", GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": Family("Qwen2Moe", GROUPED | EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 32}),
    "stablelm": Family("StableLm", GROUPED),
    "cohere": Family("Cohere", GROUPED),
    "starcoder2": Family("Starcoder2", GROUPED | {"sliding_window": 8}),
    "opt": Family("OPT", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "whisper": Family(
        "Whisper",
        {
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "max_source_positions": 30,
            "max_target_positions": 64,
            "num_mel_bins": 16,
            "decoder_start_token_id": 1,
        },
        widths={},
        model="{}ForConditionalGeneration",
    ),
    "lfm2": Family("Lfm2", GROUPED | {"layer_types": ["conv", "full_attention"]}),
    "jamba": Family(
        "Jamba",
        GROUPED
        | {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
    ),
    "bamba": Family("Bamba", GROUPED | MAMBA2 | {"attn_layer_indices": [1]}),
    "granitemoehybrid": Family(
        "GraniteMoeHybrid",
        GROUPED | MAMBA2 | {"layer_types": ["mamba", "attention"], "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "falcon_h1": Family("FalconH1", GROUPED | MAMBA2 | {"mamba_d_ssm": 128}),
    "zamba2": Family(
        "Zamba2",
        {"num_key_value_heads": 4, "layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 8, "mamba_ngroups": 1}
        | {"n_mamba_heads": 4, "chunk_size": 8, "num_mem_blocks": 1},
    ),
    "qwen3_next": Family(
        "Qwen3Next",
        GROUPED
        | EXPERTS
        | {
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 4,
            "shared_expert_intermediate_size": 32,
        },
    ),
}
