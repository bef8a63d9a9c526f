"""How a replica divides its model: the sizes that a config leaves open, and the combinations that cannot work.

What is here holds for any engine; `standfast.plans.engines.Engine.topology_problems` adds an engine's own rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from standfast.plans.records import Placement, Topology
from standfast.problems import Problem
from standfast.spec import Inference

_WHERE = "Deployment.inference"


@dataclass(frozen=True, slots=True)
class Division:
    """A topology, or the problems that leave none."""

    topology: Topology | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a role with the open ones filled in. They need not fit its compute.

    Tensor parallelism takes the GPUs of a node, data parallelism what it is told, and pipeline parallelism the nodes:
    those that one data-parallel copy has to itself. Without GPUs the workers are processes on the CPU, one for each
    unit of the other sizes.
    """

    tensor: int
    pipeline: int
    data: int
    expert: int

    @classmethod
    def of(cls, inference: Inference) -> "Sizes":
        """The sizes that a role asks for or leaves open."""
        compute, asked = inference.compute, inference.parallelism
        data = asked.data or 1
        pipeline = asked.pipeline or (compute.nodes // data if compute.nodes % data == 0 else 1)
        tensor = asked.tensor or max(1, compute.gpus * compute.nodes // (pipeline * data))
        return cls(tensor=tensor, pipeline=pipeline, data=data, expert=asked.expert or 1)

    @property
    def workers(self) -> int:
        """The workers of a replica."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        sizes = (("tensor", self.tensor), ("pipeline", self.pipeline), ("data", self.data))
        return " * ".join(f"{name}={size}" for name, size in sizes if name == "tensor" or size > 1)


def divide(inference: Inference) -> Division:
    """Fill in the sizes of a role, and hold them against its compute and each other."""
    sizes = Sizes.of(inference)
    problems = (*_misfits(inference, sizes), *_clashes(inference, sizes))
    if problems:
        return Division(None, problems)
    topology = Topology(
        nodes=inference.compute.nodes,
        tensor=sizes.tensor,
        pipeline=sizes.pipeline,
        data=sizes.data,
        expert=sizes.expert,
        data_parallel_attention=inference.parallelism.data_parallel_attention,
    )
    return Division(topology)


def no_room(inference: Inference, topology: Topology, placement: Placement) -> Iterator[Problem]:
    """Why the nodes that there are cannot hold the replicas."""
    compute, replicas = inference.compute, inference.scaling.min_replicas
    lanes = placement.lanes(compute.gpus)
    if lanes == 0:
        yield _problem(
            "no-room",
            "compute.gpus",
            f"A replica takes {_count(compute.gpus, 'GPU')} of each of its nodes, and a node has "
            f"{placement.gpus_per_node}.",
            f"Set Compute(gpus={placement.gpus_per_node}) or less, and more nodes.",
            value=compute.gpus,
            limit=placement.gpus_per_node,
        )
        return
    room, span = placement.nodes, topology.nodes
    needed = -(-replicas // lanes) * span
    if room is None or needed <= room:
        return
    if room < span:
        yield _problem(
            "no-room",
            "compute.nodes",
            f"A replica spans {span} nodes, and {_count(room, 'node')} {_are(room)} there.",
            f"Set Compute(nodes={room}) or less, or choose a target with more nodes.",
            value=span,
            limit=room,
        )
        return
    fit = room // span * lanes
    shared = f", {lanes} to a node group" if lanes > 1 else ""
    yield _problem(
        "no-room",
        "scaling.min_replicas",
        f"{_count(replicas, 'replica')} of {_count(span, 'node')}{shared} take {needed} nodes, and "
        f"{room} {_are(room)} there.",
        f"Set Scaling(min_replicas={fit}, max_replicas={fit}) or less, or choose a target with more nodes.",
        value=replicas,
        limit=fit,
    )


def _misfits(inference: Inference, sizes: Sizes) -> Iterator[Problem]:
    """Sizes whose product is not what the compute has."""
    compute, workers = inference.compute, sizes.workers
    if compute.gpus:
        gpus = compute.gpus * compute.nodes
        if workers != gpus:
            yield _problem(
                "topology-misfit",
                "parallelism",
                f"{sizes} needs {_count(workers, 'GPU')}, and Compute gives a replica {_count(gpus, 'GPU')}.",
                _other_sizes(inference, sizes, gpus),
                value=sizes,
                limit=_count(gpus, "GPU"),
            )
    elif workers % compute.nodes:
        yield _problem(
            "topology-misfit",
            "parallelism",
            f"{sizes} makes {_count(workers, 'worker')}, which do not divide over {compute.nodes} nodes.",
            "Make the product a multiple of the nodes.",
            value=sizes,
            limit=f"a multiple of {compute.nodes}",
        )
    elif workers // compute.nodes > compute.cpus:
        per_node = workers // compute.nodes
        yield _problem(
            "topology-misfit",
            "parallelism",
            f"{sizes} runs {_count(per_node, 'worker')} on a node, and Compute gives it {_count(compute.cpus, 'CPU')}.",
            f"Set Compute(cpus={per_node}) or more.",
            value=sizes,
            limit=f"{compute.cpus} on a node",
        )


def _clashes(inference: Inference, sizes: Sizes) -> Iterator[Problem]:
    """Sizes that do not go together."""
    stage = sizes.tensor * sizes.data
    if stage % sizes.expert:
        yield _problem(
            "expert-misfit",
            "parallelism.expert",
            f"expert={sizes.expert} does not divide the {_count(stage, 'worker')} of a pipeline stage (tensor * data).",
            f"Set Parallelism(expert={_divisor(stage, sizes.expert)}), or another divisor of tensor * data.",
            value=sizes.expert,
            limit=f"a divisor of {stage}",
        )
    if inference.parallelism.data_parallel_attention and sizes.data == 1:
        yield _problem(
            "attention-misfit",
            "parallelism.data_parallel_attention",
            "data_parallel_attention divides requests over the data-parallel groups, and data=1 leaves one group.",
            "Set Parallelism(data=...) to 2 or more, or leave data_parallel_attention out.",
            value="True",
            limit="data of 2 or more",
        )


def _other_sizes(inference: Inference, sizes: Sizes, gpus: int) -> str:
    """What would fit: the compute for these sizes, or sizes for this compute."""
    compute, asked = inference.compute, inference.parallelism
    model = sizes.tensor * sizes.data
    if asked.pipeline is None and compute.nodes > 1 and gpus % model == 0:
        return f"Set Parallelism(pipeline={gpus // model}): left out, it takes the nodes."
    if sizes.workers % compute.nodes:
        return "Make the product equal to the GPUs of a replica."
    return f"Set Compute(gpus={sizes.workers // compute.nodes}), or sizes whose product is {gpus}."


def _divisor(number: int, most: int) -> int:
    """A large divisor of ``number`` that is below ``most``; the search ends early for absurd sizes."""
    return max(size for size in range(1, min(most, number + 1, 4096)) if number % size == 0)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _problem(code: str, field: str, message: str, help: str, *, value: object, limit: object) -> Problem:
    where = f"{_WHERE}.{field}"
    return Problem(code=code, where=where, message=message, help=help, value=str(value), limit=str(limit))
