"""What every activity stands on: the services of one control worker, and how it fails and shows progress."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
from temporalio import activity
from temporalio.exceptions import ApplicationError

from standfast.contracts import Failure
from standfast.home import Home
from standfast.images.store import ImageStore
from standfast.plans.records import Generation, RolePlan
from standfast.platforms.base import Platform
from standfast.platforms.inventory import HostInventory
from standfast.problems import ProblemsError, UserError
from standfast.registry import Registry
from standfast.weights import WeightsStore

_BEAT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Services:
    """The world as one control worker reaches it. Shared by all its activities."""

    home: Home
    registry: Registry
    platform: Platform
    inventory: HostInventory
    images: ImageStore
    weights: WeightsStore
    http: httpx.AsyncClient

    async def generation(self, generation_id: str) -> Generation:
        """The recorded generation. Raises a permanent failure when the registry does not know it."""
        stored = await self.registry.get_generation(generation_id)
        if stored is None:
            raise failed(
                Failure(
                    kind="permanent",
                    code="generation-unknown",
                    message=f"The registry has no generation {generation_id}.",
                    help="Was the registry replaced? Deploy again.",
                )
            )
        return stored.record

    async def inference_plan(self, generation_id: str) -> RolePlan:
        """The inference role's plan of a recorded generation."""
        return role_plan(await self.generation(generation_id))


def role_plan(generation: Generation) -> RolePlan:
    """The inference role's plan of a generation."""
    if generation.inference is None:
        raise failed(
            Failure(kind="permanent", code="no-inference-role", message=f"{generation.id} has no inference role.")
        )
    return generation.inference


def failed(failure: Failure) -> ApplicationError:
    """The error that ends an activity with a verdict; the workflow decides what follows, so Temporal does not
    retry it.
    """
    return ApplicationError(failure.message, failure, type=failure.code, non_retryable=True)


def refused(error: ProblemsError) -> ApplicationError:
    """The error that carries every configuration problem to the client."""
    return ApplicationError(str(error), error.to_json(), type="Problems", non_retryable=True)


def misused(error: UserError, code: str) -> ApplicationError:
    """The error for a request that cannot be carried out as given."""
    return failed(Failure(kind="permanent", code=code, message=error.message, help=error.help))


@contextlib.asynccontextmanager
async def progress() -> AsyncIterator[Callable[[str], None]]:
    """Heartbeats while a long step runs, each with the sentence said last.

    The beat proves that this worker lives and lets a cancellation in; that the step itself gets on is bounded by
    its start-to-close time.
    """
    said = ""

    def say(sentence: str) -> None:
        nonlocal said
        said = sentence
        activity.heartbeat(said)

    async def beat() -> None:
        while True:
            activity.heartbeat(said)
            await asyncio.sleep(_BEAT_S)

    task = asyncio.create_task(beat())
    try:
        yield say
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
