"""The kernels that a release of ONNX Runtime registers, and how ONNX Runtime matches a node to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qbpass.admission.backends.descriptor import Descriptor, Operand
from qbpass.admission.backends.signatures import Formal, formal_at

OPEN = 2**31 - 1  # INT_MAX: the end of a registration that names none


@dataclass(frozen=True)
class KernelRow:
    """One registration: versions start to end of an operator, and the types each constraint allows.

    inputs, outputs: the schema's formal operands where the table has them. line: in the file; None for a running wheel.
    text: the row as it stands there.
    """

    operator: str
    start: int
    end: int
    types: Mapping[str, frozenset[str]]
    text: str
    line: int | None = None
    inputs: tuple[Formal, ...] = ()
    outputs: tuple[Formal, ...] = ()

    @property
    def versions(self) -> str:
        """In the tables' notation: `13+`, `[6, 12]`, `13`."""
        if self.end == OPEN:
            return f"{self.start}+"
        return str(self.start) if self.start == self.end else f"[{self.start}, {self.end}]"

    def serves(self, version: int) -> bool:
        """Whether the registration is for that version of the operator.

        A registration without an end (`13+`) is for its first version alone: it says nothing about versions of the
        operator that came later. Source: onnxruntime/core/framework/kernel_registry.cc, VerifyVersion.
        """
        return self.start == version or (self.end != OPEN and self.start <= version <= self.end)

    def rejects(self, descriptor: Descriptor) -> tuple[str, str] | None:
        """(constraint, the operand's type) of the first constraint that the descriptor's types break.

        As ONNX Runtime does, only the first operand that is there is looked at for each constraint (MatchKernelDefTypes
        in the same file); one of unknown type rejects nothing.
        """
        for constraint, allowed in self.types.items():
            operand = self._first(constraint, descriptor)
            if operand is not None and operand.elem_type is not None and operand.elem_type not in allowed:
                return constraint, operand.elem_type
        return None

    def _first(self, constraint: str, descriptor: Descriptor) -> Operand | None:
        """A constraint's name is a type parameter, or a formal operand's own name."""
        pairs = [(o, self._formal(o, index, self.inputs)) for index, o in enumerate(descriptor.inputs)]
        pairs += [(o, self._formal(o, index, self.outputs)) for index, o in enumerate(descriptor.outputs)]
        there = [(operand, formal) for operand, formal in pairs if operand is not None and formal is not None]
        for names in ([f.parameter for _, f in there], [f.name for _, f in there]):
            if constraint in names:
                return there[names.index(constraint)][0]
        return None

    @staticmethod
    def _formal(operand: Operand | None, index: int, formals: tuple[Formal, ...]) -> Formal | None:
        """The place an operand stands at: as ONNX's schema says, else as the table says."""
        if operand is not None and operand.parameter is not None:
            return Formal(operand.name or "", operand.parameter)
        return formal_at(formals, index)

    def to_json(self) -> dict[str, Any]:
        line = {} if self.line is None else {"line": self.line}
        return {"operator": self.operator} | line | {"text": self.text}


@dataclass(frozen=True)
class Section:
    """The rows of one provider and one domain, in alphabetical order. lines: first and last line in the file."""

    provider: str
    domain: str
    rows: tuple[KernelRow, ...]
    lines: tuple[int, int] | None = None

    def of(self, operator: str) -> tuple[KernelRow, ...]:
        return tuple(row for row in self.rows if row.operator == operator)

    def around(self, operator: str) -> list[KernelRow]:
        """The rows between which the operator would stand: tables are in alphabetical order."""
        before = [row for row in self.rows if row.operator < operator]
        behind = [row for row in self.rows if row.operator > operator]
        return before[-1:] + behind[:1]


@dataclass(frozen=True)
class KernelTable:
    """The kernels of every provider of one release. source: the file's name, or which wheel was asked."""

    source: str
    version: str | None
    sections: Mapping[tuple[str, str], Section] = field(default_factory=dict)

    def has_provider(self, provider: str) -> bool:
        return any(name == provider for name, _ in self.sections)

    def has_domain(self, domain: str) -> bool:
        return any(name == domain for _, name in self.sections)

    def section(self, provider: str, domain: str) -> Section:
        """Without rows where the table has none for this provider and domain."""
        return self.sections.get((provider, domain)) or Section(provider, domain, ())

    def elsewhere(self, operator: str, provider: str) -> list[tuple[Section, KernelRow]]:
        """First rows of the same name under other providers or domains."""
        found = [(section, section.of(operator)) for section in self.sections.values()]
        return [(section, rows[0]) for section, rows in found if rows and section.provider != provider]
