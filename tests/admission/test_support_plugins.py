"""Backends of third parties: installed packages that declare the entry point qbpass.support_rules."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from qbpass.admission.backends.docs import EXAMPLE_FILE
from qbpass.admission.backends.errors import SupportError
from qbpass.admission.backends.registry import BUILTIN, ENTRY_POINTS, known_backends


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of an importable module; its text is written by `written`."""
    name = re.sub(r"\W", "_", request.node.name)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def points(tmp_path: Path, module: str, text: str, attribute: str = "BACKEND") -> list[EntryPoint]:
    (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    return [EntryPoint("acme-npu", f"{module}:{attribute}", ENTRY_POINTS)]


def test_the_documented_example_is_a_backend(tmp_path: Path, module: str) -> None:
    known = known_backends(points(tmp_path, module, EXAMPLE_FILE))
    assert known.broken == ()
    assert len(known.backends) == len(BUILTIN) + 1
    backend = known.find("Acme_NPU")
    assert [rule.name for rule in backend.rules] == ["acme-npu-scatter"]


def test_several_backends_and_rules_for_a_known_one_come_from_one_entry_point(tmp_path: Path, module: str) -> None:
    text = EXAMPLE_FILE.replace(
        "BACKEND =",
        'CPU = Backend("ort-cpu", "", "onnxruntime", (NoScatter(),))\nBACKENDS = [CPU]\nBACKEND =',
    )
    text += "BACKENDS.append(BACKEND)\n"
    known = known_backends(points(tmp_path, module, text, "BACKENDS"))
    assert known.broken == ()
    assert known.find("acme-npu").title == "Acme's NPU compiler"
    cpu = known.find("ort-cpu")
    assert cpu.title == "ONNX Runtime, CPU provider", "a known backend stays what it is"
    assert cpu.rules[-1].name == "acme-npu-scatter"
    assert len(cpu.rules) == len(BUILTIN[0].rules) + 1


def test_a_package_is_used_whole_or_not_at_all(tmp_path: Path, module: str) -> None:
    text = EXAMPLE_FILE + "BACKENDS = [BACKEND, 3]\n"
    known = known_backends(points(tmp_path, module, text, "BACKENDS"))
    assert known.backends == BUILTIN
    assert "int is no Backend" in known.broken[0]


BROKEN = {
    "raises": ("1 / 0", "ZeroDivisionError"),
    "exits": ("raise SystemExit('bye')", "SystemExit"),
    "syntax": ("def (", "SyntaxError"),
    "imports nothing": ("import a_module_that_is_not_there", "ModuleNotFoundError"),
    "no such attribute": ("x = 1", "AttributeError"),
    "is no backend": ("BACKEND = 3", "int is no Backend"),
    "holds no rule": (EXAMPLE_FILE.replace("(NoScatter(),)", "(3,)"), "int is no SupportRule"),
    "its rule can not be asked": (EXAMPLE_FILE.replace("def check", "def ask"), "NoScatter is no SupportRule"),
    "its versions are text": (EXAMPLE_FILE.replace('VersionRange("2.0", "2.4")', '"2.0"'), "no VersionRange"),
    "its versions are none": (EXAMPLE_FILE.replace('"2.4")', '"newest")'), "two releases"),
    "takes a rule's name": (
        EXAMPLE_FILE.replace("acme-npu-scatter", "ort-kernel-registration").replace(
            'Backend("acme-npu"', 'Backend("ort-cpu"'
        ),
        "already one of ort-cpu",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_package_is_a_line_that_names_it_and_the_others_stay(tmp_path: Path, module: str, case: str) -> None:
    text, why = BROKEN[case]
    known = known_backends(points(tmp_path, module, text))
    (line,) = known.broken
    assert "'acme-npu'" in line
    assert module in line
    assert why in line
    assert "\n" not in line
    assert known.backends == BUILTIN
    with pytest.raises(SupportError, match="'acme-npu'") as refused:
        known.find("acme-npu")
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
