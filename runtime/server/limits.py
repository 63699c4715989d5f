"""What one client may ask of a server, so that the others are served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes in what their names say, times in seconds.

    bodies: how many are read and understood at a time; a request beside them is answered 429, as one beside the queue.
    queue: requests that wait for an engine; one more is answered 429. queue_seconds: how long one may wait (503).
    generation_seconds: then an answer ends where it is, with finish_reason "length".
    stall_seconds: how long a client may leave what is sent to it unread.
    grace_seconds: what requests under way get to end in when the server is told to stop.
    """

    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0
    bodies: int = 64
    max_tokens: int = 4096
    queue: int = 32
    queue_seconds: float = 60.0
    generation_seconds: float = 600.0
    connections: int = 256
    stall_seconds: float = 30.0
    grace_seconds: float = 20.0
