"""Text to token ids and back, by the model's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from qbpass.models.chat_template import ChatTemplate
from qbpass.models.config_files import read_json
from qbpass.models.errors import ModelFileError
from qbpass.models.session import one_line

MAX_TOKENIZER_BYTES = 256 * 2**20
MAX_TEMPLATE_BYTES = 2**20


class TextCodec:
    """Built from a decoder's `tokenizer_files`."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """Raises ModelFileError where there is no tokenizer.json, or a file is damaged."""
        self._tokenizer = _read_tokenizer(files)
        special = _special_tokens(files)
        self._bos = special.get("bos_token")
        source = _template_source(files)
        self._template = None if source is None else ChatTemplate(source, special)

    @cached_property
    def definition(self) -> str:
        """The tokenizer as the text of a tokenizer.json, without truncation and padding."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, *, rendered: bool = False) -> list[int]:
        """Token ids of `text`, with the special tokens its tokenizer puts around plain text.

        rendered: `text` came from a chat template, which has written its special tokens itself. Text that starts with
        the beginning-of-sequence token is taken to be so, too: special tokens are never added twice.
        """
        written = rendered or (self._bos is not None and text.startswith(self._bos))
        return list(self._tokenizer.encode(text, add_special_tokens=not written).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def chat(self, prompt: str) -> str | None:
        """`prompt` as a user's message, rendered by the chat template; None where the model has none.

        Encode the result with `rendered=True`. Raises ModelFileError where the template fails.
        """
        return self.conversation([{"role": "user", "content": prompt}])

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        """Messages with "role" and "content", rendered as `chat` does one."""
        return None if self._template is None else self._template.render(messages)

    def encode_prompt(self, prompt: str) -> list[int]:
        """Token ids of `prompt`: a user's message where there is a chat template, plain text where there is none."""
        text = self.chat(prompt)
        return self.encode(prompt) if text is None else self.encode(text, rendered=True)


def _read_tokenizer(files: Mapping[str, Path]) -> Tokenizer:
    if "tokenizer.json" not in files:
        raise ModelFileError(
            "the model comes without tokenizer.json: put it beside the model, or give prompts as token ids"
        )
    path = files["tokenizer.json"]
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise ModelFileError(f"{path} is larger than {MAX_TOKENIZER_BYTES:,} bytes: this is no tokenizer")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelFileError(
            f"{path} is not a tokenizer ({one_line(error, 160)}): take it from the source again"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _template_source(files: Mapping[str, Path]) -> str | None:
    """chat_template.jinja, else "chat_template" of tokenizer_config.json (text, or the default of several)."""
    if "chat_template.jinja" in files:
        path = files["chat_template.jinja"]
        try:
            if path.stat().st_size > MAX_TEMPLATE_BYTES:
                raise ModelFileError(f"{path} is larger than {MAX_TEMPLATE_BYTES:,} bytes: this is no chat template")
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(
                f"{path} can't be read ({one_line(error, 160)}): take it from the source again"
            ) from error
    config = read_json(files["tokenizer_config.json"]) if "tokenizer_config.json" in files else {}
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is None or isinstance(template, str):
        return template
    raise ModelFileError(
        f"chat_template in {files['tokenizer_config.json']} is not text: take it from the source again"
    )


def _special_tokens(files: Mapping[str, Path]) -> dict[str, str]:
    """bos_token, eos_token and their like, from special_tokens_map.json and tokenizer_config.json (which wins)."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in (read_json(files[name]) if name in files else {}).items():
            text = _token_text(value)
            if key.endswith("_token") and text is not None:
                found[key] = text
    return found


def _token_text(value: Any) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None
