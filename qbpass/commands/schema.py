"""`qbpass schema [REPORT]`."""

from __future__ import annotations

from typing import Annotated

import typer


def schema(
    report: Annotated[
        str | None, typer.Argument(metavar="[REPORT]", help="The command whose --json is described; none: list them.")
    ] = None,
) -> None:
    """Print the JSON schema (draft 2020-12) of what a command writes with --json."""
    from qbpass.reports.schema import schema_names, shipped_schema

    typer.echo("\n".join(schema_names()) if report is None else shipped_schema(report).rstrip("\n"))
