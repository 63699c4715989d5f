"""A decoder loads from a file or from a folder as exporters write it, with what lies beside the graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_graphs import save, tiny_decoder

from qbpass.models.errors import ContractError, ModelFileError
from qbpass.models.loading import find_graph, load_decoder, load_graph


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = save(tiny_decoder(2), tmp_path, "any_name.onnx")
    decoder = load_decoder(path)
    assert (decoder.path, decoder.folder, len(decoder.contract.kv)) == (path, tmp_path, 2)
    assert (decoder.context_length, decoder.eos_token_ids, decoder.tokenizer_files) == (None, (), {})


@pytest.mark.parametrize("name", ["model.onnx", "decoder_with_past_model.onnx", "onnx/model.onnx", "the_only_one.onnx"])
def test_a_folder_is_searched_for_its_graph(tmp_path: Path, name: str) -> None:
    path = save(tiny_decoder(1), (tmp_path / name).parent, Path(name).name)
    assert load_decoder(tmp_path).path == path


def test_a_genai_folder_names_its_graph(tmp_path: Path) -> None:
    save(tiny_decoder(1), tmp_path, "model.onnx")
    path = save(tiny_decoder(1), tmp_path, "special.onnx")
    model = {"decoder": {"filename": "special.onnx"}, "context_length": 77, "eos_token_id": [3, 4]}
    write(tmp_path, "genai_config.json", {"model": model})
    decoder = load_decoder(tmp_path)
    assert (decoder.path, decoder.context_length, decoder.eos_token_ids) == (path, 77, (3, 4))


@pytest.mark.parametrize("name", ["../other.onnx", "/etc/hosts"])
def test_a_genai_folder_can_not_name_a_graph_elsewhere(tmp_path: Path, name: str) -> None:
    write(tmp_path, "genai_config.json", {"model": {"decoder": {"filename": name}}})
    with pytest.raises(ModelFileError, match="outside its folder"):
        find_graph(tmp_path)


def test_an_ambiguous_folder_lists_its_graphs(tmp_path: Path) -> None:
    save(tiny_decoder(1), tmp_path, "a.onnx")
    save(tiny_decoder(1), tmp_path, "b.onnx")
    with pytest.raises(ModelFileError, match=r"2 graphs \(a.onnx, b.onnx\)"):
        find_graph(tmp_path)


def test_an_empty_folder_and_a_missing_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no \.onnx file"):
        load_decoder(tmp_path)
    with pytest.raises(ModelFileError, match="does not exist"):
        load_decoder(tmp_path / "nowhere")


def test_files_beside_the_graph_and_above_onnx_are_found(tmp_path: Path) -> None:
    save(tiny_decoder(1), tmp_path / "onnx")
    for name in ("tokenizer.json", "chat_template.jinja", "config.json"):
        write(tmp_path, name, "{}")
    write(tmp_path / "onnx", "config.json", {"n_positions": 128})
    decoder = load_decoder(tmp_path)
    assert decoder.tokenizer_files == {
        "tokenizer.json": tmp_path / "tokenizer.json",
        "chat_template.jinja": tmp_path / "chat_template.jinja",
        "config.json": tmp_path / "onnx" / "config.json",
    }
    assert decoder.context_length == 128


def test_files_above_an_ordinary_folder_are_not_its_own(tmp_path: Path) -> None:
    path = save(tiny_decoder(1), tmp_path / "model")
    write(tmp_path, "config.json", {"n_positions": 128})
    assert load_decoder(path).context_length is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": [2, 7, 2]}, "config.json": {"eos_token_id": 1}}, (2, 7)),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 1}}, (1,)),
        ({"config.json": {"eos_token_id": 0}}, (0,)),
        ({"config.json": {"eos_token_id": None}}, ()),
    ],
)
def test_stop_ids_come_from_the_first_file_that_names_them(
    tmp_path: Path, files: dict[str, Any], expected: tuple[int, ...]
) -> None:
    path = save(tiny_decoder(1), tmp_path)
    for name, content in files.items():
        write(tmp_path, name, content)
    assert load_decoder(path).eos_token_ids == expected


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{not json", "not valid JSON"),
        ("[1, 2]", "JSON list, not an object"),
        ("[" * 100_000, "not valid JSON"),
        ({"eos_token_id": "</s>"}, "not a token id or a list"),
        ({"eos_token_id": [2, True]}, "not a token id or a list"),
        ({"eos_token_id": -1}, "not a token id or a list"),
        ({"max_position_embeddings": "long"}, "not a positive integer"),
        ({"max_position_embeddings": 0}, "not a positive integer"),
        ('{"padding": "' + "x" * (17 * 2**20) + '"}', "more than the"),
    ],
)
def test_a_config_of_the_wrong_kind_is_named(tmp_path: Path, content: Any, says: str) -> None:
    path = save(tiny_decoder(1), tmp_path)
    write(tmp_path, "config.json", content)
    with pytest.raises(ModelFileError, match=says) as caught:
        load_decoder(path)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_graph_that_is_no_decoder_for_the_runtime_is_loaded_with_its_problems(tmp_path: Path) -> None:
    path = save(tiny_decoder(2, last_only="gather"), tmp_path)
    with pytest.raises(ContractError, match="last position only"):
        load_decoder(path)
    decoder = load_graph(path)
    assert [problem.code for problem in decoder.interface.problems] == ["LAST_TOKEN_LOGITS"]
    assert [pair.past_key for pair in decoder.interface.kv] == ["past.0.key", "past.1.key"]
    with pytest.raises(ContractError, match="last position only"):
        _ = decoder.contract


def test_weights_need_not_exist_where_a_graph_is_only_looked_at(tmp_path: Path) -> None:
    path = save(tiny_decoder(1), tmp_path, external=True)
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(ModelFileError, match="is missing"):
        load_graph(path)
    assert len(load_graph(path, weights="ignored").contract.kv) == 1


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["decoder_model.onnx", "decoder_model_merged.onnx", "encoder_model.onnx"], "decoder_model_merged.onnx"),
        (
            ["decoder_model.onnx", "decoder_with_past_model.onnx", "decoder_model_merged.onnx"],
            "decoder_with_past_model.onnx",
        ),
        (["onnx/model.onnx", "onnx/model_q4.onnx", "onnx/model_fp16.onnx"], "onnx/model.onnx"),
    ],
)
def test_of_several_graphs_the_decoder_with_a_past_is_taken(tmp_path: Path, names: list[str], taken: str) -> None:
    for name in names:
        save(tiny_decoder(1), (tmp_path / name).parent, Path(name).name)
    assert find_graph(tmp_path) == tmp_path / taken


def test_variants_without_a_usual_name_among_them_are_listed(tmp_path: Path) -> None:
    for name in ("model_q4.onnx", "model_fp16.onnx"):
        save(tiny_decoder(1), tmp_path / "onnx", name)
    with pytest.raises(ModelFileError, match=r"2 graphs \(onnx/model_fp16.onnx, onnx/model_q4.onnx\): name the file"):
        find_graph(tmp_path)


def test_a_genai_pipeline_of_one_graph_is_that_graph_and_of_several_is_listed(tmp_path: Path) -> None:
    stages = [{"embedding": {"filename": "embeddings.onnx"}}, {"generator": {"filename": "iterator.onnx"}}]
    write(tmp_path, "genai_config.json", {"model": {"decoder": {"pipeline": stages[:1]}}})
    assert find_graph(tmp_path) == tmp_path / "embeddings.onnx"
    write(tmp_path, "genai_config.json", {"model": {"decoder": {"pipeline": stages}}})
    with pytest.raises(ModelFileError, match=r"pipeline of 2 graphs \(embeddings.onnx, iterator.onnx\)"):
        find_graph(tmp_path)


@pytest.mark.parametrize("decoder", [{}, [], {"pipeline": 3}, {"pipeline": [3, {"a": 4}]}, {"filename": 3}])
def test_a_genai_folder_that_names_no_graph_says_so(tmp_path: Path, decoder: Any) -> None:
    write(tmp_path, "genai_config.json", {"model": {"decoder": decoder}})
    with pytest.raises(ModelFileError, match="names no decoder file"):
        find_graph(tmp_path)
