"""What completes a plan, and what it becomes: the facts of the platform, and the processes that are bound to them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from standfast.plans.record import Digest, NonNegative, Record
from standfast.plans.records import PLACEHOLDER


class RankFacts(Record):
    """What only the running platform knows about one rank."""

    rank: NonNegative
    host: str
    address: str
    port_base: Annotated[int, Field(ge=1, le=65535)]
    gpu_ids: tuple[str, ...]

    @model_validator(mode="after")
    def _gpus_differ(self) -> Self:
        if len(set(self.gpu_ids)) != len(self.gpu_ids):
            raise ValueError(f"rank {self.rank} was given a GPU twice")
        return self


class BindFacts(Record):
    """The facts that complete a plan: where the weights and the executable are, and where each rank runs."""

    schema_version: Literal[1] = 1
    attempt: str
    model_path: str
    executable: tuple[str, ...]
    ranks: tuple[RankFacts, ...]


class BoundRank(Record):
    """A rank ready to start: no placeholder is left. Secrets are still names."""

    rank: NonNegative
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    secrets: tuple[tuple[str, str], ...]
    """Pairs of variable name and secret name."""
    ports: tuple[tuple[str, int], ...]

    @model_validator(mode="after")
    def _nothing_is_left_to_fill_in(self) -> Self:
        # One text for all: this runs for each rank of each replica.
        texts = "\n".join([*self.argv, *[value for _, value in self.environment]])
        if "@{" in texts and (left := PLACEHOLDER.search(texts)) is not None:
            raise ValueError(f"the placeholder {left.group()} was left")
        return self


class BoundReplica(Record):
    """A replica's concrete processes, with their own digest."""

    schema_version: Literal[1] = 1
    attempt: str
    ranks: Annotated[tuple[BoundRank, ...], Field(min_length=1)]
    digest: Digest

    @model_validator(mode="after")
    def _ranks_are_contiguous(self) -> Self:
        if [rank.rank for rank in self.ranks] != list(range(len(self.ranks))):
            raise ValueError("ranks must be 0, 1, 2, ... in order")
        return self
