"""The command line, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from qbpass.cli import run


@pytest.fixture(autouse=True)
def nothing_decided_before(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`--layout auto` remembers what it decided, in the cache folder that tests share."""
    decision = tmp_path_factory.mktemp("choice") / "choice.json"
    monkeypatch.setattr("qbpass.rewrites.bundle_writer.decision_file", lambda recipe, asked: decision)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def qbpass_run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """`qbpass_run(*arguments)`: the exit code and what was printed. An exception that is a bug comes through."""

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


@pytest.fixture
def mistake(qbpass_run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`mistake(*arguments)`: the one line on stderr of a command with exit code 2. Fails where it is not that.

    Progress stays quiet: whether a step is long enough to be told of depends on the machine.
    """
    monkeypatch.setattr("qbpass.screen.SECONDS_QUIET", 1e9)

    def call(*arguments: object) -> str:
        answer = qbpass_run(*arguments)
        assert answer.code == 2, answer
        assert answer.out == ""
        assert answer.err.startswith("qbpass: "), answer.err
        assert answer.err.count("\n") == 1, answer.err
        return answer.err

    return call
