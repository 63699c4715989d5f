"""Chat templates: programs from strangers, run in Jinja's immutable sandbox the way transformers runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qbpass.models.errors import ModelFileError
from qbpass.models.session import one_line

MAX_RENDERED_CHARS = 2**20


class ChatTemplate:
    """A template and the special tokens it may name (bos_token, eos_token, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises ModelFileError where `source` is not a Jinja template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise ModelFileError(f"the chat template can't be read ({one_line(error, 160)}): {_WAY_OUT}") from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation, ready for the assistant's answer. messages: {"role": "user", "content": "..."}, in order.

        Raises ModelFileError where the template fails, breaks its sandbox or renders more than 2**20 characters beside
        the messages' own.
        """
        variables: dict[str, Any] = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
            **self._special_tokens,
        }
        parts: list[str] = []
        size, most = 0, MAX_RENDERED_CHARS + sum(len(text) for message in messages for text in message.values())
        try:
            for part in self._template.generate(**variables):
                size += len(part)
                if size > most:
                    raise ModelFileError(
                        f"the chat template renders more than {MAX_RENDERED_CHARS} characters: {_WAY_OUT}"
                    )
                parts.append(part)
        except ModelFileError:
            raise
        except Exception as error:  # a template can fail with any exception its expressions can raise
            raise ModelFileError(f"the chat template fails ({one_line(error, 160)}): {_WAY_OUT}") from error
        return "".join(parts)


_WAY_OUT = "repair it, or give the prompt without a chat template"


class _Generation(Extension):
    """{% generation %} marks the assistant's text for training; in rendering it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """As transformers has it: Jinja's own filter escapes HTML characters."""
    if set(options) - {"separators", "sort_keys"}:
        raise SecurityError("tojson takes ensure_ascii, indent, separators and sort_keys")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
