"""Limits and times of a gateway; the defaults are what the command line starts with."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Sizes are bytes and times are seconds. Every value bounds something that a client, a backend or an outage could
    otherwise hold open.
    """

    body_bytes: int = 64 * MIB
    """Largest request body (413 beyond it)."""
    head_bytes: int = 64 * 1024
    """Largest request head, and largest set of trailers (431)."""
    target_bytes: int = 8 * 1024
    """Longest request target (414)."""
    discard_bytes: int = MIB
    """How much of a refused body is read to keep the connection usable; beyond it the connection is closed."""
    buffered_bytes: int = 1024 * MIB
    """Request bodies held in memory at a time, all connections together (503 beyond it)."""
    pipelined: int = 8
    """Requests that one connection may have waiting before the gateway stops reading from it."""
    response_head_bytes: int = 256 * 1024
    """Largest response head of a backend, and most framing (trailers, chunk extensions) without content (502 or a
    cut).
    """

    head_timeout_s: float = 30.0
    """A client must finish a request head within this."""
    body_timeout_s: float = 60.0
    """Longest silence within a request body."""
    idle_timeout_s: float = 75.0
    """Idle client connections are closed after this."""
    write_timeout_s: float = 120.0
    """A client that reads nothing for so long while data waits for it is dropped."""
    linger_s: float = 2.0
    """After a refusal the rest of the client's bytes is drained for so long, so that the answer is not lost in a
    reset.
    """

    connect_timeout_s: float = 2.0
    upstream_idle_s: float = 2.0
    """Idle backend connections are reused up to this age. vLLM (uvicorn) closes them at 5 s: well below it, no
    request can meet a closing one.
    """
    hold_s: float = 1.0
    """A backend that could not be connected to is passed over for so long."""

    poll_s: float = 0.2
    """How often the registry's revision is read."""
    keys_s: float = 1.0
    """Least distance between two reads of the API keys that unknown keys cause."""
    keys_reread_s: float = 10.0
    """Keys are read with each new revision, and at least this often."""
    beat_s: float = 1.0
    """Longest distance between two heartbeats."""
    stale_s: float = 5.0
    """The routing table counts as stale when the registry could not be read for so long."""
    source_timeout_s: float = 5.0
    """Longest wait for one look at the registry."""
    beat_timeout_s: float = 15.0
    """Longest wait for one write to it (a SQLite writer may have to wait for others)."""
    drain_s: float = 30.0
    """How long open requests may take to end after SIGTERM."""
