"""Problems of an interface in the making: one a code, with everything it concerns as evidence."""

from __future__ import annotations

from typing import Any

from qbpass.models.dataflow import Dataflow
from qbpass.models.interface import InterfaceProblem


class Findings:
    """Problems in the order in which they were first met."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._messages: dict[str, str] = {}
        self._evidence: dict[str, dict[str, Any]] = {}

    def add(self, code: str, message: str, *tensors: str, **evidence: Any) -> None:
        """A problem. Of several with one code the first gives the message, and all of them their tensors."""
        self._messages.setdefault(code, message)
        known = self._evidence.setdefault(code, dict(evidence))
        for name in tensors:
            known.setdefault("tensors", {})[name] = self._flow.shape(name)

    @property
    def empty(self) -> bool:
        return not self._messages

    def merge(self, others: Findings) -> None:
        """Adds all that `others` holds."""
        for code, message in others._messages.items():
            evidence = dict(others._evidence[code])
            self.add(code, message, *evidence.pop("tensors", ()), **evidence)

    def problems(self) -> tuple[InterfaceProblem, ...]:
        """The problems, the first met first."""
        return tuple(InterfaceProblem(code, text, self._evidence[code]) for code, text in self._messages.items())
