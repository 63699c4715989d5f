"""Writes docs/admission-codes.md from the docstrings of the checks: `python -m qbpass.admission.docs FILE`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from qbpass.admission import checks
from qbpass.models.interface import PROBLEM_CODES

_INTERFACE = """## What the runtime can't feed or read

Reported of the whole graph; its attentions are looked at all the same.
"""

HEADINGS = ("What it does", "Why it matters", "Example")

_INTRODUCTION = """# Admission codes

Why `qbpass admit` refuses an attention. A code never changes its meaning. This page is written by
`python -m qbpass.admission.docs docs/admission-codes.md` from the docstrings in `admission/checks/`.
"""


def admission_codes() -> str:
    """The page, in Markdown: one section a code, in alphabetical order."""
    modules = sorted(checks.ALL, key=lambda module: str(module.CODE))
    return "\n".join([_INTRODUCTION, *map(_section, modules), _INTERFACE, *map(_line, sorted(PROBLEM_CODES))]) + "\n"


def _line(code: str) -> str:
    return f"- `{code}`: {PROBLEM_CODES[code]}."


def read_docstring(module: ModuleType) -> dict[str, str]:
    """Heading -> text. Raises ValueError where a check's docstring is not in the fixed form."""
    parts = [part.split(": ", 1) for part in (module.__doc__ or "").strip().split("\n\n")]
    if tuple(part[0] for part in parts) != HEADINGS:
        raise ValueError(f"{module.__name__}: the docstring must have the paragraphs {', '.join(HEADINGS)}")
    return {heading: " ".join(text.split()) for heading, text in parts}


def _section(module: ModuleType) -> str:
    texts = read_docstring(module)
    lines = [f"**{heading}.** {texts[heading][0].upper()}{texts[heading][1:]}\n" for heading in HEADINGS]
    return "\n".join([f"## {module.CODE}\n", *lines])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(admission_codes(), encoding="utf-8")
