"""One attempt of one replica: find room, launch, end."""

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.context import Services, failed, misused, progress, role_plan
from standfast import contracts as c
from standfast.plans import bind
from standfast.plans.facts import BindFacts, BoundReplica, RankFacts
from standfast.plans.records import RolePlan
from standfast.platforms.base import AttemptConflictError, Launch, LaunchError, StopUnconfirmedError
from standfast.platforms.leasing import LeaseRequest, release, reserve
from standfast.problems import ProblemsError, UserError
from standfast.registry import CapacityError, StoredAttempt, backend_id


class AttemptActivities:
    """Placing, launching and ending attempts on this host."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @activity.defn(name="place_attempt")
    async def place(self, start: c.PlaceInput) -> c.Placement:
        """Lease memory, GPUs and ports for an attempt; asking again returns the same leases."""
        services = self._services
        generation = await services.generation(start.generation)
        ranks = role_plan(generation).ranks
        request = LeaseRequest(
            owner=start.attempt,
            generation=start.generation,
            gpu=ranks[0].claim.gpu,
            gpus=sum(rank.claim.gpus for rank in ranks),
            memory_bytes=sum(rank.claim.memory_bytes for rank in ranks),
            port_spans=tuple(rank.claim.ports.count for rank in ranks),
        )
        await self._end_forgotten(start)
        try:
            lease = await reserve(services.registry, services.inventory, request)
        except CapacityError as error:
            raise failed(_no_room(error)) from None
        await services.registry.put_attempt(
            start.attempt,
            deployment=generation.deployment,
            generation=start.generation,
            role=start.role,
            replica=start.replica,
            number=start.number,
            directory=str(services.home.attempts / start.attempt.replace("/", "%")),
        )
        backend = await services.registry.get_backend(backend_id(start.generation, start.replica))
        if backend is None or backend.attempt != start.attempt:
            await services.registry.put_backend(
                backend_id(start.generation, start.replica),
                generation=start.generation,
                replica=start.replica,
                host=services.inventory.host,
                state="starting",
                attempt=start.attempt,
            )
        placed: list[c.RankPlacement] = []
        given = 0
        for rank, port_base in zip(ranks, lease.port_bases, strict=True):
            gpus = lease.gpu_ids[given : given + rank.claim.gpus]
            given += rank.claim.gpus
            placed.append(
                c.RankPlacement(
                    rank=rank.rank,
                    host=lease.host,
                    address="127.0.0.1",
                    port_base=port_base,
                    gpu_ids=tuple(str(gpu) for gpu in gpus),
                )
            )
        return c.Placement(attempt=start.attempt, host=lease.host, ranks=tuple(placed))

    async def _end_forgotten(self, start: c.PlaceInput) -> None:
        """End earlier attempts of the same replica whose workflow was terminated before it could."""
        for earlier in await self._services.registry.list_attempts(generation=start.generation, replica=start.replica):
            if earlier.phase != "ended" and earlier.number < start.number:
                await end_attempt(self._services, ending_of(earlier, "a later attempt takes its place"))

    @activity.defn(name="launch_attempt")
    async def launch(self, ref: c.AttemptRef) -> c.Nothing:
        """Start the attempt's launchers and hand them the bound plan. Launching twice finds the first launch."""
        services = self._services
        plan = await services.inference_plan(ref.generation)
        image = services.images.read(plan.engine.image_digest)
        model = services.weights.read(plan.model)
        if image is None or model is None:
            missing = f"image {plan.engine.image_name}" if image is None else f"weights of {plan.model.id}"
            raise failed(
                c.Failure(
                    kind="permanent",
                    code="image-missing" if image is None else "weights-missing",
                    message=f"The {missing} is no longer on this host.",
                    help="Deploy the config again: it is built or fetched anew.",
                )
            )
        bound = _bound(
            plan,
            ref,
            BindFacts(
                attempt=ref.attempt,
                model_path=str(model),
                executable=(str(image.path / image.inspection.executable[0]), *image.inspection.executable[1:]),
                ranks=tuple(
                    RankFacts(
                        rank=rank.rank,
                        host=rank.host,
                        address=rank.address,
                        port_base=rank.port_base,
                        gpu_ids=rank.gpu_ids,
                    )
                    for rank in ref.placement.ranks
                ),
            ),
        )
        secrets = {secret for rank in bound.ranks for _, secret in rank.secrets}
        ports = tuple(port for rank in bound.ranks for _, port in rank.ports)
        try:
            launched = await services.platform.launch(
                Launch(
                    attempt=ref.attempt,
                    ranks=tuple(rank.rank for rank in bound.ranks),
                    secrets=tuple(sorted(secrets)),
                    ports=ports,
                )
            )
            if not launched.finished:
                await services.platform.start(ref.attempt, bound, stop_grace_s=plan.stop_grace_s)
        except UserError as error:
            raise misused(error, "secret-missing") from None
        except AttemptConflictError as error:
            raise failed(
                c.Failure(kind="transient", code="attempt-name-taken", message=str(error), attempt=ref.attempt)
            ) from None
        except LaunchError as error:
            raise failed(
                c.Failure(kind="transient", code="launcher-failed", message=str(error), attempt=ref.attempt)
            ) from None
        await services.registry.set_attempt(ref.attempt, phase="starting")
        return c.Nothing(detail=launched.outcome)

    @activity.defn(name="end_attempt")
    async def end(self, end: c.EndAttempt) -> c.Nothing:
        """Take the attempt out of routing, stop it, confirm that it is gone, give its leases back."""
        services = self._services
        await end_attempt(services, end)
        return c.Nothing()


