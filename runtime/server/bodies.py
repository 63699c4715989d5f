"""Request bodies of the OpenAI API, read strictly: a value of another type, an unknown field, a number that is none are
errors. JSON itself is bounded by its reader (depth 200, numbers of 4,300 digits).

Fields the API has and this server can't follow are in REFUSED: each has a value that says nothing, and any other is
refused, since ignoring it would give another answer than the one asked for. Fields in IGNORED change no answer.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from qbpass.models.session import one_line
from qbpass.runtime.server.api_error import ApiError, unsupported

_MAX_IDS = 2**20
_FIELDS: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any], config=ConfigDict(hide_input_in_errors=True))
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
_Ids = Annotated[list[TokenId], Field(min_length=1, max_length=_MAX_IDS)]
ShortText = Annotated[str, Field(max_length=200)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class StreamOptions(_Body):
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class JsonSchema(_Body):
    name: Annotated[str, Field(max_length=64)] = "answer"
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class GenerationBody(_Body):
    """What both endpoints take. top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids
    and return_token_ids are vLLM's.

    temperature: absent it is 0, greedy, as `qbpass generate` is. seed: absent, one is drawn, and told in the usage.
    """

    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {"n": (1,), "logprobs": (False,)}
    IGNORED: ClassVar[frozenset[str]] = frozenset(
        {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
    )

    model: ShortText | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
        Field(max_length=1024),
    ] | None = None  # fmt: skip
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Annotated[str, Field(min_length=1, max_length=200)] | Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=4)
    ] | None = None  # fmt: skip
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Raises ApiError (400), which names the first field that is wrong and repeats nothing of its value."""
        try:
            fields = _FIELDS.validate_json(data)
        except ValidationError as error:
            raise _refusal(error) from None
        for name, neutral in cls.REFUSED.items():
            value = fields.pop(name, None)
            if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
                raise unsupported(name, f"this server does not do {name}: leave it out")
        for name in cls.IGNORED:
            fields.pop(name, None)
        try:
            # From Python values, where JSON's array is a list already: strictness is the same.
            return cls.model_validate(fields)
        except ValidationError as error:
            raise _refusal(error) from None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens


class CompletionBody(GenerationBody):
    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerationBody.REFUSED, "best_of": (1,), "echo": (False,), "suffix": (),
    }  # fmt: skip

    # Lists of prompts are taken where they have one.
    prompt: str | _Ids | Annotated[list[str] | list[_Ids], Field(min_length=1, max_length=1)]

    @property
    def text_or_ids(self) -> str | list[int]:
        prompt = self.prompt
        if isinstance(prompt, list) and isinstance(prompt[0], str | list):
            return prompt[0]
        return prompt  # type: ignore[return-value]


class TextPart(_Body):
    type: Literal["text"]
    text: str


class Message(_Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=64)]
    name: ShortText | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(GenerationBody):
    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerationBody.REFUSED,
        "top_logprobs": (0,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
    }
    IGNORED: ClassVar[frozenset[str]] = GenerationBody.IGNORED | {"parallel_tool_calls"}

    messages: Annotated[list[Message], Field(min_length=1, max_length=1024)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


def _refusal(error: ValidationError) -> ApiError:
    entry = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if entry["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {one_line(ValueError(entry['msg']), 120)}", code="invalid_json")
    if not entry["loc"]:
        return ApiError(400, "the body is not a JSON object", code="invalid_json")
    # Of a union pydantic names the branch, too: "str", "list[int]", "constrained-str".
    place = [str(part) for part in entry["loc"] if isinstance(part, int) or str(part).replace("_", "").isalpha()]
    param = ".".join(part for part in place if part not in ("str", "list"))[:80]
    if entry["type"] == "extra_forbidden":
        return ApiError(400, f"unknown parameter {param!r}: leave it out", param=param, code="unknown_parameter")
    return ApiError(400, one_line(ValueError(f"{param}: {entry['msg']}"), 200), param=param or None)
