"""`qbpass serve BUNDLE`."""

from __future__ import annotations

import hashlib
import logging
import sys
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qbpass.commands.options import (
    Draft,
    Lean,
    OptionError,
    Policy,
    Provider,
    Threads,
    Width,
    checked_draft,
    checked_policy,
    session_spec,
)
from qbpass.screen import Steps, say

if TYPE_CHECKING:
    from qbpass.models.recipe import Recipe

_NEEDS = ("starlette", "uvicorn", "prometheus_client")


def serve(
    bundle: Annotated[Path, typer.Argument(help="A folder that `qbpass rewrite` wrote.")],
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on. One that others can reach needs an API key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port (0: any that is free).")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="QBPASS_API_KEY",
            show_envvar=True,
            help="Refuse whoever does not send this key. Other users of the machine can see options, not variables.",
        ),
    ] = None,
    model_name: Annotated[
        str | None, typer.Option("--model-name", help="What clients call the model. [default: the bundle's folder]")
    ] = None,
    engines: Annotated[
        int,
        typer.Option(
            "--engines",
            min=1,
            max=64,
            help="Requests that run at the same time, over one copy of the weights and one pool of --threads; each has "
            "a KV cache and a calling thread of its own. More of them than cores slow each other down.",
        ),
    ] = 1,
    draft: Draft = "ngram",
    k: Width = None,
    policy: Policy = "adaptive",
    provider: Provider = "cpu",
    threads: Threads = None,
    lean: Lean = False,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="The most new tokens of a request.")] = 4096,
    max_body_mib: Annotated[
        int, typer.Option("--max-body-mib", min=1, max=256, help="The longest body of a request.")
    ] = 4,
    queue: Annotated[int, typer.Option("--queue", min=0, help="Requests that may wait; more are answered 429.")] = 32,
    queue_seconds: Annotated[
        float, typer.Option("--queue-seconds", min=0.001, help="How long one may wait before it is answered 503.")
    ] = 60.0,
    generation_seconds: Annotated[
        float, typer.Option("--generation-seconds", min=0.001, help="After so long an answer ends where it is.")
    ] = 600.0,
    connections: Annotated[
        int, typer.Option("--connections", min=1, help="Connections at a time; one more is answered 503.")
    ] = 256,
    grace_seconds: Annotated[
        float, typer.Option("--grace-seconds", min=0, help="What running requests get to end in on SIGTERM or Ctrl-C.")
    ] = 20.0,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="A line for each request on stderr, without its text.")
    ] = False,
) -> None:
    """Serve a bundle by the OpenAI API: /v1/completions, /v1/chat/completions, /v1/models, /health, /ready, /metrics.

    Every answer is what `qbpass generate` gives: an absent temperature is 0, greedy. Unknown parameters, and those
    that can't be followed (n above 1, logprobs, echo, tools), are refused. Needs the extra qbpass[serve].

    Exit code: 0 ended by SIGTERM, 130 by Ctrl-C, 2 unusable input.
    """
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise OptionError(f"serving needs {', '.join(missing)}: install the extra qbpass[serve]")

    from qbpass.models.tokenizer import TextCodec
    from qbpass.rewrites.bundle import check_recipe, open_bundle
    from qbpass.runtime.drafting.adaptive import AdaptivePolicy
    from qbpass.runtime.drafting.calibrate import calibrate
    from qbpass.runtime.drafting.drafts import Drafts
    from qbpass.runtime.drafting.named import POLICIES
    from qbpass.runtime.engine import Engine
    from qbpass.runtime.open_target import open_target
    from qbpass.runtime.server.app import Service
    from qbpass.runtime.server.limits import Limits
    from qbpass.runtime.server.served import Served
    from qbpass.runtime.server.serving import Server, listening_socket, url_of

    checked_draft(draft)
    checked_policy(policy)
    if api_key is not None and (not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key):
        raise OptionError("an API key is made of visible ASCII characters: give another one")
    spec = session_spec(provider, threads)
    opened = open_bundle(bundle)
    codec = TextCodec(opened.reference.tokenizer_files)
    # Before anything is loaded: the address may be taken.
    listener = listening_socket(host, port, api_key)
    recipe = check_recipe(opened, spec)
    target = open_target(opened, spec, lean=lean)
    targets = [target, *(target.sibling(spec) for _ in range(engines - 1))]
    served = Served(
        name=model_name or opened.folder.resolve().name,
        codec=codec,
        vocab_size=target.vocab_size,
        context_length=target.context_length,
        stop_ids=frozenset(opened.manifest.eos_token_ids),
        fingerprint=_fingerprint(recipe),
        k=k,
        limits=Limits(
            body_bytes=max_body_mib * 2**20,
            max_tokens=max_tokens,
            queue=queue,
            queue_seconds=queue_seconds,
            generation_seconds=generation_seconds,
            connections=connections,
            grace_seconds=grace_seconds,
        ),
    )
    with Steps() as steps:
        drafts = Drafts(draft, opened, spec, progress=steps.count)
        drafters = [drafts.drafter(each) for each in targets]
    known = POLICIES[policy](target.max_queries)
    if isinstance(known, AdaptivePolicy):
        calibrate(known.costs, target)  # once: siblings run the same session, and start from what it told
    made = [Engine(each, drafter, deepcopy(known)) for each, drafter in zip(targets, drafters, strict=True)]
    service = Service(served, made, api_key)
    _log(logging.INFO if log_requests else logging.WARNING)
    Server(service, listener, lambda: say(f"serving {served.name} at {url_of(listener)}/v1")).run()


def _fingerprint(recipe: Recipe) -> str:
    """Of everything that the reference's bits depend on. Two servers with the same one give the same answers."""
    return f"qbpass-{hashlib.sha256(recipe.model_dump_json().encode()).hexdigest()[:16]}"


def _log(level: int) -> None:
    """Lines on stderr, of the server and of what it runs in."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name, least in (("qbpass.server", level), ("uvicorn", logging.WARNING), ("asyncio", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)
