"""How a request asks for its tokens to be chosen."""

from __future__ import annotations

from qbpass.runtime.choosing import GREEDY, Choosing
from qbpass.runtime.server.api_error import unsupported
from qbpass.runtime.server.bodies import GenerationBody

#: Fields whose other values would choose other tokens than the largest logit's.
_NEUTRAL = {
    "temperature": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "min_tokens": 0,
    "logit_bias": {},
}


def choosing_of(body: GenerationBody, stop_ids: frozenset[int]) -> Choosing:
    """Raises ApiError for what is not greedy."""
    del stop_ids
    for name, neutral in _NEUTRAL.items():
        if getattr(body, name) not in (None, neutral):
            raise unsupported(name, f"this server is greedy: leave {name} out")
    if body.response_format is not None and body.response_format.type != "text":
        raise unsupported("response_format", "this server gives text: leave response_format out")
    return GREEDY
