"""What the stand-in does: one JSON file, named by the environment variable ``SCRIPTED_ENGINE``.

Starts are counted in the file ``<script>.starts`` beside it, one JSON line per start; so a test can say "dies on the
first two starts" and can check afterwards that nothing was started twice.
"""

import json
import os
import re
import time
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """All that can be scripted. The default is an engine that starts at once and answers."""

    startup_s: float = 0.0
    """Seconds from start to an open port; until then the port refuses connections, as with vLLM."""
    startup_gate: str | None = None
    """... and until this file exists: for a test that must see a start that is not done."""
    log_lines: tuple[str, ...] = ()
    """Printed to standard error at the start, before a scripted death."""
    die_on_starts: int = 0
    """The first so many starts end with ``exit_code`` once ``startup_s`` has passed (a large number: always)."""
    exit_code: int = 1
    die_after_s: float | None = None
    """Ends with ``exit_code`` so many seconds after the port opened."""
    port_in_use: bool = False
    """Ends with vLLM's message for a taken port."""
    print_environment: bool = False
    """Prints its environment, sorted, as ``NAME=value`` lines."""

    children: tuple[str, ...] | int = ()
    """Names of child processes, or how many (``VLLM::EngineCore`` first, then ``VLLM::Worker``s)."""
    on_child_death: str = "exit"
    """``"exit"``: health turns 503, the engine exits after ``child_death_delay_s``; ``"ignore"``: nothing changes."""
    child_death_delay_s: float = 0.0
    double_fork: bool = False
    """Starts a stray grandchild in its own session, whose parent is gone."""
    ignore_sigterm: bool = False
    """The engine and its children ignore SIGTERM."""
    stop_s: float = 0.0
    """Seconds between SIGTERM and the exit."""
    lifetime_s: int = 3600
    """Every process of the engine kills itself after so many seconds, so that a broken test leaves nothing for long."""

    health_status: int = 200
    health_hangs: bool = False
    wrong_identity: str | None = None
    """Serves this name instead of those given on the command line."""
    healthy_but_silent: str | None = None
    """``"hang"`` or ``"error"`` (500): health and the model list are fine, generation is not."""
    refuse_status: int | None = None
    """Answers every generation request with this status (429, 503) ..."""
    refuse_retry_after: str | None = None
    """... and this ``Retry-After`` header."""
    die_mid_stream: int | None = None
    """Exits with ``exit_code`` after so many tokens of a stream."""
    drop_mid_stream: int | None = None
    """Closes the connection after so many tokens of a stream, and lives on."""

    held_prompts: str | None = None
    """Requests whose prompt contains this text wait until the script says otherwise."""
    first_token_s: float = 0.0
    tokens_per_second: float = 0.0
    """0: as fast as it can."""
    answer: str | None = None
    """The text of every answer; ``None``: an answer that fits the prompt."""
    answer_tokens: int | None = None
    """Answers with so many tokens ``w0 w1 w2 ...``."""
    ignores_stop: bool = False
    """Generates past stop strings, as a broken sampler would."""

    attempts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Other values for some attempts: a regular expression searched in ``$STANDFAST_ATTEMPT`` to what differs."""

    def for_attempt(self, attempt: str) -> "Behaviour":
        """This behaviour with the overrides whose pattern is found in ``attempt``."""
        changed = self
        for pattern, overrides in self.attempts.items():
            if re.search(pattern, attempt):
                changed = replace(changed, **_tuples(overrides))
        return changed

    @property
    def child_names(self) -> tuple[str, ...]:
        if isinstance(self.children, int):
            return tuple("VLLM::EngineCore" if index == 0 else "VLLM::Worker" for index in range(self.children))
        return self.children


def read(path: str | None) -> Behaviour:
    """The behaviour scripted in the file ``path``; without one, the default. Unknown fields are a ``TypeError``."""
    if not path or not os.path.exists(path):  # noqa: PTH110 (importing pathlib costs a tenth of the start-up)
        return Behaviour()
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        given = json.load(file)
    unknown = sorted(set(given) - {known.name for known in fields(Behaviour)})
    if unknown:
        raise TypeError(f"the engine script {path} has unknown fields: {', '.join(unknown)}")
    return Behaviour(**_tuples(given)).for_attempt(os.environ.get("STANDFAST_ATTEMPT", ""))


def record_start(path: str | None) -> int:
    """Note this start beside the script; how many there were, this one included."""
    if not path:
        return 1
    line = {"pid": os.getpid(), "attempt": os.environ.get("STANDFAST_ATTEMPT", ""), "at": time.time()}
    descriptor = os.open(f"{path}.starts", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.lseek(descriptor, 0, os.SEEK_SET)
        before = os.read(descriptor, 2**24).split(b"\n")
    finally:
        os.close(descriptor)
    return next(number for number, text in enumerate(before, 1) if text and json.loads(text) == line)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
