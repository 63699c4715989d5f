"""The page of support rules says what the rules' docstrings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from qbpass.admission.backends import registry
from qbpass.admission.backends.docs import EXAMPLE_ENTRY_POINT, EXAMPLE_FILE, HEADINGS, read_docstring, support_rules
from qbpass.admission.backends.registry import BUILTIN
from qbpass.admission.backends.rule import SupportRule

PAGE = Path(__file__).parents[2] / "docs" / "support-rules.md"
RULES = {rule.name: rule for backend in BUILTIN for rule in backend.rules}


def test_the_committed_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == support_rules()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_is_documented_in_the_fixed_form(rule: SupportRule) -> None:
    texts = read_docstring(rule)
    assert tuple(texts) == HEADINGS
    assert all(text.endswith(".") for text in texts.values())


def test_a_rule_name_is_one_rule_and_every_backend_file_is_listed() -> None:
    assert all(RULES[rule.name] is rule or type(RULES[rule.name]) is type(rule) for b in BUILTIN for rule in b.rules)
    folder = Path(registry.__file__).parent
    files = {path.stem for path in folder.glob("[og]*_*.py") if "\nBACKEND = " in path.read_text(encoding="utf-8")}
    assert files == {backend.name.replace("-", "_") for backend in BUILTIN}


def test_the_page_says_which_versions_each_rule_speaks_for_and_where_it_was_read() -> None:
    page = support_rules()
    for rule in RULES.values():
        section = page.split(f"## {rule.name}\n", 1)[1].split("\n## ", 1)[0]
        assert rule.versions is None or f": {rule.versions}.\n" in section
        for source in rule.sources:
            assert str(source) in section
    assert EXAMPLE_FILE in page


def test_the_readme_shows_the_example_that_is_tested() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert EXAMPLE_FILE in readme
    assert EXAMPLE_ENTRY_POINT in readme
