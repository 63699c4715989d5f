"""Opening ONNX Runtime sessions: provider, threads and optimization level said out loud, never chosen in silence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qbpass.models.errors import ModelFileError, ProviderError

if TYPE_CHECKING:
    from qbpass.models.weight_sources import WeightSources

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",  # its device CPU: runs on any machine
}

#: Providers that compile parts of a graph into nodes of their own. What they run can't be written out as ONNX.
COMPILING = frozenset({"openvino"})

_GET = {
    "cpu": "install the extra qbpass[cpu]",
    "cuda": "install the extra qbpass[cuda] in an environment without the cpu extra",
    "openvino": "install onnxruntime-openvino in an environment without another onnxruntime",
}


@dataclass(frozen=True)
class SessionSpec:
    """What a session runs on. Part of the recipe: other threads or another provider are another reference."""

    provider: str = "cpu"  # a key of PROVIDERS
    threads: int = field(default_factory=lambda: min(os.cpu_count() or 1, 16))
    use_tf32: bool = False  # CUDA only: TF32 products are not fp32 products
    capture: bool = False  # CUDA only: CUDA graphs, for a static graph alone (runtime/static_target.py)

    def provider_list(self) -> list[Any]:
        """What ONNX Runtime is given. Nothing is appended behind the provider asked for.

        Raises ProviderError where the installed ONNX Runtime does not have the provider.
        """
        import onnxruntime as ort

        if self.provider not in PROVIDERS:
            raise ProviderError(f"unknown provider {self.provider!r}: choose one of {', '.join(sorted(PROVIDERS))}")
        name = PROVIDERS[self.provider]
        if name not in ort.get_available_providers():
            raise ProviderError(
                f"{name} is not in this onnxruntime {ort.__version__} "
                f"(it has {', '.join(ort.get_available_providers())}): {_GET[self.provider]}, or use another --provider"
            )
        options = self._provider_options()
        return [(name, options)] if options else [name]

    def _provider_options(self) -> dict[str, str]:
        if self.provider == "cuda":
            captured = {"enable_cuda_graph": "1"} if self.capture else {}
            return {"use_tf32": "1" if self.use_tf32 else "0", **captured}
        if self.provider == "openvino":  # its threads are its own: intra_op_num_threads does not reach them
            return {"device_type": "CPU", "num_of_threads": str(self.threads)}
        return {}


def open_session(
    graph: Path | bytes,
    spec: SessionSpec,
    *,
    weights: WeightSources | None = None,
    optimize: bool = False,
    level: Literal["all", "basic"] = "all",
    write_optimized: Path | None = None,
    profile: Path | None = None,
    entries: Mapping[str, str] | None = None,
) -> Any:
    """An `onnxruntime.InferenceSession` over `graph`, a file or a serialized ModelProto.

    weights: where its external weights lie; those of a file beside it where nothing is said.
    optimize: ONNX Runtime's default optimization; off for every graph that is already frozen.
    level: how far `optimize` goes. "basic" leaves out what one provider alone would run.
    write_optimized: where the optimized graph goes (its initializers over 1 KiB into `<stem>.data` beside it).
    profile: what the profile's file name begins with; `end_profiling` of the session writes it.
    entries: further session entries, such as what to record.
    Raises ProviderError where the provider asked for did not load, ModelFileError where the graph could not be loaded.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # what ONNX Runtime logs as an error it raises, too: once is enough
    options.intra_op_num_threads = spec.threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = _level(level if optimize else "off")
    # Worker threads stop spinning when a run ends: several sessions in one process would otherwise burn each other's
    # cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if weights is not None and (isinstance(graph, bytes) or weights.elsewhere):
        graph, folder = _with_folder(graph, weights)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    if write_optimized is not None:
        options.optimized_model_filepath = str(write_optimized)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{write_optimized.stem}.data"
        )
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    providers = spec.provider_list()
    _preload_cuda(spec)
    try:
        session = ort.InferenceSession(
            graph if isinstance(graph, bytes) else str(graph), options, providers=providers, enable_fallback=False
        )
    except Exception as error:  # ONNX Runtime raises a family of private types
        raise ModelFileError(f"ONNX Runtime could not load the graph: {one_line(error)}") from error
    if PROVIDERS[spec.provider] not in session.get_providers():
        raise ProviderError(
            f"{PROVIDERS[spec.provider]} was asked for and did not load (running: "
            f"{', '.join(session.get_providers())}): check {_LIBRARIES[spec.provider]}, or use another --provider"
        )
    return session


def _with_folder(graph: Path | bytes, weights: WeightSources) -> tuple[bytes, Path]:
    """The graph and the folder its weights are mapped from: ONNX Runtime takes one."""
    serialized = graph if isinstance(graph, bytes) else graph.read_bytes()
    return weights.in_one_folder(serialized) if weights.elsewhere else (serialized, weights.folder)


_LIBRARIES = {
    "cpu": "the onnxruntime package",
    "cuda": "that nvidia-smi shows a GPU, and the CUDA and cuDNN libraries",
    "openvino": "the OpenVINO libraries of the onnxruntime-openvino package",
}


def _level(name: str) -> Any:
    import onnxruntime as ort

    levels = ort.GraphOptimizationLevel
    return {"all": levels.ORT_ENABLE_ALL, "basic": levels.ORT_ENABLE_BASIC, "off": levels.ORT_DISABLE_ALL}[name]


def _preload_cuda(spec: SessionSpec) -> None:
    """CUDA and cuDNN from pip packages are found only once they are preloaded."""
    import onnxruntime as ort

    if spec.provider == "cuda" and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()


def one_line(error: BaseException, limit: int = 300) -> str:
    """The first line of an error, cut to `limit` characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
