"""What a server counts, for Prometheus. Nothing of a prompt or an answer is in it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from qbpass.runtime.server.engine_pool import EnginePool
from qbpass.runtime.server.job import Ended, Finished, Job

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """One server's, in a registry of their own. Counting may be done from any thread."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "qbpass_requests", "Requests, by how they ended.", ["endpoint", "outcome"], registry=registry
        )
        self._tokens = {
            name: Counter(f"qbpass_{name}_tokens", help_, registry=registry)
            for name, help_ in (
                ("prompt", "Tokens of prompts that were evaluated."),
                ("generated", "Tokens of answers."),
                ("proposed", "Draft tokens that were verified."),
                ("accepted", "Draft tokens that the model chose itself."),
            )
        }
        self._rounds = Counter("qbpass_rounds", "Verification calls.", registry=registry)
        self._times = {
            name: Histogram(f"qbpass_{name}_seconds", help_, buckets=_SECONDS, registry=registry)
            for name, help_ in (
                ("queue", "From a request's submission until an engine takes it."),
                ("time_to_first_token", "From a request's submission to its first token."),
                ("generation", "From when an engine takes a request to its last token."),
                ("request", "From a request's body to the end of its answer."),
            )
        }

    def watch(self, pool: EnginePool) -> None:
        """Show this pool's queue and engines."""
        for name, help_, value in (
            ("queue_depth", "Requests that wait for an engine.", lambda: pool.waiting),
            ("running_requests", "Requests that an engine is at.", lambda: pool.running),
            ("engines", "Engines.", lambda: len(pool.engines)),
        ):
            Gauge(f"qbpass_{name}", help_, registry=self.registry).set_function(value)

    def answered(self, endpoint: str, outcome: str, seconds: float) -> None:
        """A request is over, in whatever way."""
        self._requests.labels(endpoint, outcome).inc()
        self._times["request"].observe(seconds)

    def generated(self, job: Job, how: Ended) -> None:
        """An engine is done with a job."""
        assert job.started is not None
        assert job.ended is not None
        self._times["queue"].observe(job.started - job.submitted)
        if job.first_token is not None:
            self._times["time_to_first_token"].observe(job.first_token - job.submitted)
        if isinstance(how, Finished):
            self._times["generation"].observe(job.ended - job.started)
            counts = {
                "prompt": how.trace.prompt_tokens,
                "generated": how.endpoint.length,
                "proposed": how.trace.proposed,
                "accepted": how.trace.accepted,
            }
            for name, count in counts.items():
                self._tokens[name].inc(count)
            self._rounds.inc(how.trace.rounds)

    def exposition(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self.registry)
