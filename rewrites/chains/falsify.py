"""Tries to prove a chain wrong on this machine: blocks of rows against the operator run on each row alone.

The rows alone run as serial decoding does without a shared buffer: the present of one call is the past of the next.
Blocks run over one buffer. Outputs and the rows written are compared byte for byte, so what a kernel would do otherwise
over another memory layout shows here, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from qbpass.admission.fused_site import FusedSite
from qbpass.models.decoder import Decoder
from qbpass.models.errors import ModelFileError
from qbpass.models.session import SessionSpec, one_line, open_session
from qbpass.rewrites.apply import rewrite_graph
from qbpass.rewrites.chains.alone import fused_alone, fused_node
from qbpass.rewrites.chains.cache import link_cache_name, link_updated_name
from qbpass.rewrites.chains.operands import FusedOperands, random_fused_operands
from qbpass.rewrites.chains.plan import ChainPlan
from qbpass.rewrites.falsify import Witness
from qbpass.rewrites.kv_cache import numpy_dtype
from qbpass.rewrites.plan import RewritePlan

#: Pasts whose blocks are tried: small ones, and around the key blocks of flash kernels.
CHAIN_PASTS = (*range(0, 10), *range(14, 18), *range(62, 66), *range(126, 130), *range(254, 258), *range(510, 514))

#: Spare rows of the buffers that blocks run over: none, and some.
SPARE_ROWS = (0, 37)


@dataclass
class ChainTrial:
    """What was tried. rows: rows compared."""

    operator: str
    rows: int = 0
    differing: list[Witness] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        return {
            "form": f"{self.operator} query by query",
            "verdict": "false" if self.differing else "unknown",
            "rows": self.rows,
            "rows_differing": len(self.differing),
            "witness": asdict(self.differing[0]) if self.differing else None,
        }


class ChainFalsifier:
    """One fused site: its serial rows, and trials of its chain against them."""

    def __init__(
        self,
        frozen: Decoder,
        site: FusedSite,
        max_queries: int,
        spec: SessionSpec,
        seed: int = 0,
        pasts: Iterable[int] = CHAIN_PASTS,
    ):
        self.site, self.max_queries, self.spec, self.seed = site, max_queries, spec, seed
        self.alone = fused_alone(frozen, site)
        longest = _positions(self.alone, site) - max_queries
        self.pasts = tuple(past for past in pasts if past <= longest)
        self.reach = max(self.pasts, default=0) + max_queries
        self.operands: FusedOperands = random_fused_operands(frozen, site, self.reach, seed)
        self.serial, self.key_1HnD, self.value_1HnD = self._serial_rows()

    def _serial_rows(self) -> tuple[list[bytes], np.ndarray, np.ndarray]:
        """Every position's output, and the cache behind the last one: (1, Hkv, reach, d), (1, Hkv, reach, dv)."""
        site, dtype = self.site, numpy_dtype(self.site.elem_type)
        session = open_session(self.alone.model.SerializeToString(), self.spec, weights=self.alone.weights)
        key = np.empty((1, site.kv_heads, 0, site.head_dim), dtype)
        value = np.empty((1, site.kv_heads, 0, site.value_dim), dtype)
        wanted = {entry.name for entry in session.get_inputs()}
        outputs = []
        for past in range(self.reach):
            feeds = self._feeds(past, 1) | {site.past_key: key, site.past_value: value}
            names = [site.output, site.present_key, site.present_value]
            output, key, value = _run(session, site, names, {k: v for k, v in feeds.items() if k in wanted})
            outputs.append(output.tobytes())
        return outputs, key, value

    def _feeds(self, past: int, queries: int) -> dict[str, np.ndarray]:
        extent = past + queries
        return {
            **self.operands.of_call(past, queries),
            self.alone.contract.input_ids: np.zeros((1, queries), np.int64),
            self.site.seqlens_k: np.array([extent - 1], np.int32),
            self.site.total: np.array([extent], np.int32),
        }

    def trial(self) -> ChainTrial:
        """Every block of 1 .. max_queries rows behind every past, over buffers with and without spare rows."""
        plan = RewritePlan("pq", 2, self.max_queries, (), chains=(ChainPlan(self.site),))
        model = rewrite_graph(self.alone, plan, "active")
        session = open_session(model.SerializeToString(), self.spec, weights=self.alone.weights)
        result = ChainTrial(self.site.operator)
        for past in self.pasts:
            for queries in range(1, self.max_queries + 1):
                for spare in SPARE_ROWS:
                    self._try(session, result, past, queries, spare)
        return result

    def _try(self, session: Any, result: ChainTrial, past: int, queries: int, spare: int) -> None:
        site, extent = self.site, past + queries
        binding = session.io_binding()
        wanted = {entry.name for entry in session.get_inputs()}
        for name, array in self._feeds(past, queries).items():
            if name in wanted:
                binding.bind_cpu_input(name, array)
        caches = {"key": self.key_1HnD, "value": self.value_1HnD}
        memory = {part: self._on_device(_buffer(whole, past, extent + spare)) for part, whole in caches.items()}
        scratch = {part: self._on_device(np.zeros_like(whole[:, :, :1])) for part, whole in caches.items()}
        for link in range(self.max_queries):
            for part, given in (memory if link < queries else scratch).items():
                where = (given.device_name(), 0, numpy_dtype(site.elem_type), given.shape(), given.data_ptr())
                binding.bind_input(link_cache_name(site.layer, part, link), *where)
                binding.bind_output(link_updated_name(site.layer, part, link), *where)
        output = np.empty((1, queries, site.heads * site.value_dim), numpy_dtype(site.elem_type))
        binding.bind_output(site.output, "cpu", 0, output.dtype, output.shape, output.ctypes.data)
        try:
            session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime raises a family of private types
            raise _cant_run(site, error) from error
        key, value = (memory[part].numpy() for part in ("key", "value"))
        for row in range(queries):
            result.rows += 1
            at = slice(past + row, past + row + 1)
            got = (output[:, row : row + 1].tobytes(), key[:, :, at].tobytes(), value[:, :, at].tobytes())
            want = (self.serial[past + row], self.key_1HnD[:, :, at].tobytes(), self.value_1HnD[:, :, at].tobytes())
            if got != want:
                gap = _gap(got, want, numpy_dtype(site.elem_type))
                result.differing.append(Witness(past, queries, row, past + row + 1, self.seed, gap))

    def _on_device(self, array: np.ndarray) -> Any:
        """Memory of the provider: past and present are one buffer only where the operator finds them so."""
        import onnxruntime as ort

        return ort.OrtValue.ortvalue_from_numpy(array, "cuda" if self.spec.provider == "cuda" else "cpu", 0)


