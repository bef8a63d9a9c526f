"""How long it takes to resolve, bind and show a plan. Prints one line per measure.

    python bench/plans.py [--replicas 100]

Goal: 100 replicas resolved and shown in under 200 ms.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_LONG_LIST = 320


def main() -> None:
    """Measure and print; ``--json`` prints one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(arguments.replicas, arguments.rounds)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, milliseconds in figures.items():
        print(f"{name:<40}{milliseconds:>10.1f}")


def measure(replicas: list[int], rounds: int) -> dict[str, float]:
    """Median milliseconds of each step, after one round to warm up."""
    started = time.perf_counter()
    from standfast.plans import bind, plan_lines, resolve
    from standfast.plans.facts import BindFacts, RankFacts
    from standfast.plans.records import Generation, Inspection, OptionSpec, PinnedModel, ResolutionInputs, RolePlan
    from standfast.spec import Compute, Deployment, Inference, Model, Scaling

    figures = {"import (ms)": (time.perf_counter() - started) * 1000}
    flags = ("host", "port", "served-model-name", "tensor-parallel-size", "max-model-len", "max-num-seqs")
    names = [*flags, *(f"setting-{number}" for number in range(_LONG_LIST - len(flags)))]
    options = tuple(
        OptionSpec(dest=name.replace("-", "_"), flags=(f"--{name}",), minimum=1, maximum=None) for name in names
    )
    inspection = Inspection(
        image_digest="0" * 64,
        engine="vllm",
        version="0",
        executable=("vllm", "serve"),
        inspector="bench",
        options=(OptionSpec(dest="model_tag", flags=(), minimum=0, maximum=1), *options),
    )
    model = PinnedModel(id="a/b", source="hub", locator="a/b", revision="0" * 40)
    inputs = ResolutionInputs(target="local", model=model, image_name="bench", inspection=inspection)

    def milliseconds(step: Callable[[], object]) -> float:
        step()
        taken = []
        for _ in range(rounds):
            before = time.perf_counter()
            step()
            taken.append((time.perf_counter() - before) * 1000)
        return statistics.median(taken)

    for count in replicas:
        deployment = Deployment(
            name="bench",
            model=Model(id="a/b"),
            inference=Inference(
                engine="vllm",
                compute=Compute(gpu="any", gpus=8),
                scaling=Scaling(min_replicas=count, max_replicas=count),
                context_length=32768,
                options={"max-num-seqs": 64},
            ),
        )
        generation = resolve(deployment, inputs)
        role = generation.inference
        assert role is not None
        facts = BindFacts(
            attempt="bench",
            model_path="/weights",
            executable=("vllm", "serve"),
            ranks=(RankFacts(rank=0, host="h", address="127.0.0.1", port_base=20000, gpu_ids=tuple("01234567")),),
        )
        text = generation.model_dump_json()

        def resolve_and_show(deployment: Deployment = deployment) -> object:
            return plan_lines(resolve(deployment, inputs))

        def bind_all(role: RolePlan = role, facts: BindFacts = facts) -> object:
            return [bind(role, replica, facts) for replica in range(len(role.replicas))]

        def read(text: str = text) -> object:
            return Generation.model_validate_json(text)

        figures[f"resolve and plan, {count} replicas (ms)"] = milliseconds(resolve_and_show)
        figures[f"bind, {count} replicas (ms)"] = milliseconds(bind_all)
        figures[f"read from JSON, {count} replicas (ms)"] = milliseconds(read)
    figures["peak memory (MB)"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return figures


if __name__ == "__main__":
    main()
