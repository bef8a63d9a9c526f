"""Why an engine did not come up, or ended: a table of what engines write, and one pure function that reads it.

The last log lines decide where they are clear; else the way the process ended does. What nobody knows counts as
transient, which is bounded by
the retry budget.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from standfast.contracts import Failure, FailureKind


@dataclass(frozen=True, kw_only=True)
class Rule:
    """If a log line matches ``pattern``, the failure is of this ``kind`` and ``code``. Earlier rules win."""

    code: str
    kind: FailureKind
    pattern: re.Pattern[str]
    message: str
    help: str = ""


def _rule(code: str, kind: FailureKind, pattern: str, message: str, help: str = "") -> Rule:
    return Rule(code=code, kind=kind, pattern=re.compile(pattern), message=message, help=help)


#: Patterns were read off vLLM 0.32, SGLang 0.5.23, PyTorch, the Hugging Face libraries and the Linux kernel.
RULES: tuple[Rule, ...] = (
    _rule(
        "unknown-option",
        "permanent",
        r"(error: (unrecognized arguments|ambiguous option|argument \S+: (invalid|expected))"
        r"|standfast_sglang: error: )",
        "The engine does not accept its command line.",
        "Correct Inference.options or extra_args; `standfast plan` checks them against the built image.",
    ),
    _rule(
        "unauthorised",
        "permanent",
        r"(401 Client Error|403 Client Error|GatedRepoError|Access to model .* is restricted)",
        "The model hub refused access to the model.",
        "Accept the model's licence on the hub and set HF_TOKEN for the control worker.",
    ),
    _rule(
        "model-not-found",
        "permanent",
        r"(RepositoryNotFoundError|RevisionNotFoundError|Can't load the configuration of|is not a local folder and is "
        r"not a valid model identifier|does not appear to have a file named|Invalid repository ID"
        r"|HFValidationError|Repo id must use alphanumeric"
        r"|No such file or directory: '[^']*(config\.json|safetensors)')",
        "The model's files were not found.",
        "Check Model.id and Model.source.",
    ),
    _rule(
        "weights-damaged",
        "permanent",
        r"(SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|InvalidHeaderDeserialization)",
        "The model's weight files are damaged or incomplete.",
        "Remove them from the weights cache and deploy again, so that they are fetched anew.",
    ),
    _rule(
        "out-of-memory",
        "permanent",
        r"(CUDA out of memory|OutOfMemoryError|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory"
        r"|MemoryError|std::bad_alloc|less than desired (CPU|GPU) memory utilization"
        r"|No available memory for the cache blocks|leave no GPU memory for the KV cache"
        r"|[Nn]ot enough memory|is larger than the maximum number of tokens that can be stored in KV cache)",
        "The model does not fit in the memory it was given.",
        "Give Compute more memory or GPUs, lower context_length, or lower the memory options of the engine.",
    ),
    _rule(
        "invalid-setting",
        "permanent",
        r"(pydantic_core\._pydantic_core\.ValidationError|ValidationError: \d+ validation errors? for|ValueError: .*"
        r"(max_model_len|not supported|must be|Unknown|unsupported|[Ii]nvalid)|NotImplementedError:)",
        "The engine refused its settings.",
        "Read the lines below and correct Inference.options.",
    ),
    _rule(
        "port-in-use",
        "transient",
        r"([Aa]ddress already in use|EADDRINUSE|Errno 98)",
        "A port that the engine needs was taken by another process.",
        "The next attempt gets other ports.",
    ),
    _rule(
        "rendezvous-timeout",
        "transient",
        r"(DistStoreError|Timed out after \d+ seconds waiting for clients|rendezvous.*[Tt]imed? ?out"
        r"|Connect(ion)? timeout.*TCPStore)",
        "The ranks did not find each other in time.",
    ),
    _rule(
        "network",
        "transient",
        r"(ConnectionResetError|Connection reset by peer|Temporary failure in name resolution|Max retries exceeded"
        r"|ReadTimeout|ConnectTimeout|50[0234] Server Error|429 Client Error|LocalEntryNotFoundError)",
        "The network or the model hub failed for a moment.",
    ),
)

_EVIDENCE = 12
_LINE = 300
_KILL = 9


def classify(
    tail: Sequence[str], *, code: int | None, signal: int | None, had_served: bool, attempt: str | None = None
) -> Failure:
    """Read the verdict off an engine that ended.

    ``tail`` are its last log lines, ``code`` and ``signal`` how its first process ended (one of them None),
    ``had_served`` whether it had answered
    before: an engine that worked is never called permanently broken, since the same settings did serve.
    """
    for rule in RULES:
        lines = [line for line in tail if rule.pattern.search(line)]
        if lines:
            kind = "transient" if had_served and rule.kind == "permanent" else rule.kind
            return Failure(
                kind=kind,
                code=rule.code,
                message=rule.message,
                help=rule.help,
                evidence=evidence_of([*lines[-3:], *(line for line in tail[-_EVIDENCE:] if line not in lines[-3:])]),
                attempt=attempt,
            )
    return Failure(
        kind="transient",
        code="engine-exited" if signal is None else "engine-killed",
        message=_ended(code, signal),
        help="Killed by signal 9 without a word is often the kernel's out-of-memory killer: see `dmesg`."
        if signal == _KILL
        else "",
        evidence=evidence_of(tail),
        attempt=attempt,
    )


def evidence_of(lines: Sequence[str]) -> tuple[str, ...]:
    """The last lines, shortened, that a failure carries."""
    return tuple(line if len(line) <= _LINE else f"{line[:_LINE]}…" for line in lines if line.strip())[-_EVIDENCE - 3 :]


def _ended(code: int | None, signal: int | None) -> str:
    if signal is not None:
        return f"The engine was ended by signal {signal}."
    if code == 0:
        return "The engine ended by itself with exit code 0; a server that ends has failed."
    return f"The engine ended with exit code {code}." if code is not None else "The engine ended; how is unknown."
