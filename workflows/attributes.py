"""The search attributes by which operators filter workflow lists."""

from temporalio import workflow
from temporalio.common import SearchAttributeKey

PHASE = SearchAttributeKey.for_keyword("StandfastPhase")
GENERATION = SearchAttributeKey.for_keyword("StandfastGeneration")
DEPLOYMENT = SearchAttributeKey.for_keyword("StandfastDeployment")
ROLE = SearchAttributeKey.for_keyword("StandfastRole")
TARGET = SearchAttributeKey.for_keyword("StandfastTarget")


def tag(*, deployment: str, target: str, phase: str, generation: str | None = None, role: str | None = None) -> None:
    """Tag the running workflow."""
    updates = [DEPLOYMENT.value_set(deployment), TARGET.value_set(target), PHASE.value_set(phase)]
    if generation is not None:
        updates.append(GENERATION.value_set(generation))
    if role is not None:
        updates.append(ROLE.value_set(role))
    workflow.upsert_search_attributes(updates)


def set_phase(phase: str) -> None:
    """Change the phase tag of the running workflow."""
    workflow.upsert_search_attributes([PHASE.value_set(phase)])
