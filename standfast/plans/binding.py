"""`bind`: a plan and the facts of the machines it runs on become concrete processes."""

from collections.abc import Iterator, Mapping

from standfast.plans.facts import BindFacts, BoundRank, BoundReplica, RankFacts
from standfast.plans.record import digest_of
from standfast.plans.records import PLACEHOLDER, RankPlan, RolePlan
from standfast.problems import Problem, ProblemsError

_LAST_PORT = 65535
_EXECUTABLE = "@{executable}"


def bind(plan: RolePlan, replica: int, facts: BindFacts) -> BoundReplica:
    """Fill in every placeholder of one replica. Pure; the result has its own digest.

    Raises `ProblemsError` when the facts do not fit the plan: a rank missing or too many, other GPUs than claimed,
    ports or GPUs that two ranks of one host would share.
    """
    if not 0 <= replica < len(plan.replicas):
        message = f"The plan has {len(plan.replicas)} replicas, and replica {replica} was asked for."
        raise ProblemsError((Problem(code="no-such-replica", where="replica", message=message),))
    problems = tuple(_misfits(plan.ranks, facts))
    if problems:
        raise ProblemsError(problems)
    placed = sorted(facts.ranks, key=lambda place: place.rank)
    of_the_head = _values(plan.head, placed[0], "head_")
    bound = tuple(_bind_rank(rank, place, facts, of_the_head) for rank, place in zip(plan.ranks, placed, strict=True))
    digest = digest_of({"attempt": facts.attempt, "plan": plan.hash, "ranks": [vars(rank) for rank in bound]})
    return BoundReplica(attempt=facts.attempt, ranks=bound, digest=digest)


def _values(rank: RankPlan, place: RankFacts, prefix: str = "") -> dict[str, str]:
    """What a rank's place fills in, under names that begin with ``prefix``."""
    return {
        f"{prefix}address": place.address,
        f"{prefix}host": place.host,
        **{f"{prefix}{name}_port": str(place.port_base + offset) for name, offset in rank.claim.ports.offsets},
    }


def _bind_rank(rank: RankPlan, place: RankFacts, facts: BindFacts, of_the_head: Mapping[str, str]) -> BoundRank:
    values = {
        "attempt": facts.attempt,
        "model_path": facts.model_path,
        "gpu_ids": ",".join(place.gpu_ids),
        **of_the_head,
        **_values(rank, place),
    }

    def fill(text: str) -> str:
        # Most placeholders are a whole token, which needs no search.
        whole = values.get(text[2:-1]) if text[0] == "@" and text[-1] == "}" else None
        return whole if whole is not None else PLACEHOLDER.sub(lambda match: values[match[1]], text)

    # Lists and not generators: this runs for each rank of each replica.
    argv = [fill(token) if "@{" in token and token != _EXECUTABLE else token for token in rank.argv]
    if _EXECUTABLE in argv:
        argv = [part for token in argv for part in (facts.executable if token == _EXECUTABLE else (token,))]
    environment = [
        (binding.name, fill(value) if "@{" in value else value)
        for binding in rank.environment
        if (value := binding.value) is not None
    ]
    # The parts come out of records that were validated; whether anything was left to fill in, `BoundReplica` looks.
    return BoundRank.model_construct(
        rank=rank.rank,
        argv=tuple(argv),
        environment=tuple(environment),
        secrets=tuple([(binding.name, binding.secret) for binding in rank.environment if binding.secret is not None]),
        ports=tuple([(name, place.port_base + offset) for name, offset in rank.claim.ports.offsets]),
    )


def _misfits(ranks: tuple[RankPlan, ...], facts: BindFacts) -> Iterator[Problem]:
    given = sorted(place.rank for place in facts.ranks)
    if given != list(range(len(ranks))):
        yield _problem(
            "rank-mismatch", "ranks", f"The plan has ranks 0 to {len(ranks) - 1}, and facts came for {given}."
        )
        return
    if not facts.executable:
        yield _problem("no-executable", "executable", "The command of the engine is empty.")
    taken: dict[str, list[RankFacts]] = {}
    for place in sorted(facts.ranks, key=lambda place: place.rank):
        claim = ranks[place.rank].claim
        where = f"ranks[{place.rank}]"
        if len(place.gpu_ids) != claim.gpus:
            yield _problem(
                "gpu-mismatch",
                f"{where}.gpu_ids",
                f"The rank claims {claim.gpus} GPUs and was given {len(place.gpu_ids)}.",
            )
        if place.port_base + claim.ports.count - 1 > _LAST_PORT:
            yield _problem(
                "port-range",
                f"{where}.port_base",
                f"{claim.ports.count} ports from {place.port_base} on pass {_LAST_PORT}.",
            )
        for other in taken.setdefault(place.host, []):
            if set(other.gpu_ids) & set(place.gpu_ids):
                yield _problem(
                    "gpu-clash", f"{where}.gpu_ids", f"Rank {other.rank} holds one of these GPUs on {place.host}."
                )
            span = ranks[other.rank].claim.ports.count
            if other.port_base < place.port_base + claim.ports.count and place.port_base < other.port_base + span:
                yield _problem(
                    "port-clash", f"{where}.port_base", f"Rank {other.rank} holds some of these ports on {place.host}."
                )
        taken[place.host].append(place)


def _problem(code: str, field: str, message: str) -> Problem:
    return Problem(code=code, where=f"BindFacts.{field}", message=message)
