"""The house: rooms mapped to one import name, importing only downwards."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("models", "admission", "rewrites", "runtime", "qbpass")  # each imports only from those before it
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]


def sources(room: str) -> list[Path]:
    return sorted(path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path) -> Iterator[str]:
    """Every module a file names in an import, wherever in the file it is."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
            if node.level == 0 and node.module == "qbpass":
                yield from (f"qbpass.{alias.name}" for alias in node.names)


def room_of(module: str) -> str | None:
    """The room a module of qbpass lies in; None for other packages."""
    first, _, rest = module.partition(".")
    if first != "qbpass":
        return None
    second = rest.partition(".")[0]
    return second if second in ROOMS else "qbpass"


def package_of(folder: Path) -> str:
    parts = folder.relative_to(ROOT).parts
    return ".".join(parts if parts[0] == "qbpass" else ("qbpass", *parts))


def test_the_packages_of_the_project_are_the_folders_with_python_in_them() -> None:
    folders = {path.parent for room in ROOMS for path in sources(room)}
    assert sorted(PACKAGES) == sorted(package_of(folder) for folder in folders)
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_room_is_mapped_to_its_folder() -> None:
    mapping = PROJECT["tool"]["setuptools"]["package-dir"]
    assert mapping == {"qbpass": "qbpass"} | {f"qbpass.{room}": room for room in ROOMS if room != "qbpass"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_below_it(room: str) -> None:
    allowed = ROOMS[: ROOMS.index(room) + 1]
    upwards = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in sources(room)
        for module in imported(path)
        if (found := room_of(module)) is not None and found not in allowed
    ]
    assert upwards == []


def test_nothing_imports_a_room_by_its_folders_name_or_relatively() -> None:
    files = [path for room in (*ROOMS, "tests") for path in sources(room)]
    bare = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in files
        for module in imported(path)
        if module.partition(".")[0] in {*ROOMS, ""} - {"qbpass"}
    ]
    assert bare == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_can_be_imported_without_the_extra_export(package: str) -> None:
    assert importlib.import_module(package).__file__ is not None


def test_the_data_that_ships_is_installed() -> None:
    from importlib.resources import files

    assert (files("qbpass") / "data" / "demo_prompts.jsonl").is_file()
    assert (files("qbpass") / "py.typed").is_file()
    for name in ("schemas/admit.json", "templates/admission.html", "templates/page.css"):
        assert (files("qbpass.reports") / name).is_file()


def test_the_command_is_there_without_onnx_runtime_being_loaded() -> None:
    code = "import sys, qbpass.cli; print(qbpass.cli.run(['--help']), 'onnxruntime' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "0 False"


@pytest.mark.skipif("QBPASS_EXPECT_WHEEL" not in os.environ, reason="only `make wheel-test` installs a wheel")
def test_what_is_tested_is_the_installed_wheel() -> None:
    import qbpass

    assert qbpass.__file__ is not None
    assert not Path(qbpass.__file__).is_relative_to(ROOT / "qbpass")
    assert "site-packages" in Path(qbpass.__file__).parts
    assert qbpass.__version__ == importlib.metadata.version("qbpass") == PROJECT["project"]["version"]


def test_no_file_names_a_place_of_the_machine_it_was_written_on() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.splitlines() or [str(path.relative_to(ROOT)) for room in ROOMS for path in sources(room)]
    places = ["/" + "work/", "/" + "tmp/dev", "/" + "root/", "/" + "opt/pypi"]
    found = [
        f"{name}: {place}"
        for name in names
        if (ROOT / name).is_file()
        for place in places
        if place.encode() in (ROOT / name).read_bytes()
    ]
    assert found == []


def test_every_session_is_opened_by_one_function() -> None:
    """It is what stops worker threads from spinning and says how many there are."""
    openers = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in sources(room)
        if "InferenceSession(" in path.read_text(encoding="utf-8")
    ]
    assert openers == ["models/session.py"]
