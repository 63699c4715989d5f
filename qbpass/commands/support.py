"""`qbpass support MODEL --backend NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from qbpass.commands.options import Json, OptionError, Provider, Threads, chosen, session_spec
from qbpass.json_file import write_json
from qbpass.screen import Steps, note
from qbpass.support_questions import Asking, Emission, questions_of
from qbpass.support_table import show_backends, show_support

if TYPE_CHECKING:
    from qbpass.admission.backends.rule import Backend, Target

NEWEST = "the newest that its rules were read in"
_EMISSIONS = {"guarded": "guarded", "specialized": "active"}


def support(
    model: Annotated[
        Path | None, typer.Argument(help="An .onnx file, an exporter's folder or a bundle.", show_default=False)
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="NAME", help="Who is asked; `list` shows them.", show_default=False),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option("--queries", min=1, max=64, help="Rows of a verification call. [default: 4, or the bundle's]"),
    ] = None,
    kernel_table: Annotated[
        Path | None,
        typer.Option(
            "--kernel-table",
            metavar="FILE",
            help="OperatorKernels.md of an ONNX Runtime release, in place of this one.",
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="V", help="The backend's version. [default: this wheel's, or the table's]"),
    ] = None,
    json: Json = None,
    as_exported: Annotated[
        bool,
        typer.Option("--as-exported", help="Ask about the file's own graph; needs no weights and no ONNX Runtime."),
    ] = False,
    emit: Annotated[
        str, typer.Option("--emit", metavar="guarded|specialized", help="The rewritten graph that is asked about.")
    ] = "guarded",
    every: Annotated[bool, typer.Option("--all", help="A row for each answer, `unknown` ones too.")] = False,
    list_backends: Annotated[bool, typer.Option("--list", help="Show the backends and their rules.")] = False,
    provider: Provider = "cpu",
    threads: Threads = None,
) -> None:
    """Say what a backend is known not to do of a decoder, and of its query-to-batch form.

    An answer is `false`, with the rule, the versions it was read in and its evidence, or `unknown`; there is no third.
    Exit code: 0 all unknown, 1 some false, 2 unusable input.
    """
    from qbpass.admission.backends.ask import ask
    from qbpass.admission.backends.document import support_document
    from qbpass.admission.backends.registry import known_backends

    known = known_backends()
    if list_backends or backend == "list":
        show_backends(known)
        return
    if model is None or backend is None:
        missing = "MODEL" if model is None else "--backend"
        raise OptionError(f"no {missing} is given: `qbpass support MODEL --backend NAME`; --list shows the backends")
    emission = cast(Emission, _EMISSIONS[chosen("--emit", emit, tuple(_EMISSIONS))])
    asked = known.find(backend)
    for line in known.broken:
        note(f"qbpass: {line}: left out")
    aim = _target(asked, kernel_table, version)
    with Steps() as steps:
        spec = None if as_exported else session_spec(provider, threads)
        questions = questions_of(model, Asking(asked.asks, queries, emission, spec, steps.text))
        steps.text(f"asking {asked.name}")
        notes = [*questions.notes, *_chosen_note(aim, asked), *aim.notes, *known.broken]
        details = questions.details | {"version_from": aim.version_from, "kernels": aim.kernels}
        report = ask(
            asked,
            questions.descriptors,
            aim.target,
            notes=notes,
            details=details,
        )
    if json is not None:
        write_json(json, support_document(report))
    if json is None or str(json) != "-":
        show_support(report, asked, every=every)
    raise typer.Exit(1 if report.verdict == "false" else 0)


@dataclass(frozen=True)
class _Aim:
    """What is asked, and where its version and its kernels are from."""

    target: Target
    version_from: str
    kernels: str | None
    notes: tuple[str, ...] = ()


def _target(backend: Backend, table: Path | None, version: str | None) -> _Aim:
    """The backend at a version: that of the option, of the table, of the running wheel that has it, else its default.

    Raises SupportError for a file that is no kernel table, OptionError for an option that the backend does not have.
    """
    from qbpass.admission.backends.kernel_document import read_kernel_table
    from qbpass.admission.backends.rule import Target
    from qbpass.admission.backends.versions import release

    if version is not None and release(version) is None:
        raise OptionError(f"--version {version} is no release: give its numbers, such as {backend.default_version}")
    reads_kernels = any(rule.versions is None for rule in backend.rules)
    if table is not None:
        if not reads_kernels:
            raise OptionError(f"{backend.name} has no rule that reads a kernel table: leave out --kernel-table")
        kernels = read_kernel_table(table, version)
        missing = () if kernels.has_provider(backend.provider or "") else (_absent(backend, str(table)),)
        source = "--version" if version else "the table's name" if kernels.version else "nothing: give --version"
        return _Aim(Target(backend.name, backend.provider, kernels.version, kernels), source, kernels.source, missing)
    running = _running_version(backend)
    if version is None:
        version, source = (running, "the running wheel") if running else (backend.default_version, NEWEST)
    else:
        source = "--version"
    if not reads_kernels:
        return _Aim(Target(backend.name, backend.provider, version), source, None)
    return _with_running_kernels(backend, version, source, running)


def _chosen_note(aim: _Aim, backend: Backend) -> tuple[str, ...]:
    """A version that nobody named and no wheel has is said to be the rules' own."""
    if aim.version_from != NEWEST:
        return ()
    return (f"asked about {backend.project} {aim.target.version}, {NEWEST}: name yours with --version",)


def _with_running_kernels(backend: Backend, version: str | None, source: str, running: str | None) -> _Aim:
    """The running wheel's kernels where it is the version that is asked about and registers any for the provider."""
    from qbpass.admission.backends.live_kernels import live_kernels
    from qbpass.admission.backends.rule import Target

    without = Target(backend.name, backend.provider, version)
    hint = "give the release's docs/OperatorKernels.md with --kernel-table"
    if running is None or running != version:
        return _Aim(without, source, None, (f"no kernel table of {backend.project} {version}: {hint}",))
    kernels, told = live_kernels()
    if kernels is None:
        return _Aim(without, source, None, (f"{told}: {hint}",))
    if not kernels.has_provider(backend.provider or ""):
        return _Aim(without, source, None, (_absent(backend, told),))
    return _Aim(Target(backend.name, backend.provider, version, kernels), source, told)


def _running_version(backend: Backend) -> str | None:
    """The version of the running onnxruntime where it is the backend's project and has its provider."""
    if backend.provider is None or not backend.project.startswith("onnxruntime"):
        return None
    try:
        import onnxruntime
    except ImportError:
        return None
    found: str = onnxruntime.__version__
    return found if backend.provider in onnxruntime.get_available_providers() else None


def _absent(backend: Backend, where: str) -> str:
    return f"no kernel of {backend.provider} is in {where}: this says nothing about it"
