"""Writes docs/support-rules.md from the docstrings of the rules: `python -m qbpass.admission.backends.docs FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from qbpass.admission.backends.registry import BUILTIN
from qbpass.admission.backends.rule import HEADINGS, Backend, SupportRule

#: A backend that a third party adds: the file acme_npu.py, and the entry point that its package declares.
EXAMPLE_FILE = '''from qbpass.admission.backends import Backend, FalseAnswer, Source, VersionRange


class NoScatter:
    """What it refutes: `ScatterND`.

    Why it holds: The compiler has no such layer.

    Example: New rows written into a KV cache in place.
    """

    name = "acme-npu-scatter"
    versions = VersionRange("2.0", "2.4")
    sources = (Source("acme-npu", "2.0 to 2.4", "docs/operators.md", "row ScatterND"),)

    def check(self, descriptor, target):
        if (descriptor.domain, descriptor.operator) != ("", "ScatterND"):
            return None
        return FalseAnswer("the compiler has no such layer", {"row": "| ScatterND | no |"})


BACKEND = Backend("acme-npu", "Acme's NPU compiler", "acme-npu", (NoScatter(),), default_version="2.4")
'''
EXAMPLE_ENTRY_POINT = """[project.entry-points."qbpass.support_rules"]
acme-npu = "acme_npu:BACKEND"
"""

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
    sections = [_section(rules[name], having) for name, having in seen.items()]
    return "\n".join([_INTRODUCTION, _backends(), *sections, _third_parties()])


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


def _third_parties() -> str:
    return f"""## A backend of your own

A package adds a backend with one file and an entry point; `qbpass support MODEL --backend acme-npu` then asks it. A
backend of a name that is known adds its rules to that one. A rule is asked about the versions of its range alone;
`versions = None` is for rules that read `target.kernels`, the kernel table of an ONNX Runtime provider. `check` returns
a `FalseAnswer` with its evidence, or None; anything else is an error that names the rule.

```python
{EXAMPLE_FILE}```

```toml
{EXAMPLE_ENTRY_POINT}```
"""


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