def falsify_chain(frozen: Decoder, site: FusedSite, max_queries: int, spec: SessionSpec) -> dict[str, Any]:
    """The evidence of one kind of site: verdict `false` with a witness, or `unknown`."""
    missing = _weights_not_here(frozen, site)
    if missing:
        return {"verdict": "unknown", "trials": [], "reason": f"{missing[0]!r} is not here, so nothing could be tried"}
    trial = ChainFalsifier(frozen, site, max_queries, spec).trial().summary()
    return {"verdict": trial["verdict"], "trials": [trial]}


def _weights_not_here(frozen: Decoder, site: FusedSite) -> list[str]:
    """A graph may be planned for without its weights."""
    read = set(fused_node(frozen.model, site).input)
    return [t.name for t in frozen.model.graph.initializer if t.name in read and not frozen.weights.has(t)]


def _positions(alone: Decoder, site: FusedSite) -> int:
    """How many positions the operator's rotary tables have; no bound where it has none."""
    node = fused_node(alone.model, site)
    tables = {name for place, name in enumerate(node.input) if place in (site.cosines_at, site.sines_at)}
    return min((tensor.dims[0] for tensor in alone.model.graph.initializer if tensor.name in tables), default=1 << 31)


def _buffer(whole_1HnD: np.ndarray, past: int, capacity: int) -> np.ndarray:
    """The cache with `past` rows valid: what stands behind them is not a number, and must be written or never read."""
    buffer = np.full((1, whole_1HnD.shape[1], capacity, whole_1HnD.shape[3]), np.nan, whole_1HnD.dtype)
    buffer[:, :, :past] = whole_1HnD[:, :, :past]
    return buffer


def _gap(got: tuple[bytes, ...], want: tuple[bytes, ...], dtype: np.dtype[Any]) -> float:
    pairs = ((np.frombuffer(a, dtype), np.frombuffer(b, dtype)) for a, b in zip(got, want, strict=True))
    return max(float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)))) for a, b in pairs)


def _run(session: Any, site: FusedSite, names: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    try:
        found: list[np.ndarray] = session.run(names, feeds)
    except Exception as error:  # ONNX Runtime raises a family of private types
        raise _cant_run(site, error) from error
    return found


def _cant_run(site: FusedSite, error: Exception) -> ModelFileError:
    return ModelFileError(f"{site.name} could not be run, so no layout can be tried: {one_line(error)}")
