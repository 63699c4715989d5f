"""Files beside a model are the model's own: what a stranger's folder links to from outside is not read, nor copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qbpass.models.errors import ModelFileError


def check_own(path: Path, folder: Path) -> None:
    """Raises ModelFileError where `path` is a link that leads out of `folder`.

    Files in the Hugging Face cache are links to their repository's blobs: those are the model's own.
    """
    try:
        target = path.resolve()
        own = any(target.is_relative_to(place.resolve()) for place in _places(folder))
    except (OSError, RuntimeError) as error:  # links in a circle: RuntimeError before Python 3.13
        raise ModelFileError(f"{path} is a link that leads nowhere: put the real file there") from error
    if not own:
        raise ModelFileError(
            f"{path} is a link out of the model's folder: put the real file there (for example `cp -L`)"
        )


def _places(folder: Path) -> Iterator[Path]:
    yield folder
    for above in folder.absolute().parents:
        if above.name == "snapshots":
            yield above.parent / "blobs"
