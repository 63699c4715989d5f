"""docs/serving.md names what there is, and all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from served_model import Teller, service_of

from qbpass.models.tokenizer import TextCodec
from qbpass.runtime.server.bodies import ChatBody, CompletionBody

PAGE = Path(__file__).resolve().parents[3] / "docs" / "serving.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_every_field_is_in_the_table_of_fields(page: str) -> None:
    named = set(re.findall(r"`([a-z_]+)[`.]", section(page, "What a request may say")))
    fields = {*CompletionBody.model_fields, *ChatBody.model_fields}
    known = {*CompletionBody.REFUSED, *ChatBody.REFUSED, *CompletionBody.IGNORED, *ChatBody.IGNORED}
    assert (fields | known) - named - {"model", "prompt", "messages"} == set()
    assert named - fields - known - {"json_object", "json_schema", "grammar"} == set()


def test_every_metric_is_in_the_table_of_metrics(page: str, codec: TextCodec) -> None:
    named = set(re.findall(r"`(qbpass_[a-z_]+?)(?:_total)?[`{]", section(page, "Metrics")))
    registry = service_of(codec, Teller()).metrics.registry
    assert named == {metric.name for metric in registry.collect() if metric.name.startswith("qbpass_")}


def test_every_path_is_in_the_table_of_paths(page: str, codec: TextCodec) -> None:
    routes = service_of(codec, Teller()).routes
    assert {route.partition("{")[0].rstrip("/") for route in routes} == set(re.findall(r"(?:GET|POST) (/[\w/]+)", page))