def _bound(plan: RolePlan, ref: c.AttemptRef, facts: BindFacts) -> BoundReplica:
    try:
        return bind(plan, ref.replica, facts)
    except ProblemsError as error:
        raise failed(
            c.Failure(
                kind="permanent",
                code="placement-misfit",
                message="The attempt was placed otherwise than its plan asks: "
                + " ".join(problem.message for problem in error.problems),
                help="This is a fault of the platform; deploying again places anew.",
                evidence=tuple(problem.render() for problem in error.problems),
                attempt=ref.attempt,
            )
        ) from None


async def end_attempt(services: Services, end: c.EndAttempt) -> None:
    """End one attempt for good. Idempotent; leases are given back only once every process is confirmed gone."""
    known = await services.registry.get_attempt(end.attempt)
    if known is not None:
        await take_out(services, end.generation, end.replica, end.attempt)
        plan = await services.inference_plan(end.generation)
        await services.registry.set_attempt(end.attempt, phase="stopping")
        async with progress() as say:
            say("stopping every process")
            try:
                await services.platform.stop(end.attempt, end.reason, plan.stop_grace_s)
            except StopUnconfirmedError as error:
                raise ApplicationError(str(error), type="stop-unconfirmed") from error
    await release(services.registry, end.attempt)
    if known is not None:
        failure = end.failure.model_dump(mode="json") if end.failure is not None else None
        await services.registry.set_attempt(end.attempt, phase="ended", failure=failure)


def ending_of(attempt: StoredAttempt, reason: str) -> c.EndAttempt:
    """The request to end an attempt that no workflow owns any more."""
    return c.EndAttempt(
        attempt=attempt.name,
        generation=attempt.generation,
        role=attempt.role,
        replica=attempt.replica,
        host=None,
        reason=reason,
    )


async def take_out(services: Services, generation: str, replica: int, attempt: str) -> None:
    """Withdraw the attempt's endpoint from routing, unless a later attempt owns the backend already."""
    backend = await services.registry.get_backend(backend_id(generation, replica))
    if backend is not None and backend.attempt == attempt:
        await services.registry.set_backend(backend.id, "down", attempt=None, url=None, expect_attempt=attempt)


def _no_room(error: CapacityError) -> c.Failure:
    """Room that is taken is waited for; room that the empty host would not have either is a verdict."""
    if not error.never:
        return c.Failure(kind="capacity", code="no-room", message=error.message, help=error.help)
    memory, gpus = (kind in error.kinds for kind in ("memory", "gpu"))
    return c.Failure(
        kind="permanent",
        code="not-enough-memory" if memory else "not-enough-gpus" if gpus else "not-enough-ports",
        message=error.message,
        help=error.help,
    )
