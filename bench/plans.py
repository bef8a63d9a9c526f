"""How long it takes to resolve, bind, show and read plans, how much memory it takes, and how long ``plan`` takes.

Run ``python bench/plans.py``. Ratios are to a baseline that any planner must pay: writing the same commands, variables
and ports down as JSON text with the standard library. Every figure is processor time, the least of the rounds, since
what else runs on the machine can only add to it; each size is measured in a process of its own, whose peak memory it
is.

Goals: 1,000 replicas of 16 nodes resolved and bound in under 2 s and under 500 MB; ``standfast plan`` of the largest
config file in ``configs/`` in under 300 ms after its modules are loaded.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

GOAL_S, GOAL_MB, PLAN_GOAL_S = 2.0, 500.0, 0.3
SIZES = ((1, 1), (100, 1), (100, 16), (1000, 16))
BASELINE = "write it as JSON"
LONG_LIST = 320
"""Options of an engine, as many as a real one has."""


def main() -> int:
    """Measure, print, and say whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--size", help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.size:
        replicas, nodes = map(int, given.size.split("x"))
        print(json.dumps(measure(replicas, nodes, given.rounds)))
        return 0
    if given.plan:
        print(json.dumps(measure_plan(given.plan)))
        return 0
    sizes = {size: _child("--size", f"{size[0]}x{size[1]}", "--rounds", str(given.rounds)) for size in SIZES}
    config = largest_config()
    runs = [_child("--plan", str(config)) for _ in range(given.rounds)]
    plan = {name: min(run[name] for run in runs) for name in runs[0]}
    if given.json:
        print(json.dumps({"sizes": {f"{a}x{b}": figures for (a, b), figures in sizes.items()}, "plan": plan}))
    else:
        _print(sizes, config, plan)
    largest = sizes[SIZES[-1]]
    took = largest["resolve"] + largest["bind"]
    met = took < GOAL_S and largest["peak MB"] < GOAL_MB and plan["planned"] < PLAN_GOAL_S
    if not given.json:
        print(f"1,000 replicas of 16 nodes: {took:.2f} s (goal {GOAL_S:g}), {largest['peak MB']:.0f} MB ({GOAL_MB:g})")
        print(f"plan {config.relative_to(ROOT)}: {plan['planned'] * 1000:.0f} ms (goal {PLAN_GOAL_S * 1000:g})")
    return 0 if met else 1


def _print(sizes: dict[tuple[int, int], dict[str, float]], config: Path, plan: dict[str, float]) -> None:
    print(f"{'replicas x nodes':34}" + "".join(f"{f'{replicas} x {nodes}':>20}" for replicas, nodes in sizes))
    steps = [name for name in sizes[SIZES[0]] if name != "peak MB"]
    for step in steps:
        cells = [
            f"{figures[step] * 1000:10.2f} ms {figures[step] / figures[BASELINE]:5.2f} x" for figures in sizes.values()
        ]
        print(f"{step:34}" + "".join(f"{cell:>20}" for cell in cells))
    print(f"{'peak MB':34}" + "".join(f"{figures['peak MB']:>20.0f}" for figures in sizes.values()))
    print(f"standfast plan {config.relative_to(ROOT)}: " + ", ".join(f"{k} {v * 1000:.0f} ms" for k, v in plan.items()))


