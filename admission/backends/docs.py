"""Writes docs/support-rules.md from the docstrings of the rules: `python -m qbpass.admission.backends.docs FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from qbpass.admission.backends.registry import BUILTIN
from qbpass.admission.backends.rule import HEADINGS, Backend, SupportRule

_INTRODUCTION = """# Support rules

What `qbpass support` knows that a backend does not do. A rule answers *false*, with its evidence, or nothing: what no
rule refutes is *unknown*. A rule is asked only about the versions it was read in. This page is written by
`python -m qbpass.admission.backends.docs docs/support-rules.md` from the docstrings in `admission/backends/`.
"""


def support_rules() -> str:
    """The page, in Markdown: one section a rule, under the first backend that has it."""
    seen: dict[str, list[Backend]] = {}
    for backend in BUILTIN:
        for rule in backend.rules:
            seen.setdefault(rule.name, []).append(backend)
    rules = {rule.name: rule for backend in BUILTIN for rule in backend.rules}
    return "\n".join([_INTRODUCTION, _backends(), *(_section(rules[name], having) for name, having in seen.items())])


def read_docstring(rule: SupportRule) -> dict[str, str]:
    """Heading -> text. Raises ValueError where a rule's docstring is not in the fixed form."""
    parts = [part.strip().split(": ", 1) for part in (type(rule).__doc__ or "").strip().split("\n\n")]
    if tuple(part[0] for part in parts) != HEADINGS:
        raise ValueError(f"{rule.name}: the docstring must have the paragraphs {', '.join(HEADINGS)}")
    return {heading: " ".join(text.split()) for heading, text in parts}


def _backends() -> str:
    rows = [
        f"| `{b.name}` | {b.title} | {b.project} | {', '.join(f'`{rule.name}`' for rule in b.rules)} |" for b in BUILTIN
    ]
    return "\n".join(["| backend | what it is | versions of | rules |", "|---|---|---|---|", *rows, ""])


def _section(rule: SupportRule, backends: list[Backend]) -> str:
    texts = read_docstring(rule)
    versions = "of the kernel table that is given" if rule.versions is None else str(rule.versions)
    lines = [f"**{heading}.** {texts[heading]}\n" for heading in HEADINGS]
    sources = [f"- {source}" for source in rule.sources]
    named = ", ".join(f"`{backend.name}`" for backend in backends)
    project = backends[0].project
    return "\n".join(
        [
            f"## {rule.name}\n",
            f"Backends: {named}. Versions of {project}: {versions}.\n",
            *lines,
            "**Read in.**\n",
            *sources,
            "",
        ]
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(support_rules(), encoding="utf-8")
