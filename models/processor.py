"""What a session computes on, as far as its bits depend on it: processor model, instruction sets, GPU."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
from pathlib import Path

# Flags by which ONNX Runtime's kernels choose a code path (x86, then Arm).
_CHOOSING = (
    "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "avx_vnni_int8", "avx_ne_convert",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "f16c",
    "asimddp", "i8mm", "bf16", "sve", "sve2", "fphp", "asimdhp", "sme",
)  # fmt: skip
_GPU_LIBRARIES = ("nvidia-cublas", "nvidia-cudnn")
CPUINFO = Path("/proc/cpuinfo")


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """The model name the system states, or what the platform module knows."""
    fields = _cpu_fields(cpuinfo)
    return fields.get("model name") or platform.processor() or platform.machine() or "unknown"


def instruction_sets(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Those of the processor that kernels choose by; only the machine type where the system does not list them."""
    fields = _cpu_fields(cpuinfo)
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return tuple(flag for flag in _CHOOSING if flag in flags) or (platform.machine() or "unknown",)


def gpu_name() -> str:
    """The first GPU's name and driver, as its own tool prints them; "unknown GPU" where the tool is not there."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown GPU"
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown GPU"
    return answer.stdout.strip() or "unknown GPU"


def gpu_libraries() -> tuple[str, ...]:
    """The installed pip packages of cuBLAS and cuDNN with their versions, in order; none where they are the system's.

    NVIDIA's packages for CUDA 13 have no -cu13 behind the name of cuBLAS, and those for CUDA 12 have.
    """
    installed = ((each.metadata["Name"] or "", each.version) for each in importlib.metadata.distributions())
    return tuple(sorted({f"{name} {found}" for name, found in installed if name.startswith(_GPU_LIBRARIES)}))


def _cpu_fields(cpuinfo: Path) -> dict[str, str]:
    """The first processor's fields; empty where there is no such file (macOS, Windows)."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = text.partition("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}
