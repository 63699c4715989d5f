"""What is right to say of each family's attentions, from its architecture; nothing here is read off a result.

A row holds the codes of each attention in layer order, self-attention before cross-attention; an attention without
codes is admitted. The rows are of graphs with decomposed attention. Where an exporter writes each attention as one
operator, FUSED_ATTENTION comes to it, and what speaks of products and of operators between them falls away: there are
none. An attention that has no other code is then admitted by lowering (FUSED_ATTENTION is gone, too).
"""

from __future__ import annotations

Codes = frozenset[str]


def _codes(*names: str) -> Codes:
    return frozenset(names)


ADMITTED = _codes()
WINDOW = _codes("SLIDING_WINDOW")
CROSS = _codes("CROSS_ATTENTION")
LATENT = _codes("LATENT_KV")
# ALiBi: slopes times distances are added to the scores. MPT then fills masked scores in (Where), where others add a
# mask; BLOOM multiplies in three dimensions, heads and batch as one, and gives the scores their fourth behind it.
ALIBI = _codes("BIAS_NOT_MASK")
ALIBI_FILLED = _codes("BIAS_NOT_MASK", "SCORE_OP")
ALIBI_3D = _codes("BIAS_NOT_MASK", "PRODUCT_FORM", "SCORE_OP")
FUSED = "FUSED_ATTENTION"
FUSED_EXPORTERS = frozenset({"dynamo-onnx"})
HYBRID_MAMBA = ("bamba", "granitemoehybrid", "falcon_h1", "zamba2")
OF_PRODUCTS = _codes("PRODUCT_FORM", "SCORE_OP")

ATTENTIONS: dict[str, tuple[Codes, ...]] = {
    "llama": (ADMITTED, ADMITTED),
    "qwen2": (ADMITTED, ADMITTED),
    "qwen3": (ADMITTED, ADMITTED),  # q and k are normalized before the cache
    "mistral": (WINDOW, WINDOW),
    "gemma2": (_codes("SLIDING_WINDOW", "SOFTCAP"), _codes("SOFTCAP")),
    "gemma3": (WINDOW, ADMITTED),
    "phi3": (ADMITTED, ADMITTED),  # one projection for q, k and v
    "phi": (ADMITTED, ADMITTED),  # rotates a part of each head
    "gpt2": (ADMITTED, ADMITTED),
    "gpt_bigcode": (ADMITTED, ADMITTED),  # one KV head
    "gptj": (ADMITTED, ADMITTED),  # rotates a part of each head; keys are joined in the order of the projection
    "codegen": (ADMITTED, ADMITTED),
    "gpt_neox": (ADMITTED, ADMITTED),
    "falcon": (ADMITTED, ADMITTED),  # one KV head
    "falcon_alibi": (ALIBI, ALIBI),
    "bloom": (ALIBI_3D, ALIBI_3D),
    "mpt": (ALIBI_FILLED, ALIBI_FILLED),
    "olmo2": (ADMITTED, ADMITTED),
    "granite": (ADMITTED, ADMITTED),  # a scale of its own
    "deepseek_v3": (LATENT, LATENT),
    "gpt_oss": (_codes("SLIDING_WINDOW", "SINKS"), _codes("SINKS")),
    "mixtral": (ADMITTED, ADMITTED),  # its routers' softmaxes are no attention
    "qwen2_moe": (ADMITTED, ADMITTED),
    "stablelm": (ADMITTED, ADMITTED),
    "cohere": (ADMITTED, ADMITTED),
    "starcoder2": (WINDOW, WINDOW),
    "opt": (ADMITTED, ADMITTED),
    "whisper": (ADMITTED, CROSS, ADMITTED, CROSS),
    "lfm2": (ADMITTED,),
    "bamba": (ADMITTED,),
    "granitemoehybrid": (ADMITTED,),
    "falcon_h1": (ADMITTED, ADMITTED),
    "zamba2": (ADMITTED,),
}

#: Codes that only a family's eager attention has: Falcon's with ALiBi views the scores in the shape they have.
EAGER: dict[str, Codes] = {"falcon_alibi": _codes("SCORE_OP")}

#: Codes that a fused operator's operands show beside: keys of 24, values of 16. Else the latents alone are named.
FUSED_TOO: dict[str, Codes] = {"deepseek_v3": _codes("VALUE_DIM")}

#: Codes of the graph as a whole: what the runtime can't feed, or can't take back. The other families have none.
GRAPHS: dict[str, Codes] = {
    "deepseek_v3": LATENT,
    "whisper": _codes("CROSS_ATTENTION_CACHE"),
    **dict.fromkeys(("lfm2", *HYBRID_MAMBA), _codes("RECURRENT_STATE")),
}

_SDPA = ("dynamo-sdpa", "dynamo-onnx", "torchscript-sdpa")
_TORCHSCRIPT = ("torchscript-eager", "torchscript-sdpa")
_ONE_FORM = "softcaps, sinks and ALiBi: transformers writes this attention as eager alone"
_RANKS = "torch's older exporter fails on repeat_interleave, with which this family rotates"
_MAMBA = "torch's older exporter writes a Transpose with negative axes, which is no ONNX"
_COMPLEX = "torch's older exporter takes ALiBi's bfloat16 for complex128, which is no ONNX"
_ONE_HEAD = "torch's exporter wants as many KV heads as query heads of a broadcast key"

#: (family, exporter) -> why there is no graph to look at.
NOT_EXPORTED: dict[tuple[str, str], str] = {
    **{(family, exporter): _ONE_FORM for family in ("gemma2", "bloom", "mpt", "gpt_oss") for exporter in _SDPA},
    **{("cohere", exporter): _RANKS for exporter in _TORCHSCRIPT},
    **{(family, exporter): _MAMBA for family in HYBRID_MAMBA for exporter in _TORCHSCRIPT},
    **{("falcon_alibi", exporter): _COMPLEX for exporter in _TORCHSCRIPT},
    ("falcon", "dynamo-onnx"): _ONE_HEAD,
}

#: Families whose graphs ONNX Runtime can't load on the CPU, so that there is nothing frozen: ALiBi in bfloat16.
NOT_LOADED = frozenset({"falcon_alibi"})


def expected(family: str, exporter: str) -> list[Codes]:
    """The codes of each attention of `family` as `exporter` (a key of EXPORTERS) writes it, in layer order."""
    rows = ATTENTIONS[family]
    if exporter in FUSED_EXPORTERS:
        found = [(row - OF_PRODUCTS) | FUSED_TOO.get(family, ADMITTED) for row in rows]
        return [row and row | {FUSED} for row in found]
    return [row | EAGER.get(family, ADMITTED) for row in rows] if exporter.endswith("eager") else list(rows)
