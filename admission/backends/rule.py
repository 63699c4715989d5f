"""What a support rule is, what it is asked about, and what a backend is: the three things a third party writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.kernel_table import KernelTable
from qbpass.admission.backends.versions import VersionRange

#: The paragraphs of a rule's docstring, in order; docs/support-rules.md is written from them.
HEADINGS = ("What it refutes", "Why it holds", "Example")


@dataclass(frozen=True)
class Source:
    """Where a rule was read: a project's release or commit, a file of it, and the place in it (a line or a message)."""

    project: str
    version: str
    file: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.project} {self.version}: {self.file}" + (f", {self.place}" if self.place else "")


def operators(names: str) -> frozenset[str]:
    """The operators of a list that a rule was read from, divided by blanks."""
    return frozenset(names.split())


@dataclass(frozen=True)
class Target:
    """What is asked: a backend at a version, with the kernels it registers where a table or a running wheel says so.

    version: of the backend's project; None where nobody named one. provider: ONNX Runtime's name of the backend.
    """

    backend: str
    provider: str | None
    version: str | None
    kernels: KernelTable | None = None


@runtime_checkable
class SupportRule(Protocol):
    """One thing that a backend is known not to do. Its docstring has the paragraphs of HEADINGS.

    versions: the releases the rule was read in; it is asked about no other one. None: it is asked about any, because
    it reads the target's own kernel table.
    """

    @property
    def name(self) -> str: ...

    @property
    def versions(self) -> VersionRange | None: ...

    @property
    def sources(self) -> tuple[Source, ...]: ...

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        """Why the backend does not do it, with evidence, or None: nothing known against it. Never anything else."""
        ...


@dataclass(frozen=True)
class Backend:
    """A backend and the rules over it.

    project: whose version the rules are bound to. default_version: what is asked about where nobody names a version
    and no running wheel has the backend; None: without a version, only rules that are bound to none are asked.
    asks: the form of the descriptors, the ONNX graph's own or ggml's products of a query-to-batch attention.
    """

    name: str
    title: str
    project: str
    rules: tuple[SupportRule, ...]
    provider: str | None = None
    default_version: str | None = None
    aliases: tuple[str, ...] = ()
    asks: Literal["onnx", "ggml"] = "onnx"
