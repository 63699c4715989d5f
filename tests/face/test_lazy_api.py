"""`import qbpass` is light, and every public name is there when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import qbpass

HEAVY = {"onnx", "onnxruntime", "torch", "numpy", "networkx", "tokenizers"}
ROOMS = {"qbpass.models", "qbpass.admission", "qbpass.rewrites", "qbpass.runtime", "qbpass.evidence"}


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(answer.stdout.splitlines()[-1].split())


def test_importing_qbpass_imports_no_room_and_nothing_heavy() -> None:
    assert not loaded_after("import qbpass") & {*HEAVY, *ROOMS, "pydantic", "rich", "typer"}


def test_the_command_line_loads_nothing_heavy_before_a_command_runs() -> None:
    assert not loaded_after("import qbpass.cli") & HEAVY


@pytest.mark.parametrize("name", qbpass.__all__)
def test_every_public_name_resolves_to_the_object_of_that_name(name: str) -> None:
    value = getattr(qbpass, name)
    assert getattr(value, "__name__", name) == name


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        qbpass.no_such_name  # noqa: B018


def test_all_lists_every_lazy_name_and_no_other() -> None:
    assert set(qbpass.__all__) == {*qbpass._HOMES, "__version__"}
