"""Reads OperatorKernels.md, the table of registered kernels that ONNX Runtime publishes with a release.

Its form: tools/python/gen_opkernel_doc.py in the same project. The file comes from anywhere, so its size is bounded and
a row that can't be read is an error with its line, never a row left out.
"""

from __future__ import annotations

import re
from pathlib import Path

from qbpass.admission.backends.errors import SupportError
from qbpass.admission.backends.kernel_table import OPEN, KernelRow, KernelTable, Section
from qbpass.admission.backends.signatures import Formal

MAX_TABLE_BYTES = 16 * 2**20  # the largest published one has 0.4

_PROVIDER = re.compile(r"## Operators implemented by (\w+)\s*")
_DOMAIN = re.compile(r"\|\*\*Operator Domain:\*\* \*([\w.]+)\*\|+\s*")
_RANGE = re.compile(r"(\d+)(\+)?|\[(\d+), (\d+)\]")
_OPERAND = re.compile(r"\*(in|out)\* ([^:*]+):\*\*([^*]+)\*\*")
_TYPES = re.compile(r"\*\*(\w+)\*\* = ([^*]+?)(?=<br */?> *\*\*|$)")
_VERSION = re.compile(r"(\d+(?:\.\d+)+)")


def read_kernel_table(path: Path, version: str | None = None) -> KernelTable:
    """The table in `path`. version: what the user says it is of; else the one in the file's name, if any.

    Raises SupportError where the file can't be read, is too large, is no such table, or is named for another version.
    """
    lines = _text(path).splitlines()
    sections: dict[tuple[str, str], list[KernelRow]] = {}
    provider = domain = None
    for number, line in enumerate(lines, 1):
        heading, opened = _PROVIDER.fullmatch(line), _DOMAIN.fullmatch(line)
        if heading:
            provider, domain = heading[1], None
        elif opened and provider is not None:
            domain = "" if opened[1] == "ai.onnx" else opened[1]
            sections.setdefault((provider, domain), [])
        elif line.strip("| ") and line.startswith("|") and provider is not None and domain is not None:
            rows = sections[provider, domain]
            rows.append(_row(path, number, line, rows[-1] if rows else None))
    if not any(sections.values()):
        raise SupportError(
            f"{path} is no table of registered kernels (no `## Operators implemented by` section with rows): give the "
            "OperatorKernels.md of a release of ONNX Runtime"
        )
    made = {key: _section(*key, rows) for key, rows in sections.items()}
    return KernelTable(path.name, _version(path, version), made)


def _section(provider: str, domain: str, rows: list[KernelRow]) -> Section:
    lines = [row.line for row in rows if row.line is not None]
    return Section(provider, domain, tuple(rows), (min(lines), max(lines)) if lines else None)


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise SupportError(f"{path} is not a file: give the OperatorKernels.md of a release of ONNX Runtime")
        if path.stat().st_size > MAX_TABLE_BYTES:
            raise SupportError(f"{path} has more than {MAX_TABLE_BYTES:,} bytes: this is no table of kernels")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SupportError(f"{path} is not text (byte {error.start:,}): this is no table of kernels") from error
    except OSError as error:
        raise SupportError(f"{path} can't be read ({error.strerror or error}): check its permissions") from error


def _version(path: Path, named: str | None) -> str | None:
    found = _VERSION.search(path.stem)
    if found and named is not None and found[1] != named:
        raise SupportError(f"{path} is named for version {found[1]}, and --version says {named}: leave one out")
    return named if named is not None or found is None else found[1]


def _row(path: Path, number: int, line: str, before: KernelRow | None) -> KernelRow:
    """`|name|operands|versions|types|`; a row without a name goes on with the operator above, and has its operands."""
    cells = line.strip()[1:-1].split("|")
    versions = _RANGE.fullmatch(cells[2].strip()) if len(cells) == 4 else None
    if versions is None or not (cells[0] or before):
        raise SupportError(f"line {number} of {path} is no row of a kernel table: {line[:60]!r}")
    single, plus, first, last = versions.groups()
    start = int(single or first)
    end = OPEN if plus else int(last or start)
    types = {name: frozenset(allowed.split(", ")) for name, allowed in _TYPES.findall(cells[3])}
    if before is None or cells[0]:
        return KernelRow(cells[0], start, end, types, line, number, *_formals(cells[1]))
    return KernelRow(before.operator, start, end, types, line, number, before.inputs, before.outputs)


def _formals(cell: str) -> tuple[tuple[Formal, ...], tuple[Formal, ...]]:
    """Of several alternatives (`or`), the first: that of the operator's newest version."""
    found = _OPERAND.findall(cell.split("<br><br>or<br><br>")[0])
    ins = tuple(Formal(name, parameter) for kind, name, parameter in found if kind == "in")
    return ins, tuple(Formal(name, parameter) for kind, name, parameter in found if kind == "out")
