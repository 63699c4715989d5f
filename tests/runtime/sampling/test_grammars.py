"""What is generated under a grammar belongs to its language; grammars from strangers are bounded."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import numpy as np
import pytest
from sampled_requests import BYTES, END, Foresight, byte_vocabulary, generated, logits_behind

from qbpass.runtime.sampling.errors import GrammarError, SamplingError
from qbpass.runtime.sampling.grammar import MAX_GRAMMAR_BYTES, Constraint, Grammar, Kind, Vocabulary, compiled
from qbpass.runtime.sampling.settings import Sampling

llguidance = pytest.importorskip("llguidance")

SCHEMA = """{"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"enum": [1, 22]}},
"required": ["name", "age"], "additionalProperties": false}"""


def constraint(kind: Kind, source: str) -> Constraint:
    return compiled(Grammar(kind, source), byte_vocabulary())


def text_of(tokens: tuple[int, ...]) -> str:
    from tokenizers import Tokenizer

    return str(Tokenizer.from_str(byte_vocabulary().tokenizer).decode(list(tokens)))


@pytest.mark.parametrize(
    ("kind", "source", "language"),
    [
        ("regex", "(ab|c){1,4}d", "(ab|c){1,4}d"),
        ("lark", 'start: "x" digits\ndigits: /[0-9]{2,3}/', "x[0-9]{2,3}"),
        (
            "json_schema",
            '{"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}',
            r"\[\s*([12](\s*,\s*[12])*)?\s*\]",
        ),
    ],
)
@pytest.mark.parametrize("speculating", [False, True])
def test_a_finished_output_belongs_to_the_language(kind: Kind, source: str, language: str, speculating: bool) -> None:
    finished = 0
    for seed in range(8):
        settings = Sampling(1.0, seed=seed, bias={END: 6.0}, grammar=constraint(kind, source))
        drafter = Foresight(seed, BYTES) if speculating else None
        output = generated(settings, (5, 6), drafter, limit=30, vocabulary=BYTES)
        if output.end_of_generation:
            finished += 1
            assert re.fullmatch(language, text_of(output.token_ids[:-1])), text_of(output.token_ids)
    assert finished >= 4


def test_json_of_a_schema_can_be_read() -> None:
    output = generated(Sampling(0, grammar=constraint("json_schema", SCHEMA)), (1,), limit=200, vocabulary=BYTES)
    value = json.loads(text_of(output.token_ids[:-1]))
    assert set(value) == {"name", "age"}
    assert value["age"] in (1, 22)


def test_the_tokens_allowed_are_those_a_matcher_made_anew_allows() -> None:
    made = constraint("json_schema", SCHEMA)
    output = generated(Sampling(1.0, seed=3, grammar=made), (1,), Foresight(3, BYTES), limit=40, vocabulary=BYTES)
    tokenizer = llguidance.LLTokenizer(byte_vocabulary().tokenizer, n_vocab=BYTES, eos_token=[END])
    grammar = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA)
    state = made.begin((1,))
    for count, token in enumerate(output.token_ids):
        anew = llguidance.LLMatcher(tokenizer, grammar)
        assert anew.consume_tokens(list(output.token_ids[:count]))
        allowed = np.unpackbits(np.frombuffer(anew.compute_bitmask(), np.uint8), count=BYTES, bitorder="little")
        scores = made.apply(np.array([1]), state, np.zeros(BYTES, np.float32))
        assert ((scores == 0) == allowed.astype(bool)).all()
        assert allowed[token]
        state = made.advance(state, token)


def test_a_fork_goes_its_own_way_and_a_state_is_never_changed() -> None:
    chooser = Sampling(0, grammar=constraint("regex", "ab|cd")).begin((1,), BYTES)
    first = chooser.choose(logits_behind((1,), BYTES))
    fork = chooser.fork()
    fork.advance(first)
    second = fork.choose(logits_behind((1,), BYTES))
    assert text_of((first, second)) in ("ab", "cd")
    assert chooser.choose(logits_behind((1,), BYTES)) == first
    with pytest.raises(GrammarError, match="doesn't satisfy the grammar"):
        chooser.advance(second)


def test_a_state_that_was_advanced_is_still_that_of_its_position() -> None:
    made = constraint("regex", "abc")
    first = made.begin((1,))
    before = made.apply(np.array([1]), first, np.zeros(BYTES, np.float32))
    (token,) = np.flatnonzero(before == 0)
    second = made.advance(first, int(token))
    assert (made.apply(np.array([1]), first, np.zeros(BYTES, np.float32)) == before).all()
    assert (made.apply(np.array([1, token]), second, np.zeros(BYTES, np.float32)) != before).any()
    assert (made.apply(np.array([1]), made.begin((1,)), np.zeros(BYTES, np.float32)) == before).all()


def test_a_grammar_is_compiled_once_for_a_tokenizer() -> None:
    assert constraint("regex", "a+") is constraint("regex", "a+")
    other = Vocabulary.of(byte_vocabulary().tokenizer, BYTES + 3, {END})
    assert compiled(Grammar("regex", "a+"), other) is not constraint("regex", "a+")


def test_ids_that_the_tokenizer_has_no_text_for_are_never_allowed() -> None:
    made = compiled(Grammar("regex", "[^x]+"), Vocabulary.of(byte_vocabulary().tokenizer, BYTES + 3, {END}))
    scores = made.apply(np.array([1]), made.begin(()), np.zeros(BYTES + 3, np.float32))
    assert np.isneginf(scores[BYTES:]).all()
    assert (scores[:BYTES] == 0).any()


def test_min_tokens_behind_the_languages_end_leave_nothing() -> None:
    settings = Sampling(0, min_tokens=5, stop_ids=frozenset({END}), grammar=constraint("regex", "ab"))
    with pytest.raises(SamplingError, match="no token is allowed at position 3"):
        generated(settings, (1,), vocabulary=BYTES)


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("json_schema", '{"type": "foo"}', "the JSON schema can't be used: Invalid type: foo"),
        ("json_schema", "{", "the JSON schema is not JSON"),
        ("json_schema", "[" * 20_000, "the JSON schema is not JSON"),
        ("json_schema", "[1]", "schema must be an object or boolean"),
        ("json_schema", '{"$ref": "http://example.com/schema"}', "can't be used"),
        ("json_schema", " " * (MAX_GRAMMAR_BYTES + 1), "at most 65,536 are read"),
        ("regex", "(", "the regex can't be used"),
        ("regex", "a(?=b)", "look-ahead and look-behind, is not supported"),
        ("regex", "", "the regex is empty"),
        ("lark", "start: nothing", "the grammar can't be used"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_an_error_of_one_line(kind: Kind, source: str, message: str) -> None:
    with pytest.raises(GrammarError) as raised:
        constraint(kind, source)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "((a{1,999}){1,999}){1,999}"),
        ("regex", "(.*a){200}b"),
        ("json_schema", json.dumps({"type": "string", "maxLength": 10**9})),
        ("json_schema", json.dumps({"allOf": [{"pattern": f"^(a{{{n}}})*$"} for n in (101, 103, 107, 109, 113)]})),
        ("json_schema", json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})),
        ("lark", "start: a\n" + "\n".join(f"{chr(97 + n)}: {(chr(98 + n) + ' ') * 9}" for n in range(20)) + '\nu: "x"'),
    ],
)
def test_a_grammar_that_would_cost_much_is_bounded(kind: Kind, source: str) -> None:
    """Refused in one line, or tokens follow from it; the claim is that it ends."""

    def outcome() -> str:
        try:
            settings = Sampling(0, grammar=constraint(kind, source))
            return str(generated(settings, (1,), limit=5, vocabulary=BYTES).length)
        except (GrammarError, SamplingError) as error:
            return str(error)

    said = outcome()
    assert said != ""
    assert "\n" not in said


def test_a_model_without_an_end_takes_no_grammar() -> None:
    with pytest.raises(GrammarError, match="end-of-generation token"):
        Vocabulary.of(byte_vocabulary().tokenizer, BYTES, ())


@pytest.mark.parametrize(
    "tokenizer", ["{}", '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}', "x"]
)
def test_a_tokenizer_that_llguidance_cannot_read_is_an_error_of_one_line(tokenizer: str) -> None:
    with pytest.raises(GrammarError, match="tokenizer can't be used with a grammar") as raised:
        compiled(Grammar("regex", "a"), Vocabulary.of(tokenizer, 1, {0}))
    assert "\n" not in str(raised.value)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    unseen: Any = Grammar("regex", "never compiled before")
    with pytest.raises(GrammarError, match=r"pip install 'qbpass\[grammar\]'"):
        compiled(unseen, byte_vocabulary())
