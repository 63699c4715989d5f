"""A served bundle under load: right answers only, no leak, no stuck queue, and what HTTP costs.

Clients of the official openai package ask for answers that the library gave beforehand, whole and streamed, greedy and
drawn; between those they go away in the middle of an answer, send bodies that are too long and bodies that are none.
Before the load, single requests take turns with the library's own calls in this process; behind it, the server is
killed in the middle of an answer and started again. Needs the extras `serve` and `dev`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import threading
import time
from collections import Counter
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
from measuring.claims import answer
from measuring.script import parser, positive, run, spec_of
from measuring.served import Case, ServerProcess, cases_of, text_of

from qbpass.evidence.prompts import read_prompts
from qbpass.models.errors import QbpassError
from qbpass.models.tokenizer import TextCodec
from qbpass.rewrites.bundle import check_recipe, open_bundle
from qbpass.runtime.drafting.adaptive import AdaptivePolicy
from qbpass.runtime.drafting.ngram import NgramDrafter
from qbpass.runtime.engine import Engine
from qbpass.runtime.open_target import open_target
from qbpass.screen import Steps, say, table

BODY_MIB, MOST_OVERHEAD_MS, MOST_GROWTH = 1, 3.0, 0.02
WARM_ACTIONS = 60
#: What a client does next, and how often of a hundred times.
ACTIONS = {"whole": 35, "stream": 30, "leave a stream": 10, "leave an answer": 8, "too long": 7, "malformed": 10}
MALFORMED: tuple[bytes, ...] = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": "x", "temperature": NaN}',
    b'{"prompt": "x", "max_tokens": 1e400}',
    b'{"prompt": "x", "seed": ' + b"9" * 10_000 + b"}",
    b'{"prompt": "x", "metadata": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"prompt": ["a", "b"]}',
    b'{"prompt": [-1]}',
    b'{"prompt": "x", "n": 2}',
    b'{"prompt": "x", "stop": [1, 2]}',
    b'{"prompt": "x", "unknown": true}',
    b'{"model": "another", "prompt": "x"}',
    b'{"messages": "x"}',
    b'{"messages": [{"role": "tool", "content": "x"}]}',
    b'{"prompt": "x", "logit_bias": {"1": 1e9}}',
    b'{"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 1}}}}',
)


class Tally:
    """What clients saw. Counting may be done from any thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            with self._lock:
                self.wrong.append(what)