def _child(*arguments: str) -> dict[str, float]:
    """What a fresh process of this script measures."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


# -- resolve and bind --------------------------------------------------------------------------------------------------


def _inspection() -> Any:
    from standfast.plans.inspection import Inspection, OptionSpec

    flags = (
        *("host", "port", "served-model-name", "tensor-parallel-size", "pipeline-parallel-size", "nnodes", "node-rank"),
        *("master-addr", "master-port", "distributed-executor-backend", "distributed-timeout-seconds", "headless"),
        *("max-model-len", "max-num-seqs", "gpu-memory-utilization"),
    )
    names = [*flags, *(f"setting-{number}" for number in range(LONG_LIST - len(flags)))]
    return Inspection(
        image_digest="0" * 64,
        engine="vllm",
        version="0",
        executable=("vllm", "serve"),
        inspector="bench",
        options=(
            OptionSpec(dest="model_tag", flags=(), minimum=0, maximum=1),
            *(OptionSpec(dest=name.replace("-", "_"), flags=(f"--{name}",), minimum=0, maximum=None) for name in names),
        ),
    )


def measure(replicas: int, nodes: int, rounds: int) -> dict[str, float]:
    """Processor seconds of each step, and the peak memory of this process in MB."""
    from standfast.plans import bind, plan_lines, resolve
    from standfast.plans.facts import BindFacts, RankFacts
    from standfast.plans.records import Generation, PinnedModel, ResolutionInputs
    from standfast.spec import Compute, Deployment, Inference, Model, Scaling

    inputs = ResolutionInputs(
        target="local",
        model=PinnedModel(id="a/b", source="hub", locator="a/b", revision="0" * 40),
        image_name="bench",
        inspection=_inspection(),
    )
    deployment = Deployment(
        name="bench",
        model=Model(id="a/b"),
        inference=Inference(
            engine="vllm",
            compute=Compute(gpu="any", gpus=8, nodes=nodes, cpus=64, memory="1TiB"),
            scaling=Scaling(min_replicas=replicas, max_replicas=replicas),
            context_length=32768,
            options={"max-num-seqs": 64, "gpu-memory-utilization": 0.9},
            environment={"NCCL_DEBUG": "WARN"},
        ),
    )

    def least(step: Callable[[], Any]) -> tuple[float, Any]:
        taken = []
        for _ in range(rounds):
            result = None
            before = time.process_time()
            result = step()
            taken.append(time.process_time() - before)
        return min(taken), result

    resolved, generation = least(lambda: resolve(deployment, inputs))
    role = generation.inference
    gpus = tuple("01234567")
    facts = [
        BindFacts(
            attempt=f"bench@0/inference/{replica}/1",
            model_path="/weights",
            executable=("vllm", "serve"),
            ranks=tuple(
                RankFacts(
                    rank=rank,
                    host=f"node-{replica * nodes + rank}",
                    address=f"10.{replica // 256}.{replica % 256}.{rank}",
                    port_base=20000,
                    gpu_ids=gpus,
                )
                for rank in range(nodes)
            ),
        )
        for replica in range(replicas)
    ]
    bound_in, bound = least(lambda: [bind(role, replica, facts[replica]) for replica in range(replicas)])
    plain = [[dict(rank) for rank in replica.ranks] for replica in bound]
    text = generation.model_dump_json()
    figures = {
        "resolve": resolved,
        "bind": bound_in,
        BASELINE: least(lambda: [json.dumps(ranks) for ranks in plain])[0],
        "show (plan_lines)": least(lambda: plan_lines(generation))[0],
        "store as JSON": least(generation.model_dump_json)[0],
        "read from JSON": least(lambda: Generation.model_validate_json(text))[0],
    }
    return {**figures, "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


# -- the command -------------------------------------------------------------------------------------------------------


def largest_config() -> Path:
    """The config file with the most text."""
    return max((ROOT / "configs").rglob("[!_]*.py"), key=lambda path: path.stat().st_size)


def measure_plan(config: Path) -> dict[str, float]:
    """``standfast plan FILE --json`` in this fresh process: loading the command's modules, and the rest.

    The home is empty, so that images count as not built; what is refused is refused with every problem.
    """
    with tempfile.TemporaryDirectory() as home:
        os.environ["STANDFAST_HOME"] = home
        before = time.process_time()
        import standfast.cli.plan as command
        from standfast.problems import ProblemsError

        loaded = time.process_time()
        out, sys.stdout = sys.stdout, sys.stderr
        try:
            command.plan(file=config, names=(), target="local", as_json=True)
        except ProblemsError as error:
            str(error)
        finally:
            sys.stdout = out
        return {"modules loaded": loaded - before, "planned": time.process_time() - loaded}


if __name__ == "__main__":
    sys.exit(main())
