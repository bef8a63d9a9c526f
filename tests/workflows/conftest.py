"""A real Temporal server with virtual time, shared by the workflow tests of one process."""

import contextlib
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import workflows
from standfast import contracts as c
from tests.workflows.scripted import World


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """The server; its clock runs ahead of every workflow that only waits."""
    async with await WorkflowEnvironment.start_time_skipping_v2(
        data_converter=pydantic_data_converter,
        dev_server_existing_path=str(Path(sys.executable).parent / "temporal"),
        search_attributes=[SearchAttributeKey.for_keyword(name) for name in c.SEARCH_ATTRIBUTES],
        dev_server_log_level="error",
        dev_server_extra_args=["--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true"],
    ) as environment:
        yield environment


@dataclass
class Stage:
    """The workflows and a scripted world, served to one test."""

    client: Client
    environment: WorkflowEnvironment
    world: World
    queue: str

    def name(self) -> str:
        """A workflow id of this test alone."""
        return f"test/{uuid.uuid4().hex}"

    async def status(self, handle: WorkflowHandle) -> c.ReplicaStatus:  # type: ignore[type-arg]
        return await handle.query("status", result_type=c.ReplicaStatus)


@contextlib.asynccontextmanager
async def serve(environment: WorkflowEnvironment, world: World, *, replays: bool = False) -> AsyncIterator[Stage]:
    """Serve the real workflows over the scripted world. With ``replays`` nothing is cached and every task replays
    its history.
    """
    queue = f"q-{uuid.uuid4().hex}"
    host = Worker(environment.client, task_queue=c.host_queue("h1"), activities=world.activities())
    main = Worker(
        environment.client,
        task_queue=queue,
        workflows=workflows.ALL,
        activities=world.activities(),
        max_cached_workflows=0 if replays else 100,
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules(*workflows.PASSED_THROUGH)
        ),
    )
    async with main, host:
        yield Stage(client=environment.client, environment=environment, world=world, queue=queue)