class Client(threading.Thread):
    """Does one thing after another until it is told to stop."""

    def __init__(self, server: ServerProcess, cases: list[Case], tally: Tally, seed: int, stop: threading.Event):
        super().__init__()
        self._server, self._cases, self._tally, self._stop_it = server, cases, tally, stop
        self._random = random.Random(seed)

    def run(self) -> None:
        names, weights = list(ACTIONS), list(ACTIONS.values())
        with self._server.client() as client:
            while not self._stop_it.is_set():
                action = self._random.choices(names, weights)[0]
                try:
                    self._do(action, client, self._random.choice(self._cases))
                    self._tally.add(action)
                except openai.RateLimitError as error:
                    self._tally.add("429, queue full")
                    self._tally.must("retry-after" in error.response.headers, "429 without Retry-After")
                    time.sleep(self._random.uniform(0.05, 0.5))
                except Exception as error:
                    self._tally.must(False, f"{action}: {type(error).__name__}: {error}")

    def _do(self, action: str, client: openai.OpenAI, case: Case) -> None:
        if action == "whole":
            self._tally.must(case.equals(case.ask(client)), "a whole answer differs")
        elif action == "stream":
            self._tally.must(case.equals(list(case.ask(client, stream=True))), "a streamed answer differs")
        elif action == "leave a stream":
            self._leave_a_stream(case.ask(client, stream=True), case)
        elif action == "leave an answer":
            with contextlib.suppress(openai.APITimeoutError):
                told = case.ask(client, timeout=self._random.uniform(0.001, 1))
                self._tally.must(case.equals(told), "a whole answer differs")
        elif action == "too long":
            self._too_long()
        else:
            self._malformed(self._random.choice(MALFORMED))

    def _leave_a_stream(self, stream: Any, case: Case) -> None:
        text = ""
        with stream:
            for _ in range(self._random.randint(0, 12)):
                chunk = next(stream, None)
                if chunk is not None and chunk.choices:
                    text += text_of(chunk.choices[0])
        self._tally.must(case.begins_with(text), "the beginning of an answer differs")

    def _too_long(self) -> None:
        if self._random.random() < 0.5:
            self._refused(b'{"prompt": "' + b"x " * (BODY_MIB * 2**19) + b'"}', {413})
        else:  # within the limit of bytes, beyond that of tokens
            self._refused(b'{"prompt": "' + b"one two " * 30_000 + b'"}', {400})

    def _malformed(self, body: bytes) -> None:
        self._refused(body, {400, 404})

    def _refused(self, body: bytes, statuses: set[int]) -> None:
        path = "completions" if self._random.random() < 0.7 or b"prompt" in body else "chat/completions"
        headers = {"Content-Type": "application/json"}
        try:
            got = httpx2.post(f"{self._server.url}/v1/{path}", content=body, headers=headers, timeout=60)
        except httpx2.WriteError:  # the answer came, and the connection's end, before all of the body was sent
            self._tally.must(413 in statuses, "a body that is not too long was not read")
            return
        self._tally.must(got.status_code in statuses, f"{got.status_code} for {body[:60]!r}")
        self._tally.must("error" in got.json(), f"no error for {body[:60]!r}")


def overhead(server: ServerProcess, engine: Engine, case: Case, rounds: int, steps: Steps) -> dict[str, Any]:
    """One greedy request through HTTP, in turns with the library's call in this process.

    Milliseconds of every form: elapsed beyond the library's call, which two processes' memory and the hour change, too;
    and beyond the engine's call in the server itself, as its own clock has it, of which so much was in the server. What
    the openai package does before and behind a request is in its rows, and not in that of plain HTTP.
    """
    body = {key: value for key, value in case.asked.items() if key != "extra_body"} | {"return_token_ids": True}
    path = f"{server.url}/v1/{'chat/completions' if case.chat else 'completions'}"
    equal = True
    with server.client() as client, httpx2.Client() as plain:
        forms: dict[str, Any] = {
            "library": lambda: engine.generate(case.request)[0].token_ids == case.token_ids,
            "openai": lambda: case.equals(case.ask(client)),
            "openai, streamed": lambda: case.equals(list(case.ask(client, stream=True))),
            "plain HTTP": lambda: (
                case.token_ids == tuple(plain.post(path, json=body).json()["choices"][0]["token_ids"])
            ),
        }
        seconds: dict[str, list[list[float]]] = {name: [] for name in forms}
        order = list(forms)
        shuffled = random.Random(0)
        for turn in range(-1, rounds):
            steps.count("single requests", max(turn, 0), rounds)
            shuffled.shuffle(order)
            for name in order:
                before = clocks(server)
                start = time.perf_counter()
                equal &= forms[name]()
                elapsed = time.perf_counter() - start
                engine_seconds, server_seconds = np.subtract(clocks(server), before)
                if turn >= 0:
                    seconds[name].append([elapsed, engine_seconds, server_seconds])
    taken = {name: 1e3 * np.array(values) for name, values in seconds.items()}
    library = taken.pop("library")[:, 0]
    return {
        "equal": equal,
        "tokens": len(case.token_ids),
        "library_ms": float(np.median(library)),
        "forms": {
            name: {
                "beyond_library_ms": quartiles(values[:, 0] - library),
                "beyond_engine_ms": quartiles(values[:, 0] - values[:, 1]),
                "of_it_in_server_ms": quartiles(values[:, 2] - values[:, 1]),
            }
            for name, values in taken.items()
        },
    }


