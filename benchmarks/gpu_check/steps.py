"""What is asked of a model on a provider. Each step takes a question of plain values and gives plain results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from gpu_check.machine import machine, session
from gpu_check.outcome import Skipped, Step, Unequal
from gpu_check.variants import export, genai, half
from qbpass.admission.admit import admit
from qbpass.admission.calls.call import Call
from qbpass.admission.placement import observe_placement
from qbpass.admission.probes.feeds import decoder_feeds
from qbpass.evidence.options import QualifyOptions
from qbpass.evidence.phase_faults import phase_faults
from qbpass.evidence.prompts import Prompt, read_prompts
from qbpass.evidence.qualify import qualify
from qbpass.models.decoder import Decoder
from qbpass.models.session import SessionSpec, open_session
from qbpass.models.tokenizer import TextCodec
from qbpass.models_at import frozen_decoder, own_decoder
from qbpass.probe_options import ProbeOptions
from qbpass.probing import probe_model
from qbpass.rewrites.bundle import Bundle, open_bundle
from qbpass.rewrites.bundle_writer import write_bundle
from qbpass.runtime.block_target import BlockTarget
from qbpass.runtime.layout_cost import interleaved
from qbpass.runtime.open_target import open_target
from qbpass.runtime.placed_session import stray_nodes
from qbpass.runtime.serial_target import SerialTarget
from qbpass.runtime.static_trial import open_static
from qbpass.runtime.target import Target
from qbpass.runtime.whole_trial import whole_trial
from qbpass.screen import Steps


def _spec(question: Mapping[str, Any]) -> SessionSpec:
    return SessionSpec(**question["spec"])


@contextmanager
def _frozen(question: Mapping[str, Any]) -> Iterator[tuple[Decoder, SessionSpec]]:
    spec = _spec(question)
    with frozen_decoder(Path(question["path"]), spec, lambda text: None) as frozen:
        yield frozen, spec


def placement(question: Mapping[str, Any]) -> dict[str, Any]:
    """Where the frozen graph's nodes went: recorded when it was divided, and seen in the profile of one call.

    Arithmetic on sizes is ONNX Runtime's own choice for the CPU; every other node there is a stray, which qbpass
    refuses to run.
    """
    with _frozen(question) as (frozen, spec):
        seen = observe_placement(frozen, spec)
        strays = stray_nodes(seen.assigned or (), frozen.model, seen.asked)
    found = {**seen.to_json(), "strays": [vars(node) for node in strays]}
    found["elsewhere"] = dict(Counter(node.operator for node in seen.elsewhere))
    found["copies"] = sum(node.operator.startswith("Memcpy") for node in seen.executed)
    return found


def admission(question: Mapping[str, Any]) -> dict[str, Any]:
    with _frozen(question) as (frozen, _):
        report = admit(frozen)
    codes = sorted({d.code for site in report.sites for d in site.diagnostics})
    kinds = Counter(site.kind for site in report.sites)
    admitted = sum(site.admitted for site in report.sites)
    return {"sites": len(report.sites), "admitted": admitted, "codes": codes, "kinds": dict(kinds)}


def probes(question: Mapping[str, Any]) -> dict[str, Any]:
    """Every probe asked again, and what calls of 1 to 8 rows cost."""
    with Steps() as steps:
        report = probe_model(question["path"], ProbeOptions(_spec(question), fresh=True), steps).model_dump(mode="json")
    verdicts = Counter(case["verdict"] for case in report["cases"])
    false = [case for case in report["cases"] if case["verdict"] == "false"]
    return {"verdicts": dict(verdicts), "false": false, "curves": report["curves"]}


def rewrite(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"bundle"}: written after every form, and the whole, was tried here against serial decoding."""
    spec, folder = _spec(question), Path(question["work"]) / question["layout"]
    bundle, plan, _ = write_bundle(
        own_decoder(Path(question["path"])), folder, question["layout"], spec, machine=partial(whole_trial, spec=spec)
    )
    return {"bundle": str(folder), "plan": plan.text().splitlines(), "whole": dict(bundle.manifest.whole)}


def device_cache(question: Mapping[str, Any]) -> dict[str, Any]:
    """Where the KV cache of a running bundle lies."""
    target, spec = _block_target(question)
    target.start(32)
    target.prefill(range(1, 17))
    names = sorted({value.device_name().lower() for value in target.caches.values})
    if names != [spec.provider]:
        raise Unequal(f"the KV cache lies on {', '.join(names)}", {"devices": names})
    return {"devices": names, "buffers": len(target.caches.values)}


def repeated(question: Mapping[str, Any]) -> dict[str, Any]:
    """The same call three times over one state, as capturing a CUDA graph runs it: logits and cache, byte for byte."""
    target, _ = _block_target(question)
    random = np.random.default_rng(0)
    prompt = random.integers(0, target.vocab_size, 21).tolist()
    target.start(64)
    target.prefill(prompt)
    calls = 0
    for width in range(1, target.max_queries + 1):
        tokens = random.integers(0, target.vocab_size, width).tolist()
        seen = set()
        for _ in range(3):
            target.rollback(len(prompt))
            logits = target.verify(tokens).tobytes()
            kv = tuple(target.cached(index).tobytes() for index in range(len(target.interface.layers) * 2))
            seen.add((logits, kv))
            calls += 1
        if len(seen) != 1:
            raise Unequal(f"a call of {width} row(s), repeated, gives {len(seen)} results", {"width": width})
    return {"calls": calls}


