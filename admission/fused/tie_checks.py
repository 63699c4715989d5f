"""What a fused operator reads where it is not one layer's cached keys and values."""

from __future__ import annotations

from qbpass.admission.checks import cross_attention, latent_kv, no_kv_pair
from qbpass.admission.fused.subject import FusedSubject
from qbpass.admission.report import Diagnostic


def check_cross(subject: FusedSubject) -> Diagnostic | None:
    """CROSS_ATTENTION: keys of another stream."""
    other = subject.tie.other
    if other is None:
        return None
    message = f"keys come from another stream ({other.tensor!r}): cross-attention is left as it is exported"
    return subject.refuse(cross_attention.CODE, message, stream=other.tensor)


def check_pair(subject: FusedSubject) -> Diagnostic | None:
    """NO_KV_PAIR: neither a cache of the decoder nor another stream is read."""
    if subject.tie.pair is not None or subject.tie.other is not None:
        return None
    message = "this attention reads no KV pair of the decoder; only self-attention over the KV cache can be rewritten"
    return subject.refuse(no_kv_pair.CODE, message, inputs=list(subject.proto.input))


def check_latent(subject: FusedSubject) -> Diagnostic | None:
    """LATENT_KV: keys or values are projected from what is cached."""
    cached = subject.tie.latent
    if cached is None and subject.reading.features.get("kv_cache_layout") == "LATENT":
        cached = subject.tensors.get("key_cache")
    if cached is None:
        return None
    message = f"keys or values are projected from {cached!r} in every call: the cache holds latents"
    return subject.refuse(latent_kv.CODE, message, cached=cached)
