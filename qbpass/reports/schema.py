"""The JSON schemas that ship: one file a report in schemas/, made of the report's own model.

`python -m qbpass.reports.schema` writes those that are made of models; a test holds both in step. A schema without a
model is written by hand into the same folder, and is found there by its name.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from qbpass.models.errors import QbpassError

#: report -> the pydantic model of its JSON, as module:class. The name is the command's.
MODELS = {
    "admit": "qbpass.reports.admission_document:AdmissionDocument",
    "probe": "qbpass.admission.probes.report:ProbeReport",
    "qualify": "qbpass.evidence.report:QualificationReport",
    "support": "qbpass.reports.support_model:SupportModel",
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_FOLDER = files("qbpass.reports") / "schemas"


class _Written(GenerateJsonSchema):
    """Of what is written: a field with a default is there too, unless it is left out where it is None."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def field_is_required(self, field: Any, total: bool) -> bool:
        return field.get("schema", {}).get("default", field) is not None


class SchemaError(QbpassError):
    """A report that has no schema."""


def schema_names() -> list[str]:
    """Every report whose schema ships."""
    return sorted(entry.name.removesuffix(".json") for entry in _FOLDER.iterdir() if entry.name.endswith(".json"))


def shipped_schema(name: str) -> str:
    """The text of the schema that ships. Raises SchemaError for a name that has none."""
    if name not in schema_names():
        raise SchemaError(f"no report is called {name[:40]!r}: choose one of {', '.join(schema_names())}")
    return (_FOLDER / f"{name}.json").read_text(encoding="utf-8")


def made_schema(name: str) -> str:
    """The schema of a report's model, as its file's text.

    Fields that a schema does not name are allowed in what it describes: within a schema_version fields may be added.
    """
    module, _, attribute = MODELS[name].partition(":")
    model: type[BaseModel] = getattr(import_module(module), attribute)
    described = _open(model.model_json_schema(mode="serialization", schema_generator=_Written))
    version = described["properties"]["schema_version"]["const"]
    head = {"$schema": DIALECT, "$id": f"urn:qbpass:schema:{name}:{version}"}
    return json.dumps({**head, **described, "title": f"qbpass {name} --json"}, indent=1, ensure_ascii=False) + "\n"


def _open(schema: Any) -> Any:
    """Without the models' own refusal of unknown fields, which is for those who write a report, not who read it."""
    if isinstance(schema, list):
        return [_open(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _open(entry) for key, entry in schema.items()}
    if kept.get("additionalProperties") is False:
        del kept["additionalProperties"]
    return kept


if __name__ == "__main__":
    for report in MODELS:
        (Path(__file__).parent / "schemas" / f"{report}.json").write_text(made_schema(report), encoding="utf-8")
