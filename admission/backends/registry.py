"""The backends that can be asked: those of this package, and those of installed packages (`qbpass.support_rules`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points

from qbpass.admission.backends import (
    ggml_vulkan,
    ort_coreml,
    ort_cpu,
    ort_cuda,
    ort_cuda_graphs,
    ort_openvino,
    ort_qnn,
    ort_tensorrt,
    ort_web_jsep,
    ort_webgpu,
)
from qbpass.admission.backends.errors import SupportError
from qbpass.admission.backends.rule import Backend, SupportRule
from qbpass.admission.backends.versions import VersionRange

ENTRY_POINTS = "qbpass.support_rules"

BUILTIN: tuple[Backend, ...] = tuple(
    module.BACKEND
    for module in (
        ort_cpu,
        ort_cuda,
        ort_cuda_graphs,
        ort_tensorrt,
        ort_openvino,
        ort_webgpu,
        ort_web_jsep,
        ort_coreml,
        ort_qnn,
        ggml_vulkan,
    )
)


@dataclass(frozen=True)
class Known:
    """Backends by name, built in and installed; broken: one line for each installed package that could not be used."""

    backends: tuple[Backend, ...]
    broken: tuple[str, ...] = ()

    def find(self, name: str) -> Backend:
        """By name or alias, in any case, `_` and `-` alike. Raises SupportError where nobody knows it."""
        wanted = _normal(name)
        for backend in self.backends:
            if wanted in {_normal(known) for known in (backend.name, *backend.aliases)}:
                return backend
        names = ", ".join(backend.name for backend in self.backends)
        why = f"; {'; '.join(self.broken)}" if self.broken else ""
        raise SupportError(f"no rules for a backend {name!r}: choose one of {names}{why}")


def known_backends(installed: Sequence[EntryPoint] | None = None) -> Known:
    """Every backend. installed: the entry points to read; those of this environment where not given."""
    points = entry_points(group=ENTRY_POINTS) if installed is None else installed
    backends, broken = {backend.name: backend for backend in BUILTIN}, []
    for point in sorted(points, key=lambda point: point.name):
        extended = dict(backends)
        try:
            for backend in _loaded(point):
                _add(backend, extended)
            backends = extended  # a package is used whole or not at all
        except (Exception, SystemExit) as error:  # a stranger's code: what it raises is its author's to mend, and named
            broken.append(f"the support rules {_named(point)} can't be used ({_told(error)})")
    return Known(tuple(backends.values()), tuple(broken))


def _loaded(point: EntryPoint) -> Iterator[Backend]:
    """A Backend, or several. Raises TypeError where it is anything else, or a rule has not the form of SupportRule."""
    value = point.load()
    for backend in (
        (value,) if isinstance(value, Backend) else tuple(value) if isinstance(value, Iterable) else (value,)
    ):
        if not isinstance(backend, Backend):
            raise TypeError(f"{type(backend).__name__} is no Backend")
        for rule in backend.rules:
            if not isinstance(rule, SupportRule) or not callable(rule.check):
                raise TypeError(f"{type(rule).__name__} is no SupportRule: it needs name, versions, sources and check")
            if not (rule.versions is None or isinstance(rule.versions, VersionRange)):
                raise TypeError(f"the versions of {rule.name} are no VersionRange")
        yield backend


def _add(backend: Backend, backends: dict[str, Backend]) -> None:
    """A backend of a known name adds its rules to it; names of rules are unique."""
    known = backends.get(backend.name)
    names = {rule.name for rule in known.rules} if known else set()
    for rule in backend.rules:
        if rule.name in names:
            raise ValueError(f"the rule {rule.name} is already one of {backend.name}")
        names.add(rule.name)
    backends[backend.name] = backend if known is None else replace(known, rules=(*known.rules, *backend.rules))


def _named(point: EntryPoint) -> str:
    package = point.dist.name if point.dist is not None else None
    return f"{point.name!r} ({point.value}{f', package {package}' if package else ''})"


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-")
