"""JSON files beside a model: read with bounds, and every field checked before it is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qbpass.models.errors import ModelFileError

MAX_JSON_BYTES = 16 * 2**20
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelFileError where it is too large, not JSON or not an object."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelFileError(f"{path} is {size:,} bytes, more than the {limit:,} that qbpass reads: check the file")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path} can't be read ({error.strerror or error}): check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is not valid JSON: repair it, or take it from the model's source again"
        ) from error
    if not isinstance(value, dict):
        raise ModelFileError(
            f"{path} holds a JSON {type(value).__name__}, not an object: take it from the source again"
        )
    return value


def context_length(files: dict[str, Path]) -> int | None:
    """From config.json (max_position_embeddings, n_positions, ...), then genai_config.json; None where neither says."""
    if "config.json" in files:
        config = read_json(files["config.json"])
        for section in (config, config.get("text_config")):
            for key in _CONTEXT_KEYS:
                if isinstance(section, dict) and section.get(key) is not None:
                    return _positive(section[key], key, files["config.json"])
    if "genai_config.json" in files:
        value = genai_model(files["genai_config.json"]).get("context_length")
        return None if value is None else _positive(value, "model.context_length", files["genai_config.json"])
    return None


def eos_token_ids(files: dict[str, Path]) -> tuple[int, ...]:
    """From the first of generation_config.json, config.json, genai_config.json that names any; () where none does."""
    for name in ("generation_config.json", "config.json", "genai_config.json"):
        if name not in files:
            continue
        path = files[name]
        value = (genai_model(path) if name.startswith("genai") else read_json(path)).get("eos_token_id")
        if value is not None:
            return _token_ids(value, path)
    return ()


def genai_model(path: Path) -> dict[str, Any]:
    """The "model" section of a genai_config.json. Raises ModelFileError where it is missing."""
    model = read_json(path).get("model")
    if not isinstance(model, dict):
        raise ModelFileError(f'{path} has no "model" section: take it from the model\'s source again')
    return model


def _positive(value: Any, key: str, path: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelFileError(f"{key} in {path} is {str(value)[:40]!r}, not a positive integer: correct it")
    return value


def _token_ids(value: Any, path: Path) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ModelFileError(
            f"eos_token_id in {path} is {str(value)[:40]!r}, not a token id or a list of token ids: correct it"
        )
    return tuple(dict.fromkeys(ids))