def graphs(question: Mapping[str, Any]) -> dict[str, Any]:
    """Verification as a static graph, under CUDA graphs where the provider is CUDA: tried against serial decoding, then
    timed beside the calls it stands for. Refused with its witness where buckets of keys change a bit.
    """
    target, spec = _block_target(question)
    static, trial = open_static(open_bundle(Path(question["bundle"])), spec, target.sibling(spec))
    random = np.random.default_rng(0)
    past = min(192, (target.context_length or 400) // 2)
    tokens = random.integers(0, target.vocab_size, past + target.max_queries).tolist()
    calls: dict[str, Callable[[], None]] = {}
    for name, each in (("plain", target), ("static", static)):
        each.start(len(tokens))
        each.prefill(tokens[:past])
        for width in range(1, target.max_queries + 1):
            calls[f"{name} q={width}"] = partial(_once, each, tokens[past : past + width], past)
    seconds = interleaved(calls)
    return {
        "trial": trial,
        "captured": static.captures,
        "graphs_made": static.graphs.made,
        "graphs_reused": static.graphs.reused,
        "ms": {name: 1000 * taken for name, taken in seconds.items()},
        "ratio_to_plain": {
            f"q={width}": seconds[f"static q={width}"] / seconds[f"plain q={width}"]
            for width in range(1, target.max_queries + 1)
        },
    }


def _once(target: Target, tokens: list[int], past: int) -> None:
    target.verify(tokens)
    target.rollback(past)


def arms(question: Mapping[str, Any]) -> dict[str, Any]:
    """R, C_MQ and the bundle's own layout: endpoints, the forced replay's rows, ratios."""
    bundle, spec = open_bundle(Path(question["bundle"])), _spec(question)
    options = QualifyOptions(
        arms=("R", "C_MQ", f"C_{bundle.manifest.layout.upper()}"),
        max_new_tokens=question["tokens"],
        replay_rows=question["replay_rows"],
        repeats=question["repeats"],
    )
    report = qualify(bundle, _prompts(bundle, question["prompts"]), options, spec)
    found = {"arms": {name: arm.model_dump(mode="json") for name, arm in report.arms.items()}}
    if not report.exact:
        raise Unequal("a repaired arm is not the reference", found)
    return found


def _prompts(bundle: Bundle, most: int) -> list[Prompt]:
    """qbpass's own where the model has a tokenizer, else random tokens that repeat, so that lookup finds something."""
    tokenizer = bundle.reference.tokenizer_files
    if "tokenizer.json" in tokenizer:
        with as_file(files("qbpass") / "data" / "demo_prompts.jsonl") as shipped:
            return read_prompts(shipped, TextCodec(tokenizer))[:most]
    random, vocabulary = np.random.default_rng(0), bundle.manifest.interface.vocab_size
    phrases = [tuple(random.integers(0, vocabulary, 12).tolist()) for _ in range(most)]
    return [Prompt(f"random {index}", "random", phrase * 2) for index, phrase in enumerate(phrases)]


def faults(question: Mapping[str, Any]) -> dict[str, Any]:
    """Faults in the phase guard and in reuse checks, injected one at a time; each must be found here, too."""
    report = phase_faults(open_bundle(Path(question["bundle"])), _spec(question))
    found = report.to_json()
    if not report.passed:
        missed = [result.name for result in report.results if not result.found]
        raise Unequal(
            f"without a fault {len(report.clean)} finding(s); not found: {', '.join(missed) or 'none'}", found
        )
    return found


def tf32(question: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of the frozen graph with TF32 off and on. Where they differ, TF32 is another reference."""
    with _frozen(question) as (frozen, spec):
        feeds = decoder_feeds(frozen, Call(4, 60))
        outputs = []
        for on in (False, True):
            opened = open_session(frozen.path, replace(spec, use_tf32=on), weights=frozen.weights)
            outputs.append(opened.run([frozen.contract.logits], feeds)[0])
    off, on_ = (each.astype(np.float64) for each in outputs)
    return {
        "equal": outputs[0].tobytes() == outputs[1].tobytes(),
        "max_abs_difference": float(np.max(np.abs(off - on_))),
        "takes_effect_here": spec.provider == "cuda",
    }


def serial_again(question: Mapping[str, Any]) -> dict[str, Any]:
    """Serial decoding twice, in two sessions: a reference that does not repeat itself can't be reproduced."""
    bundle, spec = open_bundle(Path(question["bundle"])), _spec(question)
    random = np.random.default_rng(0)
    tokens = random.integers(0, bundle.manifest.interface.vocab_size, 40).tolist()
    seen = set()
    for _ in range(2):
        target = SerialTarget.from_bundle(bundle, spec)
        target.start(len(tokens))
        rows = [target.prefill(tokens[:24]), *(target.verify([token]).copy() for token in tokens[24:])]
        seen.add(b"".join(row.tobytes() for row in rows))
    if len(seen) != 1:
        raise Unequal("serial decoding, run twice, gives different logits", {"runs": len(seen)})
    return {"rows": len(tokens) - 23}


def _block_target(question: Mapping[str, Any]) -> tuple[BlockTarget, SessionSpec]:
    spec = _spec(question)
    target = open_target(open_bundle(Path(question["bundle"])), spec)
    if not isinstance(target, BlockTarget):
        raise Skipped("layout gs has no cache of its own")
    return target, spec


STEPS: dict[str, Step] = {
    "machine": machine,
    "session": session,
    "export": export,
    "half": half,
    "genai": genai,
    "placement": placement,
    "admission": admission,
    "probes": probes,
    "tf32": tf32,
    "rewrite": rewrite,
    "serial again": serial_again,
    "device cache": device_cache,
    "repeated calls": repeated,
    "faults": faults,
    "graphs": graphs,
    "arms": arms,
}
