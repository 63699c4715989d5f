"""The forms a cache may have that qbpass does not run, each with its code and its one line."""

from __future__ import annotations

from qbpass.models.cache_dims import growth_axis
from qbpass.models.cache_updates import Update
from qbpass.models.caches import Cache, is_quantized
from qbpass.models.dataflow import Dataflow
from qbpass.models.findings import Findings

_SHAPES = "(batch, KV heads, past, head dimension)"


def check_joint(cache: Cache, findings: Findings, names: list[str]) -> None:
    """FUSED_KV or LATENT_KV go to `findings`, for a cache that attention reads as keys and as values."""
    if cache.split and not cache.projected:
        findings.add(
            "FUSED_KV",
            f"KV input {cache.name!r} holds the keys and the values of a layer in one tensor: export the model with "
            "one input for the keys and one for the values of each layer",
            *names,
        )
    else:
        findings.add(
            "LATENT_KV",
            f"keys and values of a layer are both computed from KV input {cache.name!r} (a latent cache): export the "
            "model with its keys and values as the cache",
            *names,
        )


def check_form(flow: Dataflow, cache: Cache, findings: Findings) -> None:
    """What else than (batch, KV heads, past, head dimension), appended to along axis 2, goes to `findings`."""
    name, shape = cache.name, flow.shape(cache.name)
    if shape is not None and len(shape) != 4 and len(cache.roles) == 1:
        findings.add(
            "FUSED_KV",
            f"KV input {name!r} has {len(shape)} axes, not 4 {_SHAPES}: export the model with one input for the keys "
            "and one for the values of each layer",
            name,
        )
    problem = _UNUSUAL.get(cache.update)
    if cache.past is None:
        problem = _NO_PAST
    elif cache.present is None:
        problem = _NO_PRESENT
    if problem is not None:
        findings.add(problem[0], problem[1].format(name=repr(name)), name)
    axis = growth_axis(flow, cache)
    if axis is not None and problem is None and shape is not None and len(shape) == 4 and axis != 2:
        findings.add(
            "CACHE_AXES",
            f"rows are appended to KV input {name!r} along axis {axis}, not along axis 2 of {_SHAPES}: export the "
            "model with its past on axis 2",
            name,
        )
    if is_quantized(flow, name):
        findings.add(
            "QUANTIZED_CACHE",
            f"KV input {name!r} holds quantized rows: export the model with a floating-point cache",
            name,
        )


_NO_PAST = (
    "NO_PAST",
    "the graph gives out the keys or values {name} and takes no past for them (it is a decoder for the first call "
    "alone): use the graph with past_key_values inputs",
)
_NO_PRESENT = (
    "NO_PRESENT",
    "KV input {name} is joined with new rows that the graph does not give out: export the model with present outputs",
)
_UNUSUAL = {
    Update.PREPENDED: (
        "PREPENDED_CACHE",
        "new rows are put in front of KV input {name}, not behind it: export the model with Concat(past, new)",
    ),
    Update.SHIFTED: (
        "SLIDING_CACHE",
        "KV input {name} loses rows when new ones come (a sliding window): rejected rows could not be taken back; "
        "export the model with a cache that only grows",
    ),
    Update.SCATTERED: (
        "STATIC_CACHE",
        "new rows are written into KV input {name}, a buffer of fixed length (a static cache): export the model with a "
        "cache that is appended to",
    ),
    Update.COMPUTED: (
        "STATIC_CACHE",
        "new rows are added into KV input {name}, a buffer of fixed length (a static cache): export the model with a "
        "cache that is appended to",
    ),
    Update.NEW_ROWS: (
        "NEW_ROWS_ONLY",
        "the graph takes KV input {name} and gives out its new rows alone: export the model with presents that hold "
        "past and new rows",
    ),
}
