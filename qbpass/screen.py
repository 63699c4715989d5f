"""What people see: tables on stdout, notes and progress on stderr."""

from __future__ import annotations

import sys
import textwrap
import time
import unicodedata
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

#: Of progress that is not on a terminal: before the first line, between lines, within a step. Quick steps say nothing.
SECONDS_QUIET, SECONDS_BETWEEN_STEPS, SECONDS_WITHIN_STEP = 2.0, 1.0, 10.0
PLAIN_WIDTH = 160  # of a pipe or a file: rich would assume 80 columns and fold tables


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr. Text is printed as it is: no markup, no highlighting of numbers."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


def note(text: str) -> None:
    """A dim line on stderr, folded by the terminal alone."""
    console(stderr=True).print(text, style="dim", soft_wrap=True)


def say(text: str) -> None:
    """A line on stdout, folded by the terminal alone."""
    console().print(text, soft_wrap=True)


def say_hanging(text: str) -> None:
    """A line on stdout; on a terminal a long one is folded with what follows indented, elsewhere it stays one line."""
    shown = console()
    if shown.is_terminal:
        text = textwrap.fill(text, max(shown.width, 40), subsequent_indent="    ", break_long_words=False)
    shown.print(text, soft_wrap=True)


def write_model_text(text: str) -> None:
    """Text a model made, on stdout without a line's end. A terminal gets no control characters."""
    if sys.stdout.isatty():
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def table(columns: list[tuple[str, bool]], rows: list[list[str]], title: str | None = None) -> None:
    """Print a table on stdout. columns: (heading, whether it holds numbers)."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading, numeric in columns:
        shown.add_column(heading, justify="right" if numeric else "left")
    for row in rows:
        shown.add_row(*row)
    console().print(shown)


class Steps:
    """Progress on stderr: a bar on a terminal; elsewhere a line for each step but the short ones."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True) if self._console.is_terminal else None
        self._task = None if self._bar is None else self._bar.add_task("", total=None)
        self._said = ""
        self._when = time.monotonic() + SECONDS_QUIET - SECONDS_BETWEEN_STEPS

    def __enter__(self) -> Steps:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def text(self, text: str) -> None:
        """A step of unknown length."""
        self._show(text, None)

    def fraction(self, text: str, done: float | None) -> None:
        """A step that is `done` of 1."""
        self._show(text, done)

    def count(self, text: str, done: int, total: int) -> None:
        """A step that is `done` of `total`."""
        self._show(text, done / total if total else None)

    def _show(self, text: str, done: float | None) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text, total=None if done is None else 1.0, completed=done or 0.0)
            return
        now = time.monotonic()
        if now - self._when >= (SECONDS_WITHIN_STEP if text == self._said else SECONDS_BETWEEN_STEPS):
            percent = f" ({done:.0%})" if done else ""
            self._console.print(f"{text}{percent}", soft_wrap=True)
            self._said, self._when = text, now
