"""Connect to Temporal and the registry, serve until told to stop."""

import asyncio
import gc
import os
import signal
from collections.abc import Sequence
from datetime import timedelta

import httpx
import structlog
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import workflows
from activities import Services, all_activities
from standfast import contracts as c
from standfast.home import Home
from standfast.images.store import ImageStore
from standfast.platforms.inventory import read_inventory
from standfast.platforms.local import LocalPlatform
from standfast.platforms.ports import engine_ports
from standfast.problems import UserError
from standfast.registry import Registry
from standfast.weights import WeightsStore

_log = structlog.get_logger(__name__)

_ACTIVITY_SLOTS = 500
"""Each standing replica holds one slot for its watch."""
_HANDOVER = timedelta(seconds=1)
"""Long activities leave at once and are taken up by the next worker; short ones get this long to end."""
_STICKY = timedelta(seconds=5)


def run(stop_signals: Sequence[signal.Signals]) -> int:
    """Serve until a stop signal; returns the exit code."""
    return asyncio.run(_serve(stop_signals))


async def _serve(stop_signals: Sequence[signal.Signals]) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals:
        loop.add_signal_handler(number, stopping.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals)

    home = Home.default()
    try:
        inventory = await asyncio.to_thread(read_inventory)
        engine_ports()
    except (UserError, ValueError) as error:
        _log.error("a setting of this host is wrong", error=str(error), help=getattr(error, "help", ""))
        return 2
    config = ClientConfig.load_client_connect_config()
    try:
        client = await Client.connect(
            **config, data_converter=pydantic_data_converter, identity=f"control@{inventory.host}/{os.getpid()}"
        )
    except RuntimeError as error:
        _log.error("cannot reach Temporal", address=config.get("target_host"), error=str(error))
        return 3
    async with (
        await Registry.open(home.registry_url) as registry,
        httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False) as http,
    ):
        services = Services(
            home=home,
            registry=registry,
            platform=LocalPlatform(home.attempts, host=inventory.host),
            inventory=inventory,
            images=ImageStore(home.images),
            weights=WeightsStore(home.weights),
            http=http,
        )
        async with _worker(client, c.TASK_QUEUE, services), _worker(client, c.host_queue(inventory.host), services):
            # What was loaded stays: without it the collector has ten times less to look through, again and again.
            gc.freeze()
            _log.info("serving", host=inventory.host, temporal=config.get("target_host"), pid=os.getpid())
            await stopping.wait()
            _log.info("handing over")
    return 0


def _worker(client: Client, queue: str, services: Services) -> Worker:
    return Worker(
        client,
        task_queue=queue,
        workflows=workflows.ALL if queue == c.TASK_QUEUE else (),
        activities=all_activities(services),
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules(*workflows.PASSED_THROUGH)
        ),
        max_concurrent_activities=_ACTIVITY_SLOTS,
        max_concurrent_workflow_tasks=8,
        graceful_shutdown_timeout=_HANDOVER,
        sticky_queue_schedule_to_start_timeout=_STICKY,
    )
