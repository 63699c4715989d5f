"""The schemas that ship describe what the commands write, and refuse what they don't."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import broken_models
import hostile_names
import pytest
from jsonschema import Draft202012Validator
from test_arms_table import arm
from test_arms_table import report as qualification

from qbpass.reports.schema import DIALECT, MODELS, made_schema, schema_names, shipped_schema
from qbpass.reports.support_model import SupportModel
from qbpass.rewrites.bundle import Bundle

Run = Callable[..., Any]


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(shipped_schema(name)))


@pytest.fixture(scope="module")
def admitted(tiny_eager: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `qbpass admit --as-exported --json` writes of the tiny export."""
    from qbpass.cli import run

    file = tmp_path_factory.mktemp("report") / "a.json"
    assert run(["admit", str(tiny_eager), "--as-exported", "--json", str(file)]) == 0
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_shipped_schema_is_what_its_model_says(name: str) -> None:
    """After a change of a report: `python -m qbpass.reports.schema`."""
    assert shipped_schema(name) == made_schema(name)


@pytest.mark.parametrize("name", schema_names())
def test_a_schema_is_one_of_its_dialect_and_names_its_version(name: str) -> None:
    schema = json.loads(shipped_schema(name))
    Draft202012Validator.check_schema(schema)
    version = schema["properties"]["schema_version"]["const"]
    assert schema["$schema"] == DIALECT
    assert schema["$id"] == f"urn:qbpass:schema:{name}:{version}"
    assert "schema_version" in schema["required"]


def test_every_report_with_a_model_ships_its_schema() -> None:
    assert set(MODELS) <= set(schema_names())


def test_the_report_of_an_admitted_export_fits_its_schema(admitted: dict[str, Any]) -> None:
    validator("admit").validate(admitted)
    assert admitted["sites"]
    assert admitted["interface"]["kv"]


@pytest.mark.parametrize(
    "damage",
    [broken_models.capped_scores, broken_models.no_kv_inputs, hostile_names.rename_everything],
    ids=lambda damage: damage.__name__,
)
def test_reports_of_other_graphs_fit_it_too(
    damage: Callable[[Path], Any], tiny_eager: Path, tmp_path: Path, qbpass_run: Run
) -> None:
    model = Path(shutil.copytree(tiny_eager, tmp_path / "model"))
    damage(model)
    answer = qbpass_run("admit", model, "--as-exported", "--json", "-")
    assert answer.code in (0, 1)
    validator("admit").validate(json.loads(answer.out))


def test_a_qualification_fits_its_schema(tiny_bundle: Bundle) -> None:
    found = qualification(R=arm(3), C_QB=arm(2)).model_copy(update={"recipe": tiny_bundle.manifest.recipe})
    validator("qualify").validate(found.to_json())


def test_what_a_backend_is_asked_fits_its_schema_and_nothing_is_supported(tiny_eager: Path, qbpass_run: Run) -> None:
    """Against the model too, which refuses fields that it does not name."""
    answer = qbpass_run("support", tiny_eager, "--backend", "ort-cuda", "--as-exported", "--json", "-")
    found = json.loads(answer.out)
    validator("support").validate(found)
    SupportModel.model_validate(found)
    for verdict in ("true", True, None):
        changed = found | {"answers": [found["answers"][0] | {"verdict": verdict}]}
        assert not validator("support").is_valid(changed)


@pytest.mark.parametrize("part", ["", "graph", "interface", "sites.0", "sites.0.facts", "sites.0.facts.tensors.q"])
def test_a_report_without_one_of_its_fields_does_not_fit(admitted: dict[str, Any], part: str) -> None:
    for field in at(admitted, part):
        short = json.loads(json.dumps(admitted))
        del at(short, part)[field]
        assert not validator("admit").is_valid(short), f"{part}.{field}"


def test_a_report_with_a_value_of_another_kind_does_not_fit(admitted: dict[str, Any]) -> None:
    changes: dict[str, Any] = {
        "schema_version": 2,
        "admitted": "yes",
        "sites.0.layer": "0",
        "sites.0.diagnostics": [{"code": "lower case", "message": "", "evidence": {}}],
        "graph.state": "optimized",
    }
    for path, value in changes.items():
        changed = json.loads(json.dumps(admitted))
        parent, _, field = path.rpartition(".")
        at(changed, parent)[field] = value
        assert not validator("admit").is_valid(changed), path


def test_readers_of_a_version_take_fields_added_within_it(admitted: dict[str, Any]) -> None:
    grown = json.loads(json.dumps(admitted))
    grown["sites"][0]["new"] = grown["new"] = 1
    validator("admit").validate(grown)


def test_the_command_prints_a_schema_and_names_those_there_are(qbpass_run: Run, mistake: Callable[..., str]) -> None:
    assert qbpass_run("schema").out.split() == schema_names()
    assert qbpass_run("schema", "admit").out == shipped_schema("admit")
    assert "admit" in mistake("schema", "../../pyproject")


def at(document: Any, path: str) -> Any:
    for step in filter(None, path.split(".")):
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document
