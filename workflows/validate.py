"""ValidateWorkflow: prove that a generation answers."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from standfast import contracts as c

from workflows import attributes, shown, steps

_T = TypeVar("_T")

_PROBES = {
    "generation": "Ask {where} a question and read the answer",
    "streaming": "Stream an answer from {where}",
    "stop": "See that {where} stops where it is told",
}


_AT_A_TIME = 8
"""Replicas that are asked at the same time."""


@workflow.defn(name=c.VALIDATE)
class ValidateWorkflow:
    """Put every probe to every replica, and keep the report. A failed probe is a result, not an error."""

    @workflow.init
    def __init__(self, start: c.ValidateInput) -> None:
        self._start = start
        self._results: dict[tuple[int, int], c.ProbeResult] = {}
        self._free = asyncio.Semaphore(_AT_A_TIME)

    @workflow.run
    async def run(self, start: c.ValidateInput) -> c.ProofReport:
        attributes.tag(
            deployment=start.deployment,
            target=start.target,
            phase="validating",
            generation=start.generation,
            role="inference",
        )
        started = workflow.time()
        await _all(self._prove(replica) for replica in start.replicas)
        results = self._in_order()
        report = c.ProofReport(
            id=str(workflow.uuid4()),
            generation=start.generation,
            inference_hash=start.inference_hash,
            passed=bool(results) and all(result.passed for result in results),
            started_at=started,
            took_s=workflow.time() - started,
            probes=results,
        )
        await steps.RECORD_PROOF.run(
            c.RecordProof(deployment=start.deployment, report=report),
            summary="Keep the report beside the hashes it proves",
        )
        attributes.set_phase("passed" if report.passed else "failed")
        shown.keep(_page(start, results))
        return report

    async def _prove(self, replica: int) -> None:
        """Every probe against one replica: two that ask the same at once, then the one that builds on their answer."""
        async with self._free:
            answered, _ = await _all((self._put("generation", replica), self._put("streaming", replica)))
            await self._put("stop", replica, reference=answered.response)

    async def _put(self, probe: str, replica: int, reference: str | None = None) -> c.ProbeResult:
        start = self._start
        where = f"{start.deployment} inference/{replica}"
        result = await steps.RUN_PROBE.run(
            c.ProbeInput.model_validate(
                {
                    "probe": probe,
                    "generation": start.generation,
                    "replica": replica,
                    "validation": start.validation,
                    "reference": reference,
                }
            ),
            summary=_PROBES[probe].format(where=where),
        )
        self._results[start.replicas.index(replica), list(_PROBES).index(probe)] = result
        shown.show(_page(start, self._in_order()))
        return result

    def _in_order(self) -> tuple[c.ProbeResult, ...]:
        return tuple(result for _, result in sorted(self._results.items(), key=lambda item: item[0]))


async def _all(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results of all; the first failure cancels what still runs."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _page(start: c.ValidateInput, results: tuple[c.ProbeResult, ...]) -> str:
    lines = [f"## Proof of {start.generation}", "", "| probe | replica | verdict | |", "|---|---|---|---|"]
    lines += [f"| {r.probe} | {r.replica} | {'passed' if r.passed else '**failed**'} | {r.message} |" for r in results]
    return "\n".join(lines)
