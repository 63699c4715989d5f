"""The rule that all of ONNX Runtime's providers with kernels of their own share: what is not registered is not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qbpass.admission.backends.answers import FalseAnswer
from qbpass.admission.backends.descriptor import Descriptor
from qbpass.admission.backends.kernel_table import OPEN, KernelRow, Section
from qbpass.admission.backends.rule import Source, Target


class KernelRegistration:
    """What it refutes: An operator, a version of an operator or an element type that the provider registers no kernel
    for, in the kernel table of a release or in the running wheel.

    Why it holds: A node runs on a provider only with a kernel registered for its operator, its operator's version and
    its types; a registration without an end (`13+`) is for that version alone, and not for later versions of the
    operator. Where there is none, ONNX Runtime runs the operator's function body, puts a Cast around it, or gives it
    to another provider: this provider has no kernel for it either way.

    Example: `GroupQueryAttention` in float32 on CUDA, whose row allows T = bfloat16, float16.
    """

    name = "ort-kernel-registration"
    versions = None  # of whatever release the table is
    sources = (
        Source(
            "microsoft/onnxruntime",
            "032935e6b58aed06d2ffb131f33d23ce65d2bbf6",
            "onnxruntime/core/framework/kernel_registry.cc",
            "VerifyVersion and MatchKernelDefTypes",
        ),
        Source(
            "microsoft/onnxruntime",
            "issue 26065",
            "Shape of opset 21 on CUDA",
            "registered for 13+ alone, it fell to CPU",
        ),
        Source("microsoft/onnxruntime", "1.23.0 to 1.30.0", "docs/OperatorKernels.md", "the rows of the given table"),
        Source(
            "onnxruntime",
            "1.32.0",
            "a session over GlobalLpPool at opset 22, registered for 2+",
            "NOT_IMPLEMENTED: Could not find an implementation for GlobalLpPool(22)",
        ),
    )

    def check(self, descriptor: Descriptor, target: Target) -> FalseAnswer | None:
        """Nothing is said without a table, for a provider it does not list, or for a domain nobody registers.

        The last is how operators of custom libraries look: their kernels are in no table.
        """
        table, provider = target.kernels, target.provider
        if table is None or provider is None or not table.has_provider(provider):
            return None
        if not table.has_domain(descriptor.domain):
            return None
        section = table.section(provider, descriptor.domain)
        rows = section.of(descriptor.operator)
        if not rows:
            return self._no_row(descriptor, section, target)
        serving = [row for row in rows if descriptor.since is None or row.serves(descriptor.since)]
        if not serving:
            return self._no_version(descriptor, section, rows, target)
        rejected = [row.rejects(descriptor) for row in serving]
        if all(broken is not None for broken in rejected):
            broken = [pair for pair in rejected if pair is not None]
            return self._no_type(descriptor, section, serving, broken[0], target)
        return None

    def _no_row(self, descriptor: Descriptor, section: Section, target: Target) -> FalseAnswer:
        table = target.kernels
        assert table is not None
        elsewhere = table.elsewhere(descriptor.operator, section.provider)
        evidence = _evidence(target, section, section.around(descriptor.operator)) | {
            "elsewhere": [{"provider": s.provider, "domain": _shown(s.domain)} | row.to_json() for s, row in elsewhere]
        }
        return FalseAnswer(
            f"{section.provider} registers no kernel for {descriptor.label}: none of its {len(section.rows)} rows of "
            f"{_shown(section.domain)} is for it{_body(descriptor)}",
            evidence,
        )

    def _no_version(
        self, descriptor: Descriptor, section: Section, rows: Sequence[KernelRow], target: Target
    ) -> FalseAnswer:
        registered = ", ".join(dict.fromkeys(row.versions for row in rows))
        older = any(row.end == OPEN and row.start < (descriptor.since or 0) for row in rows)
        why = ": a registration without an end is for its first version alone" if older else ""
        return FalseAnswer(
            f"{section.provider} registers {descriptor.label} for {registered}, and opset {descriptor.opset} has its "
            f"version {descriptor.since}{why}{_body(descriptor)}",
            _evidence(target, section, rows) | {"version": descriptor.since},
        )

    def _no_type(
        self,
        descriptor: Descriptor,
        section: Section,
        rows: Sequence[KernelRow],
        broken: tuple[str, str],
        target: Target,
    ) -> FalseAnswer:
        constraint, found = broken
        return FalseAnswer(
            f"{section.provider} registers {descriptor.label} for other types: {constraint} is {found} here"
            f"{_body(descriptor)}",
            _evidence(target, section, rows) | {"constraint": constraint, "type": found},
        )


def _evidence(target: Target, section: Section, rows: Sequence[KernelRow]) -> dict[str, Any]:
    table = target.kernels
    assert table is not None
    lines = {} if section.lines is None else {"section_lines": list(section.lines)}
    return {
        "table": table.source,
        "provider": section.provider,
        "domain": _shown(section.domain),
        "section_rows": len(section.rows),
        **lines,
        "rows": [row.to_json() for row in rows],
    }


def _shown(domain: str) -> str:
    return domain or "ai.onnx"


def _body(descriptor: Descriptor) -> str:
    return "; its schema has a function body, which would be run in its place" if descriptor.function_body else ""


KERNEL_REGISTRATION = KernelRegistration()
