"""ValidateWorkflow: prove that a generation answers."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from standfast import contracts as c

from workflows import attributes, steps

_PROBES = {
    "generation": "Ask {where} a question and read the answer",
    "streaming": "Stream an answer from {where}",
    "stop": "See that {where} stops where it is told",
}


@workflow.defn(name=c.VALIDATE)
class ValidateWorkflow:
    """Put every probe to every replica, one after the other, and keep the report. A failed probe is a result, not
    an error.
    """

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
        results: list[c.ProbeResult] = []
        for replica in start.replicas:
            where = f"{start.deployment} inference/{replica}"
            for probe, sentence in _PROBES.items():
                results.append(
                    await steps.RUN_PROBE.run(
                        c.ProbeInput.model_validate(
                            {
                                "probe": probe,
                                "generation": start.generation,
                                "replica": replica,
                                "validation": start.validation,
                            }
                        ),
                        summary=sentence.format(where=where),
                    )
                )
                workflow.set_current_details(_page(start, results))
        report = c.ProofReport(
            id=str(workflow.uuid4()),
            generation=start.generation,
            inference_hash=start.inference_hash,
            passed=bool(results) and all(result.passed for result in results),
            started_at=started,
            took_s=workflow.time() - started,
            probes=tuple(results),
        )
        await steps.RECORD_PROOF.run(
            c.RecordProof(deployment=start.deployment, report=report),
            summary="Keep the report beside the hashes it proves",
        )
        attributes.set_phase("passed" if report.passed else "failed")
        return report


def _page(start: c.ValidateInput, results: list[c.ProbeResult]) -> str:
    lines = [f"## Proof of {start.generation}", "", "| probe | replica | verdict | |", "|---|---|---|---|"]
    lines += [f"| {r.probe} | {r.replica} | {'passed' if r.passed else '**failed**'} | {r.message} |" for r in results]
    return "\n".join(lines)
