"""What is read off an engine that ended."""

import pytest

from standfast.failures import RULES, classify

#: Lines that real engines and libraries wrote, with the verdict they must lead to.
LINES = [
    ("vllm: error: unrecognized arguments: --enforce-eagr", "unknown-option", "permanent"),
    ("vllm serve: error: argument --max-model-len: invalid int value: 'x'", "unknown-option", "permanent"),
    ("standfast_sglang: error: Unexpected keyword argument 'nope'", "unknown-option", "permanent"),
    ("ValueError: Invalid attention backend: nope", "invalid-setting", "permanent"),
    (
        "OSError: Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' or '.' "
        "and the maximum length is 96: '/nonexistent'.",
        "model-not-found",
        "permanent",
    ),
    (
        "ValueError: Available memory on node 0 (9.1/23.5 GiB) on startup is less than desired CPU memory utilization "
        "(0.92, 21.6 GiB).",
        "out-of-memory",
        "permanent",
    ),
    (
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.1. Raise "
        "--mem-fraction-static above 0.127.",
        "out-of-memory",
        "permanent",
    ),
    (
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 23200): address already in use",
        "port-in-use",
        "transient",
    ),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out-of-memory", "permanent"),
    ("OSError: /models/x does not appear to have a file named config.json.", "model-not-found", "permanent"),
    (
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. Repository Not Found for url",
        "model-not-found",
        "permanent",
    ),
    ("huggingface_hub.errors.GatedRepoError: 403 Client Error.", "unauthorised", "permanent"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: incomplete", "weights-damaged", "permanent"),
    ("OSError: [Errno 98] Address already in use", "port-in-use", "transient"),
    (
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients.",
        "rendezvous-timeout",
        "transient",
    ),
    ("requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104))", "network", "transient"),
]


@pytest.mark.parametrize(("line", "code", "kind"), LINES, ids=[f"{code}-{n}" for n, (_, code, _) in enumerate(LINES)])
def test_a_line_leads_to_its_verdict(line: str, code: str, kind: str) -> None:
    failure = classify(["INFO starting", line, "INFO bye"], code=1, signal=None, had_served=False)
    assert (failure.code, failure.kind) == (code, kind)
    assert line in failure.evidence


def test_every_rule_is_shown_by_a_line() -> None:
    shown = {code for _, code, _ in LINES}
    assert {rule.code for rule in RULES} == shown


def test_an_engine_that_served_is_never_called_permanently_broken() -> None:
    failure = classify(["torch.OutOfMemoryError: CUDA out of memory."], code=1, signal=None, had_served=True)
    assert (failure.code, failure.kind) == ("out-of-memory", "transient")


def test_an_unknown_end_is_transient_and_says_how_it_ended() -> None:
    assert "signal 9" in classify([], code=None, signal=9, had_served=False).message
    assert "exit code 0" in classify([], code=0, signal=None, had_served=False).message
    assert classify(["?"], code=3, signal=None, had_served=False).kind == "transient"


def test_evidence_is_bounded() -> None:
    failure = classify(["x" * 5000] * 500, code=1, signal=None, had_served=False)
    assert len(failure.evidence) <= 15
    assert max(map(len, failure.evidence)) <= 301
