"""One attention site as it stands in the frozen graph, in three layouts: native (as exported), PQ and QB.

Native gets its K and V in the export's own order, so it pays for none of our layouts; PQ and QB get them in the
cache's. Every row is compared, byte for byte, with the same row evaluated alone by the frozen graph's own site
at its exact key extent.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring.bound_call import BoundCall, aligned
from measuring.claims import Claim, answer, show_claims
from measuring.native_site import cut_native_site
from measuring.script import parser, positive, run, spec_of

from qbpass.admission.admit import admit
from qbpass.admission.probes.interleaved import interleave
from qbpass.admission.site import AttentionSite
from qbpass.models.decoder import Decoder
from qbpass.models.errors import QbpassError
from qbpass.models.freeze import freeze
from qbpass.models.loading import load_decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.rewrites.cut import causal_mask, cut_site
from qbpass.rewrites.extents import segment_extents
from qbpass.rewrites.kv_cache import cache_name, segment_name, updated_name
from qbpass.rewrites.plan import Layout, RewritePlan
from qbpass.rewrites.planner import make_plan
from qbpass.rewrites.site_runner import Operands, random_operands
from qbpass.screen import Steps, table

ALL_GEOMETRIES = ((32, 8, 128), (9, 3, 64))
ALL_EXTENTS = (256, 1024, 4096)
ALIGNMENTS = 4
#: The case the ratios are promised for; others are shown without a bound.
BOUNDED = ("32/8 d 128", 1024, 4)


@dataclass
class Subject:
    """One site of one frozen decoder, with its plans, sessions and operands for every extent asked for."""

    frozen: Decoder
    site: AttentionSite
    plans: dict[Layout, RewritePlan]
    sessions: dict[str, Any]  # native | pq | qb
    operands: Operands

    @property
    def name(self) -> str:
        return f"{self.site.heads}/{self.site.kv_heads} d {self.site.head_dim}"

    def call(self, form: str, past: int, queries: int) -> BoundCall:
        """`form` with every input bound: rows past .. past + queries - 1."""
        site, extent = self.site, past + queries
        feeds = {
            site.q: aligned(self.operands.q_1HrD[:, :, past:extent]),
            self.frozen.contract.input_ids: np.zeros((1, queries), np.int64),
        }
        if site.mask is not None:
            feeds[site.mask] = aligned(causal_mask(past, queries, feeds[site.q].dtype))
        feeds |= self._native_feeds(past, extent) if form == "native" else self._cache_feeds(form, past, queries)
        return BoundCall(self.sessions[form], feeds, site.output, (1, site.heads, queries, site.value_dim))

    def _native_feeds(self, past: int, extent: int) -> dict[str, np.ndarray]:
        dtype = self.operands.key_nHD.dtype
        operands = ((self.site.k, self.operands.key_nHD), (self.site.v, self.operands.value_nHD))
        feeds = {name: aligned(rows[:extent].transpose(1, 0, 2)[None]) for name, rows in operands}
        for pair in self.frozen.contract.kv:  # read for their shapes only, and in some exports one layer's for all
            feeds[pair.past_key] = np.zeros((1, pair.kv_heads, past, pair.key_dim), dtype)
            feeds[pair.past_value] = np.zeros((1, pair.kv_heads, past, pair.value_dim), dtype)
        return feeds

    def _cache_feeds(self, form: str, past: int, queries: int) -> dict[str, np.ndarray]:
        """The cache bound by prefix, as the runtime binds it."""
        layer, plan, extent = self.site.layer, self.plans["qb" if form == "qb" else "pq"], past + queries
        key, value = self.operands.key_nHD, self.operands.value_nHD
        feeds = {
            cache_name(min(entry.site.layer for entry in plan.sites), "key"): key[:extent],
            updated_name(layer, "key"): key[:extent],
            updated_name(layer, "value"): value[:extent],
        }
        ends = segment_extents(past, queries, plan.extents, plan.segments)
        parts = (("key", key), ("value", value)) if plan.sites[0].form.clip == "keys" else (("value", value),)
        return feeds | {
            segment_name(layer, index, part): rows[:end] for part, rows in parts for index, end in enumerate(ends[:-1])
        }


def prepare(frozen: Decoder, queries: int, reach: int, spec: SessionSpec, steps: Steps) -> Subject:
    """Plan both layouts for the decoder's first site and open its three sessions. Raises RewriteRefused."""
    report = admit(frozen)
    layouts: tuple[Layout, ...] = ("pq", "qb")
    plans = {
        layout: make_plan(frozen, report, layout, spec, max_queries=queries, progress=steps.text) for layout in layouts
    }
    site = plans["qb"].sites[0].site
    models = {"native": cut_native_site(frozen, site)}
    models |= {layout: cut_site(frozen, plan, site, "active") for layout, plan in plans.items()}
    sessions = {
        form: open_session(model.SerializeToString(), spec, weights=frozen.weights) for form, model in models.items()
    }
    operands = random_operands(site, reach, seed=0)
    operands = Operands(operands.q_1HrD, aligned(operands.key_nHD), aligned(operands.value_nHD))
    return Subject(frozen, site, plans, sessions, operands)


