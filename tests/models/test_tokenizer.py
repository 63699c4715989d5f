"""Text goes through the model's own tokenizer; templates from strangers stay in their sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from qbpass.models.errors import ModelFileError
from qbpass.models.tokenizer import TextCodec

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {% if message['role'] == 'user' %}\n"
    "[user] {{ message['content'] }}\n"
    "    {% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WORDS = ["<s>", "</s>", "<unk>", "hello", "world", "[", "]", "user", "assistant"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A word-level tokenizer that puts <s> before plain text, and nothing else."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return {"tokenizer.json": tmp_path / "tokenizer.json"}


def with_config(files: dict[str, Path], **config: Any) -> dict[str, Path]:
    path = files["tokenizer.json"].parent / "tokenizer_config.json"
    path.write_text(json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "</s>", **config}))
    return {**files, "tokenizer_config.json": path}


def test_text_survives_the_way_to_ids_and_back(files: dict[str, Path]) -> None:
    codec = TextCodec(files)
    assert codec.encode("hello world") == [0, 3, 4]
    assert codec.decode([0, 3, 4, 1]) == "hello world"


def test_long_text_is_not_cut(files: dict[str, Path]) -> None:
    assert len(TextCodec(files).encode("hello " * 50)) == 51


def test_special_tokens_are_not_added_twice(files: dict[str, Path]) -> None:
    codec = TextCodec(with_config(files))
    assert codec.encode("<s>hello") == [0, 3]
    assert codec.encode("hello", rendered=True) == [3]


def test_a_model_without_a_template_takes_prompts_as_they_are(files: dict[str, Path]) -> None:
    codec = TextCodec(with_config(files))
    assert codec.chat("hello") is None
    assert codec.encode_prompt("hello") == [0, 3]


def test_a_template_renders_as_chat_models_expect(files: dict[str, Path]) -> None:
    codec = TextCodec(with_config(files, chat_template=TEMPLATE))
    assert codec.chat("hello {{ 1 }}") == "<s>[user] hello {{ 1 }}\n[assistant]"
    assert codec.encode_prompt("hello") == [0, 5, 7, 6, 3, 5, 8, 6]


def test_a_conversation_keeps_its_roles_and_their_order(files: dict[str, Path]) -> None:
    template = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    codec = TextCodec(with_config(files, chat_template=template))
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert codec.conversation(messages) == "system=a;user=b;"


def test_a_template_file_goes_before_the_config(files: dict[str, Path]) -> None:
    path = files["tokenizer.json"].parent / "chat_template.jinja"
    path.write_text("file {{ messages[0].content }}")
    codec = TextCodec({**with_config(files, chat_template="config"), "chat_template.jinja": path})
    assert codec.chat("x") == "file x"


def test_of_several_templates_the_default_is_taken(files: dict[str, Path]) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert TextCodec(with_config(files, chat_template=named)).chat("x") == "plain"


def test_helpers_of_chat_templates_are_there(files: dict[str, Path]) -> None:
    template = (
        "{% generation %}{{ messages | tojson }}{% endgeneration %}"
        "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}{{ strftime_now('%%') }}"
    )
    rendered = TextCodec(with_config(files, chat_template=template)).chat("<é>")
    assert rendered == '[{"role": "user", "content": "<é>"}]1%'


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for x in %}", "can't be read"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ nothing.at.all }}", "fails"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails"),
        ("{{ messages.append(1) }}", "fails"),
        ("{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}", "renders more than"),
        ("{% for i in range(10**9) %}{% endfor %}", "fails"),
        (["not", "named"], None),
        ({"default": "x"}, "is not text"),
    ],
)
def test_a_template_that_fails_or_escapes_is_named_in_one_line(
    files: dict[str, Path], template: Any, says: str | None
) -> None:
    configured = with_config(files, chat_template=template)
    if says is None:
        assert TextCodec(configured).chat("x") is None
        return
    with pytest.raises(ModelFileError, match=says) as caught:
        TextCodec(configured).chat("x")
    assert "\n" not in str(caught.value)


def test_a_missing_or_damaged_tokenizer_is_named(files: dict[str, Path]) -> None:
    with pytest.raises(ModelFileError, match=r"without tokenizer\.json"):
        TextCodec({})
    files["tokenizer.json"].write_text('{"version": "1.0"')
    with pytest.raises(ModelFileError, match="is not a tokenizer") as caught:
        TextCodec(files)
    assert "\n" not in str(caught.value)


def test_the_definition_is_the_tokenizer_without_truncation(files: dict[str, Path]) -> None:
    codec = TextCodec(files)
    again = Tokenizer.from_str(codec.definition)
    assert again.get_vocab() == {word: number for number, word in enumerate(WORDS)}
    assert len(again.encode("hello " * 9).ids) == 10
