"""The validation probes: what proves that a replica answers, streams and stops where it is told."""

import re
import time
from collections.abc import Awaitable, Callable

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.context import Services, progress
from activities.engine import Answer, EngineError, ask, stream
from standfast import contracts as c
from standfast.plans.records import ValidationPlan
from standfast.registry import backend_id

_SHOWN = 500
"""Characters of a request or an answer that a report keeps."""


class ProbeActivities:
    """Putting probes to replicas, and keeping the report."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @activity.defn(name="run_probe")
    async def run_probe(self, start: c.ProbeInput) -> c.ProbeResult:
        """Put one probe to one replica. A wrong answer is a result; no answer at all is an error, and is tried
        again.
        """
        services = self._services
        backend = await services.registry.get_backend(backend_id(start.generation, start.replica))
        if backend is None or backend.url is None:
            raise ApplicationError(
                f"replica {start.replica} of {start.generation} has no endpoint at present", type="replica-down"
            )
        plan = await services.inference_plan(start.generation)
        probe = {"generation": self._generation, "streaming": self._streaming, "stop": self._stop}[start.probe]
        started = time.monotonic()
        async with progress() as say:
            say(f"asking {backend.url}")
            try:
                answer, passed, message = await probe(backend.url, plan.endpoint.served_name, start)
            except EngineError as error:
                raise ApplicationError(
                    f"the {start.probe} probe got no answer: {error}",
                    c.Failure(kind="transient", code="probe-unanswered", message=str(error)),
                    type="probe-unanswered",
                    # The engine understood and refused: asking again changes nothing.
                    non_retryable=error.status is not None and error.status < 500 and error.status != 429,
                ) from None
        return c.ProbeResult(
            probe=start.probe,
            replica=start.replica,
            passed=passed,
            message=message,
            request=answer.request[:_SHOWN],
            response=answer.text[:_SHOWN],
            first_token_s=round(answer.first_token_s, 4),
            took_s=round(time.monotonic() - started, 4),
        )

    @activity.defn(name="record_proof")
    async def record_proof(self, proof: c.RecordProof) -> c.Nothing:
        """Keep the report; recording it twice keeps one."""
        report = proof.report
        await self._services.registry.put_proof(
            id=report.id,
            generation=report.generation,
            inference_hash=report.inference_hash,
            passed=report.passed,
            report=report.model_dump(mode="json"),
        )
        return c.Nothing()

    async def _generation(self, url: str, model: str, start: c.ProbeInput) -> tuple[Answer, bool, str]:
        answer = await self._ask(url, model, start.validation)
        return answer, *judge_text(answer.text, start.validation)

    async def _streaming(self, url: str, model: str, start: c.ProbeInput) -> tuple[Answer, bool, str]:
        validation = start.validation
        answer, chunks, done = await stream(
            self._services.http,
            url,
            model,
            validation.prompt,
            max_tokens=validation.max_tokens,
            timeout_s=validation.timeout_s,
        )
        if not done:
            return answer, False, "the stream ended without [DONE]"
        if chunks == 0:
            return answer, False, "the stream carried no text"
        passed, message = judge_text(answer.text, validation)
        return answer, passed, f"{chunks} chunks; {message}"

    async def _stop(self, url: str, model: str, start: c.ProbeInput) -> tuple[Answer, bool, str]:
        return await prove_stop(lambda stop: self._ask(url, model, start.validation, stop), start.reference)

    async def _ask(self, url: str, model: str, validation: ValidationPlan, stop: str | None = None) -> Answer:
        return await ask(
            self._services.http,
            url,
            model,
            validation.prompt,
            max_tokens=validation.max_tokens,
            stop=stop,
            timeout_s=validation.timeout_s,
        )


def judge_text(text: str, validation: ValidationPlan) -> tuple[bool, str]:
    """Whether an answer is one, and the one that is expected."""
    if not text.strip():
        return False, "the answer is empty"
    if validation.expect is not None and re.search(validation.expect, text) is None:
        return False, f"the answer does not match {validation.expect!r}"
    return True, f"answered {len(text)} characters"


async def prove_stop(ask: Callable[[str | None], Awaitable[Answer]], reference: str | None) -> tuple[Answer, bool, str]:
    """Whether a model stops where it is told: at a piece of what it answered before, ``reference``, or else of what it
    answers now. ``ask`` puts the question, with a stop or without.
    """
    stop = choose_stop(reference or "")
    if stop is not None:
        answer = await ask(stop)
        passed, message = judge_stop(answer, stop)
        if passed:
            return answer, passed, message
    # Answers may differ a little between batches: what counts is whether this one stops.
    whole = await ask(None)
    stop = choose_stop(whole.text)
    if stop is None:
        return whole, False, "the answer holds no text to stop at"
    answer = await ask(stop)
    return answer, *judge_stop(answer, stop)


_WORD = re.compile(r"[^\s\x00-\x1f\x7f\ufffd]+")
"""Characters that an engine is sure of: neither control characters nor what stands for bytes that are no text."""


def choose_stop(text: str) -> str | None:
    """A piece of a greedy answer at which a second, equal answer must stop: the beginning of its second word, so that
    the second answer is short, or else the last letter of its only word.
    """
    words = list(_WORD.finditer(text))
    if not words:
        return None
    if len(words) == 1:
        return words[0][0][-1]
    word, before = words[1][0], text[: words[1].start()]
    return next((word[:end] for end in range(1, len(word)) if word[:end] not in before), word)


def judge_stop(answer: Answer, stop: str) -> tuple[bool, str]:
    """Whether an answer ended where it was told to."""
    if answer.finish_reason != "stop":
        return False, f"told to stop at {stop!r}, it ended by {answer.finish_reason!r} instead of 'stop'"
    if stop in answer.text:
        return False, f"told to stop at {stop!r}, it went on past it"
    return True, f"stopped at {stop!r}"
