"""The page of admission codes says what the checks' docstrings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from qbpass.admission import checks
from qbpass.admission.docs import HEADINGS, admission_codes, read_docstring

PAGE = Path(__file__).parents[2] / "docs" / "admission-codes.md"


def test_the_committed_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == admission_codes()


@pytest.mark.parametrize("module", checks.ALL, ids=lambda module: module.CODE)
def test_every_code_is_documented_in_the_fixed_form(module: object) -> None:
    texts = read_docstring(module)  # type: ignore[arg-type]
    assert tuple(texts) == HEADINGS
    assert all(text.endswith(".") for text in texts.values())


def test_codes_are_unique_and_named_like_their_files() -> None:
    codes = [module.CODE for module in checks.ALL]
    assert len(set(codes)) == len(codes)
    assert codes == [module.__name__.rpartition(".")[2].upper() for module in checks.ALL]


def test_every_file_of_checks_is_listed() -> None:
    files = {path.stem for path in Path(checks.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {module.__name__.rpartition(".")[2] for module in checks.ALL}