def clocks(server: ServerProcess) -> tuple[float, float]:
    """Seconds that the server's engines, and all of its requests, have taken so far."""
    now = server.metrics()
    return now["qbpass_generation_seconds_sum"], now["qbpass_request_seconds_sum"]


def quartiles(values: np.ndarray) -> list[float]:
    return [float(value) for value in np.quantile(values, [0.25, 0.5, 0.75])]


def load(server: ServerProcess, cases: list[Case], options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    tally, stop = Tally(), threading.Event()
    clients = [Client(server, cases, tally, options.seed + number, stop) for number in range(options.clients)]
    for client in clients:
        client.start()
    resident: list[tuple[int, float]] = []  # things done so far, bytes
    began = time.monotonic()
    while (passed := time.monotonic() - began) < options.seconds:
        steps.fraction(f"{options.clients} clients", passed / options.seconds)
        resident.append((tally.counts.total(), server.metrics()["process_resident_memory_bytes"]))
        time.sleep(min(1.0, options.seconds / 10))
    stop.set()
    for client in clients:
        client.join(120)
    stuck = [client.name for client in clients if client.is_alive()]
    deadline = time.monotonic() + 30
    while (now := server.metrics())["qbpass_queue_depth"] or now["qbpass_running_requests"]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    # First memory grows to what the longest requests take, once for every engine.
    settled = [size for done, size in resident[len(resident) // 4 :] if done >= WARM_ACTIONS]
    quarter = len(settled) // 4
    ends = [float(np.median(part)) / 1e6 for part in (settled[:quarter], settled[-quarter:])] if quarter >= 2 else None
    return {
        "seconds": time.monotonic() - began,
        "done": dict(tally.counts),
        "wrong": Counter(tally.wrong).most_common(20),
        "stuck_clients": stuck,
        "left_in_queue": now["qbpass_queue_depth"],
        "left_running": now["qbpass_running_requests"],
        "outcomes": {name: value for name, value in now.items() if name.startswith("qbpass_requests_total")},
        "generated_tokens": now["qbpass_generated_tokens_total"],
        "resident_mb": ends,
        "growth": None if ends is None else ends[1] / ends[0] - 1,
    }


def killed(server: ServerProcess, again: Any, case: Case) -> dict[str, Any]:
    """The server dies in the middle of an answer; `again` starts another, which gives the answer."""
    with server.client() as client:
        stream = case.ask(client, stream=True)
        next(stream)
        server.kill()
        try:
            cut = len(list(stream)) < len(case.token_ids)
        except openai.APIError:
            cut = True
    successor = again()
    try:
        with successor.client() as client:
            return {"cut": cut, "equal": case.equals(case.ask(client)), "exit_code": successor.stop()}
    finally:
        successor.kill()


def measure(options: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    spec, bundle = spec_of(options), open_bundle(options.bundle)
    check_recipe(bundle, spec)
    codec = TextCodec(bundle.reference.tokenizer_files)
    target = open_target(bundle, spec)
    engine = Engine(target, NgramDrafter(), AdaptivePolicy(target.max_queries))
    stop_ids = frozenset(bundle.manifest.eos_token_ids)
    with as_file(files("qbpass") / "data" / "demo_prompts.jsonl") as shipped:
        texts = [prompt.text for prompt in read_prompts(options.prompts or shipped, codec)]
    prompts = [text for text in texts if text is not None][: options.most_prompts]
    if not prompts:
        raise QbpassError(f"{options.prompts} has no prompt that is text: give some")
    steps.text("answers of the library")
    cases = cases_of(prompts, engine, codec, stop_ids, options.tokens)
    single = cases_of(prompts[:1], engine, codec, stop_ids, options.single_tokens)[0]

    def started() -> ServerProcess:
        limits = ["--queue", str(max(options.clients - 3, 1)), "--max-body-mib", str(BODY_MIB)]
        named = ["--threads", str(options.threads), "--engines", str(options.engines)]
        named += ["--draft", options.draft]
        return ServerProcess(options.bundle, *named, *limits)

    steps.text("starting the server")
    server = started()
    try:
        costs = overhead(server, engine, single, options.rounds, steps)
        under_load = load(server, cases, options, steps)
        steps.text("killing the server")
        return {
            "clients": options.clients,
            "engines": options.engines,
            "draft": options.draft,
            "cases": len(cases),
            "overhead": costs,
            "load": under_load,
            "killed": killed(server, started, max(cases, key=lambda case: len(case.token_ids))),
        }
    finally:
        server.kill()


def show(results: dict[str, Any]) -> None:
    costs, under_load, again = results["overhead"], results["load"], results["killed"]
    kinds = ("beyond_library_ms", "beyond_engine_ms", "of_it_in_server_ms")
    rows = [
        [name, *(f"{entry[kind][1]:.2f} ({entry[kind][0]:.2f} – {entry[kind][2]:.2f})" for kind in kinds)]
        for name, entry in costs["forms"].items()
    ]
    heads = [("form", False), *((kind.replace("_", " ").removesuffix(" ms"), True) for kind in kinds)]
    table(heads, rows, f"ms of {costs['tokens']} tokens (the library: {costs['library_ms']:.1f}), median and quartiles")
    done = ", ".join(f"{count} {name}" for name, count in sorted(under_load["done"].items()))
    say(f"\n{results['clients']} clients for {under_load['seconds']:.0f} s: {done}")
    for what, count in under_load["wrong"]:
        say(f"  {count} times: {what}")
    growth, grew = under_load["growth"], "an amount this run is too short to tell"
    if growth is not None:
        first, last = under_load["resident_mb"]
        grew = f"{growth:.1%}, {first:,.0f} to {last:,.0f} MB: at most 2%"
    drained = not (under_load["left_in_queue"] or under_load["left_running"] or under_load["stuck_clients"])
    p50 = costs["forms"]["plain HTTP"]["beyond_engine_ms"][1]
    claims = [
        ("single answers are the library's", answer(costs["equal"])),
        ("no answer and no refusal under load was wrong", answer(not under_load["wrong"])),
        ("the queue is empty and no request runs at the end", answer(drained)),
        (f"resident memory grew by {grew}", answer(None if growth is None else growth <= MOST_GROWTH)),
        ("killed in the middle of an answer, it starts again and gives it", answer(again["cut"] and again["equal"])),
        ("SIGTERM ends it with 0", answer(again["exit_code"] == 0)),
        (
            f"p50 overhead of plain HTTP {p50:.2f} ms: at most {MOST_OVERHEAD_MS:g}",
            answer(p50 <= MOST_OVERHEAD_MS),
        ),
    ]
    table([("claim", False), ("met", False)], [list(claim) for claim in claims])


def options() -> argparse.Namespace:
    made = parser(__doc__, rounds=30)
    made.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of load (default: %(default)s)")
    made.add_argument("--clients", type=positive, default=8, metavar="N", help="at a time (default: %(default)s)")
    made.add_argument("--engines", type=positive, default=1, metavar="N", help="of the server (default: %(default)s)")
    made.add_argument("--draft", default="ngram", metavar="D", help="of the server (default: %(default)s)")
    made.add_argument("--tokens", type=positive, default=64, metavar="N", help="of an answer (default: %(default)s)")
    made.add_argument(
        "--single-tokens", type=positive, default=16, metavar="N", help="of a single one (default: %(default)s)"
    )
    made.add_argument("--prompts", type=Path, metavar="F", help="a prompt file (default: the demo's prompts)")
    made.add_argument("--most-prompts", type=positive, default=16, metavar="N", help="of it (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of what clients do (default: %(default)s)")
    return made.parse_args()


if __name__ == "__main__":
    run(measure, show, options())
