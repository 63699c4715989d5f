"""The command line: `qbpass COMMAND`. Commands are in qbpass/commands/, one a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from qbpass import __version__
from qbpass.commands import admit, export, generate, probe, qualify, rewrite, schema, serve, support
from qbpass.models.errors import QbpassError

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

app = typer.Typer(
    name="qbpass",
    help="Speculative decoding for ONNX decoders that returns the serial output bit for bit.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("export")(export.export)
app.command("admit")(admit.admit)
app.command("rewrite")(rewrite.rewrite)
app.command("probe")(probe.probe)
app.command("support")(support.support)
app.command("generate")(generate.generate)
app.command("serve")(serve.serve)
app.command("qualify")(qualify.qualify)
app.command("schema")(schema.schema)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"qbpass {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version


def run(arguments: Sequence[str] | None = None) -> int:
    """One command's exit code: its own answer, 2 for an error the user can mend (one line on stderr), 130 for Ctrl-C.

    An exception that is neither a QbpassError nor the system's (no space, no permission) is a bug and is raised.
    """
    try:
        app(args=None if arguments is None else list(arguments), prog_name="qbpass")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except QbpassError as error:
        return _complain(str(error))
    except BrokenPipeError:  # the reader of our output is gone; nothing is left to say, also not when Python exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _complain(_of_system(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _complain(text: str) -> int:
    from qbpass.reports.plain import visible

    # Names in it come from strangers' files: no control characters, and not a megabyte of them.
    print(f"qbpass: {visible(' '.join(text.split()), 1000)}", file=sys.stderr)
    return 2


def _of_system(error: OSError) -> str:
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{error.filename}: {reason}"


def main() -> None:
    sys.exit(run())
