"""qbpass.json: what a bundle is, in a schema with a version.

Written and read with pydantic; unknown fields are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qbpass.models.contract import DecoderContract, KVPair
from qbpass.models.recipe import Recipe
from qbpass.rewrites.choice import Choice

MANIFEST_FILE = "qbpass.json"

Emit = Literal["guarded", "specialized", "widths"]

#: A file in the bundle's own folder: a bundle from a stranger can name none outside it.
PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CacheLayer(_Frozen):
    """One layer's cache: rows of (kv_heads, key_dim) and (kv_heads, value_dim) of one element type."""

    layer: int = Field(ge=0)
    past_key: str
    past_value: str
    present_key: str
    present_value: str
    kv_heads: int = Field(ge=1)
    key_dim: int = Field(ge=1)
    value_dim: int = Field(ge=1)
    elem_type: int


class Interface(_Frozen):
    """The decoder's own inputs and outputs (models/contract.py)."""

    input_ids: str
    attention_mask: str | None
    position_ids: str | None
    logits: str
    vocab_size: int = Field(ge=1)
    layers: tuple[CacheLayer, ...]

    @classmethod
    def of(cls, contract: DecoderContract) -> Interface:
        layers = tuple(CacheLayer(**vars(pair)) for pair in contract.kv)
        names = {
            k: getattr(contract, k) for k in ("input_ids", "attention_mask", "position_ids", "logits", "vocab_size")
        }
        return cls(layers=layers, **names)

    def contract(self) -> DecoderContract:
        pairs = tuple(KVPair(**layer.model_dump()) for layer in self.layers)
        return DecoderContract(
            self.input_ids, self.attention_mask, self.position_ids, self.logits, pairs, self.vocab_size
        )


class PlannedSite(_Frozen):
    """One site of the plan, with what was tried on this machine before its form was chosen."""

    name: str
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    qk: str
    av: str
    clip: str = "values"  # what ends at each row's own extent: values, or keys and mask columns, too
    evidence: dict[str, Any]


class PlannedChain(_Frozen):
    """One fused operator that is evaluated query by query, with what was tried on this machine."""

    name: str
    layer: int
    operator: str
    heads: int
    kv_heads: int
    head_dim: int
    evidence: dict[str, Any]


class WeightFile(_Frozen):
    """A file of external weights; its digest is the recipe's. folder: None for the bundle's own, else absolute."""

    folder: str | None
    bytes: int = Field(ge=0)


class PlannedRepair(_Frozen):
    """Operators outside attention whose rows are run apart in the active phases; its kind's evidence is beside it."""

    kind: str
    nodes: tuple[str, ...]  # of each unit the node it is made around
    rows_per_call: int = Field(ge=1, le=64)
    forced: bool


class Manifest(_Frozen):
    schema_version: Literal[1] = 1
    qbpass_version: str
    layout: Literal["qb", "pq", "gs"]
    choice: Choice | None = None  # of `--layout auto`: what else there was, and why this
    whole: dict[str, Any] = {}  # the whole decoder's trial against the reference, before the bundle was written
    phase_mask: int = Field(ge=0, le=15)
    max_queries: int = Field(ge=1, le=64)
    emission: Emit
    exact_extent_modulus: int = Field(ge=1, le=64)
    exact_extent_residues: tuple[int, ...]
    segments: int = Field(ge=1, le=64)
    sites: tuple[PlannedSite, ...]
    chains: tuple[PlannedChain, ...] = ()
    head: Literal["all", "asked"]  # logits of every row of a call, or from the row the call asks for
    head_evidence: dict[str, Any]
    repairs: tuple[PlannedRepair, ...] = ()
    repair_evidence: dict[str, dict[str, Any]] = {}  # of every kind of operator that was tried, by its label
    interface: Interface
    context_length: int | None
    eos_token_ids: tuple[int, ...]
    recipe: Recipe
    files: dict[str, str]  # file in the bundle -> SHA-256
    weights: dict[str, WeightFile] = {}  # location, as the graphs name it -> file; a bundle without has all of its own
    tokenizer_files: tuple[PlainName, ...]
