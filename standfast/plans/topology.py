"""How a replica divides its model: the sizes that a config leaves open, and the combinations that cannot work."""

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


def divide(inference: Inference) -> Division:
    """Fill in the sizes of a role: tensor parallelism over the GPUs of a node, pipeline parallelism over the nodes.

    Without GPUs the workers are processes on the CPU, one unless the config asks for more.
    """
    compute, asked = inference.compute, inference.parallelism
    data, expert = asked.data or 1, asked.expert or 1
    pipeline = asked.pipeline or compute.nodes
    gpus = compute.gpus * compute.nodes
    tensor = asked.tensor
    if tensor is None:
        tensor = max(1, gpus // (pipeline * data))
    workers = tensor * pipeline * data
    problem = _misfit(inference, tensor, pipeline, data, workers)
    if problem is not None:
        return Division(None, (problem,))
    if expert > 1 and (tensor * data) % expert:
        message = f"expert={expert} does not divide the {tensor * data} workers of a pipeline stage."
        return Division(
            None, (_problem("expert-misfit", "parallelism.expert", message, "Choose a divisor of tensor * data."),)
        )
    topology = Topology(nodes=compute.nodes, tensor=tensor, pipeline=pipeline, data=data, expert=expert)
    return Division(topology)


def no_room(inference: Inference, topology: Topology, placement: Placement) -> Iterator[Problem]:
    """Why the nodes that there are cannot hold the replicas."""
    compute, replicas = inference.compute, inference.scaling.min_replicas
    lanes = placement.lanes(compute.gpus)
    if lanes == 0:
        message = f"A replica takes {compute.gpus} GPUs of each of its nodes, and a node has {placement.gpus_per_node}."
        help = f"Set Compute(gpus={placement.gpus_per_node}) or less, and more nodes."
        yield _problem("no-room", "compute.gpus", message, help, str(compute.gpus))
        return
    needed = -(-replicas // lanes) * topology.nodes
    if placement.nodes is not None and needed > placement.nodes:
        fit = placement.nodes // topology.nodes * lanes
        shared = f", {lanes} to each of their nodes" if lanes > 1 else ""
        taken = f"{replicas} replicas of {topology.nodes} nodes{shared} take {needed} nodes"
        message = f"{taken}, and {placement.nodes} are there."
        help = (
            f"Set Scaling(min_replicas={fit}, max_replicas={fit}), or choose a target with more nodes."
            if fit
            else f"Set Compute(nodes={placement.nodes}) or less, or choose a target with more nodes."
        )
        field, value = ("scaling.min_replicas", replicas) if fit else ("compute.nodes", topology.nodes)
        yield _problem("no-room", field, message, help, str(value))


def _misfit(inference: Inference, tensor: int, pipeline: int, data: int, workers: int) -> Problem | None:
    compute = inference.compute
    shape = " * ".join(
        f"{name}={size}"
        for name, size in (("tensor", tensor), ("pipeline", pipeline), ("data", data))
        if name == "tensor" or size > 1
    )
    if compute.gpus:
        gpus = compute.gpus * compute.nodes
        if workers != gpus:
            held = f"Compute gives a replica {gpus} GPU{'s' if gpus != 1 else ''}"
            if workers % compute.nodes:
                help = "Make the product equal to the GPUs of a replica."
            else:
                help = f"Set Compute(gpus={workers // compute.nodes}), or sizes whose product is {gpus}."
            return _problem("topology-misfit", "parallelism", f"{shape} needs {workers} GPUs, and {held}.", help)
    elif workers % compute.nodes:
        message = f"{shape} makes {workers} workers, which do not divide over {compute.nodes} nodes."
        return _problem("topology-misfit", "parallelism", message, "Make the product a multiple of the nodes.")
    elif workers // compute.nodes > compute.cpus:
        message = (
            f"{shape} runs {workers // compute.nodes} workers on a node, and Compute gives it {compute.cpus} CPUs."
        )
        return _problem(
            "topology-misfit", "parallelism", message, f"Set Compute(cpus={workers // compute.nodes}) or more."
        )
    return None


def _problem(code: str, field: str, message: str, help: str, value: str | None = None) -> Problem:
    return Problem(code=code, where=f"{_WHERE}.{field}", message=message, help=help, value=value)
