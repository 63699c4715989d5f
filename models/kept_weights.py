"""Weights that the optimizer left as they were stay in the user's own file; only the others are kept in another one.

ONNX Runtime writes every initializer of an optimized graph into one new file. Most hold bytes that a file of the user's
holds, too, often under another name or shape (a folded Reshape). Those are named there again and their copies dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import onnx

from qbpass.models.decoder import Decoder
from qbpass.models.external_data import external_entry, external_tensors, set_external_entry
from qbpass.models.weight_sources import weight_files

_HEAD = 4096  # bytes that two ranges are told apart by before they are compared whole
_CHUNK = 2**20  # no range is ever held as a whole
_MOST_COMPARED = 4  # ranges with the same head; a stranger's file may have any number of them
_CACHE_LINE = 64
_ALIGNMENT = 4096  # of what is kept: a page, so that mapped tensors begin at one


class _Range(NamedTuple):
    location: str
    offset: int
    length: int


def keep_in_place(
    optimized: onnx.ModelProto, data: Path, source: Decoder, *, copy_all: bool = False
) -> dict[str, Path]:
    """Points the tensors of `optimized` at those ranges of `source`'s weight files that hold the same bytes, and cuts
    the others' bytes, all that is left in `data`, together. `data` is gone where nothing is left; it gets another name
    where the user has a file called so.

    copy_all: nothing is pointed back.
    Returns location -> folder of every file of the user's that `optimized` names now. Memory does not depend on how
    much is compared, and no more disk is taken than `data` took.
    """
    user = _UserFiles(source)
    rest = []
    for tensor in external_tensors(optimized):
        copy = _Range(*external_entry(tensor))
        same = None if copy_all else user.find(tensor.name, data, copy)
        if same is None:
            rest.append((copy, tensor))
        else:
            set_external_entry(tensor, *same)
    elsewhere = {location: source.weights.folder_of(location).resolve() for location in user.found}
    if rest:
        kept = data.with_name(_free_name(data.name, user.paths.keys()))
        _cut_together(data, rest, kept.name)
        data.replace(kept)
    else:
        data.unlink(missing_ok=True)
    return elsewhere


def _free_name(name: str, taken: Collection[str]) -> str:
    """`name`, or the first of name.1.data, name.2.data, … that the user's files do not have."""
    stem, suffix = Path(name).stem, Path(name).suffix
    names = [name, *(f"{stem}.{number}{suffix}" for number in range(1, len(taken) + 1))]
    return next(candidate for candidate in names if candidate not in taken)


class _UserFiles:
    """Ranges of a decoder's weight files by their length and first bytes.

    paths: location -> file. found: the locations that were named so far.
    """

    def __init__(self, source: Decoder):
        self.found: set[str] = set()
        self.paths = weight_files(source.model, source.weights)
        self._ranges: dict[tuple[int, bytes], dict[_Range, str]] = {}
        for tensor in external_tensors(source.model):
            entry = _Range(*external_entry(tensor))
            head = _read(self.paths[entry.location], entry.offset, min(entry.length, _HEAD))
            self._ranges.setdefault((entry.length, head), {}).setdefault(entry, tensor.name)

    def find(self, name: str, data: Path, copy: _Range) -> _Range | None:
        """The user's range with the bytes of `copy` in `data`: first of those that the user calls so, too.

        Where ONNX Runtime reads a weight of the user's name it maps the very same address. One of another name it
        made itself, at a cache line's start, and what a kernel computes may depend on that.
        """
        head = _read(data, copy.offset, min(copy.length, _HEAD))
        ranges = self._ranges.get((copy.length, head), {})
        fit = [entry for entry in ranges if ranges[entry] == name or entry.offset % _CACHE_LINE == 0]
        for entry in sorted(fit, key=lambda entry: ranges[entry] != name)[:_MOST_COMPARED]:
            if same_bytes(self.paths[entry.location], entry.offset, data, copy.offset, copy.length):
                self.found.add(entry.location)
                return entry
        return None


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def same_bytes(one: Path, at: int, other: Path, other_at: int, length: int) -> bool:
    """False, too, where either file ends within."""
    with one.open("rb") as left, other.open("rb") as right:
        left.seek(at)
        right.seek(other_at)
        return all(len(part := left.read(size)) == size and part == right.read(size) for size in _chunks(length))


def _chunks(length: int) -> Iterator[int]:
    for start in range(0, length, _CHUNK):
        yield min(_CHUNK, length - start)


def _cut_together(data: Path, rest: list[tuple[_Range, onnx.TensorProto]], location: str) -> None:
    """Moves the ranges of `rest` to the front of `data`, in their order there, and cuts off what is behind them."""
    end = 0
    moved: dict[_Range, int] = {}
    with data.open("r+b") as file:
        for entry, tensor in sorted(rest, key=lambda pair: pair[0]):
            if entry not in moved:
                # Never behind where it lies now: what is moved must not overwrite what is still to be moved.
                moved[entry] = min(-(-end // _ALIGNMENT) * _ALIGNMENT, entry.offset)
                _move(file, entry.offset, moved[entry], entry.length)
                end = moved[entry] + entry.length
            set_external_entry(tensor, location, moved[entry], entry.length)
        file.truncate(end)


def _move(file: IO[bytes], start: int, to: int, length: int) -> None:
    done = 0
    for size in _chunks(length) if start != to else ():
        file.seek(start + done)
        part = file.read(size)
        file.seek(to + done)
        file.write(part)
        done += size