def measure_extent(subject: Subject, extent: int, queries: int, rounds: int, steps: Steps) -> dict[str, Any]:
    """Bytes at four alignments from `extent` on, then speeds at `extent`."""
    steps.text(f"{subject.name}, n {extent}: comparing bytes")
    equal = dict.fromkeys(("native", "pq", "qb"), True)
    qb_is_pq = True
    for shift in range(ALIGNMENTS):
        past = extent - queries + shift
        serial = np.concatenate([subject.call("native", past + row, 1)() for row in range(queries)], axis=2).tobytes()
        outputs = {form: subject.call(form, past, queries)().tobytes() for form in equal}
        for form, output in outputs.items():
            equal[form] &= output == serial
        qb_is_pq &= outputs["qb"] == outputs["pq"]
    calls = {form: subject.call(form, extent - queries, queries) for form in equal}
    times = interleave(calls, rounds, progress=steps.count)
    qb, pq = (times.ratio("qb", "native") if equal["qb"] else None), None
    if equal["qb"] and equal["pq"]:
        pq = times.ratio("pq", "qb")
    form = subject.plans["qb"].sites[0].form
    bounded = (subject.name, extent, queries) == BOUNDED
    return {
        "geometry": subject.name,
        "n": extent,
        "queries": queries,
        "qb_form": f"QK {form.qk}, AV {form.av}, {subject.plans['qb'].segments} segment(s)",
        "ms": {form: times.median_ms(form) for form in equal},
        "equal_to_serial": equal,
        "qb_equals_pq": qb_is_pq,
        "claims": [
            Claim("QB/native", qb, at_most=0.45 if bounded else None),
            Claim("PQ/QB", pq, at_least=4.0 if bounded else None),
        ],
    }


@contextmanager
def exported(geometry: tuple[int, int, int], steps: Steps) -> Iterator[Path]:
    """A one-layer decoder of that attention geometry with eager attention, everything else as small as it can be."""
    from qbpass.models.export.requirements import require
    from qbpass.models.export.torch_export import write_onnx

    heads, kv_heads, head_dim = geometry
    steps.text(f"exporting a one-layer decoder with heads {heads}/{kv_heads}, d {head_dim}")
    transformers = require("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=8 * heads,  # transformers wants a multiple of the heads
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="eager",
        dtype="float32",
    )
    with tempfile.TemporaryDirectory(prefix="qbpass.") as folder:
        write_onnx(transformers.LlamaForCausalLM(config).eval(), 18, Path(folder))
        yield Path(folder)


def subjects(options: argparse.Namespace, reach: int, steps: Steps) -> Iterator[Subject]:
    """The subject of --model, or one for each geometry asked for, made when it is reached."""
    spec = spec_of(options)
    with tempfile.TemporaryDirectory(prefix="qbpass.") as folder:
        if options.model is not None:
            frozen = freeze(load_decoder(options.model), Path(folder) / "frozen", spec)
            yield prepare(frozen, options.queries, reach, spec, steps)
            return
        for index, geometry in enumerate(ALL_GEOMETRIES if options.all else (options.geometry,)):
            with exported(geometry, steps) as export:
                frozen = freeze(load_decoder(export), Path(folder) / str(index), spec)
            yield prepare(frozen, options.queries, reach, spec, steps)


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    extents = ALL_EXTENTS if options.all else (options.n,)
    if min(extents) < options.queries:
        raise QbpassError(f"--n must be at least --queries ({options.queries})")
    cases = [
        measure_extent(subject, extent, options.queries, options.rounds, steps)
        for subject in subjects(options, max(extents) + ALIGNMENTS, steps)
        for extent in extents
    ]
    return {"cases": cases}


def show(results: dict[str, Any]) -> None:
    cases = results["cases"]
    columns = [("heads", False), ("n", True), ("q", True), ("native ms", True), ("PQ ms", True), ("QB ms", True)]
    columns += [(f"{form} = serial", False) for form in ("native", "PQ", "QB")] + [
        ("QB = PQ", False),
        ("QB form", False),
    ]
    rows = []
    for case in cases:
        forms = ("native", "pq", "qb")
        rows.append(
            [case["geometry"], str(case["n"]), str(case["queries"])]
            + [f"{case['ms'][form]:.3f}" for form in forms]
            + [answer(case["equal_to_serial"][form]) for form in forms]
            + [answer(case["qb_equals_pq"]), case["qb_form"]]
        )
    table(columns, rows)
    for case in cases:
        show_claims(case["claims"], f"{case['geometry']}, n {case['n']}")


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=100, bundle=False)
    made.add_argument(
        "--geometry", type=heads_and_width, default=(32, 8, 128), metavar="H/HKV/D", help="default: 32/8/128"
    )
    made.add_argument("--n", type=positive, default=1024, metavar="N", help="key extent (default: %(default)s)")
    made.add_argument("--queries", type=positive, default=4, metavar="N", help="rows a call (default: %(default)s)")
    made.add_argument("--all", action="store_true", help="32/8/128 and 9/3/64 at n 256, 1024 and 4096")
    made.add_argument("--model", type=Path, metavar="MODEL", help="the first site of this export instead")
    return made.parse_args()


def heads_and_width(text: str) -> tuple[int, int, int]:
    heads, kv_heads, head_dim = (positive(part) for part in text.split("/"))
    if heads % kv_heads:
        raise argparse.ArgumentTypeError(f"{kv_heads} KV heads don't divide {heads} heads")
    return heads, kv_heads, head_dim


if __name__ == "__main__":
    run(measure, show, options())
