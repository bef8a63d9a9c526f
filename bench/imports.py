"""What importing costs: processor time of fresh interpreters, as ratios to importing pydantic.

Run ``python bench/imports.py``. The variants are interleaved and the least time of each counts, since whatever else
runs on the machine can only add to it. The goal: ``import standfast`` at most 1.5 times ``import pydantic``.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile

GOAL = 1.5
EMPTY = "nothing"
PYDANTIC = "import pydantic"
VARIANTS = {
    EMPTY: "pass",
    PYDANTIC: "import pydantic; pydantic.BaseModel",
    "import standfast": "import standfast",
    "the configuration language": "from standfast import Deployment",
    "one pydantic dataclass": (
        "from pydantic.dataclasses import dataclass\n@dataclass(frozen=True)\nclass A:\n    x: int\nA(x=1)"
    ),
    "one deployment": (
        "from standfast import Deployment, Inference, Model\n"
        "Deployment(name='a', model=Model(id='m'), inference=Inference(engine='vllm'))"
    ),
}


def cost(code: str, environment: dict[str, str]) -> float:
    """Processor seconds of one fresh interpreter that runs ``code``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int) -> dict[str, float]:
    """The least cost of each variant above that of an empty interpreter, in seconds; compiled modules are kept."""
    with tempfile.TemporaryDirectory() as cache:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = {**kept, "PYTHONPYCACHEPREFIX": cache}
        for code in VARIANTS.values():
            cost(code, environment)
        least = dict.fromkeys(VARIANTS, float("inf"))
        for _ in range(rounds):
            for name, code in VARIANTS.items():
                least[name] = min(least[name], cost(code, environment))
    return {name: seconds - least[EMPTY] for name, seconds in least.items() if name != EMPTY}


def main() -> int:
    """Measure, print, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    costs = measure(parser.parse_args().rounds)
    print(f"{'':28}{'CPU ms':>8}{'ratio':>8}")
    for name, seconds in costs.items():
        print(f"{name:28}{seconds * 1000:8.0f}{seconds / costs[PYDANTIC]:8.2f}")
    ratio = costs["import standfast"] / costs[PYDANTIC]
    print(f"import standfast / import pydantic = {ratio:.2f} (goal: at most {GOAL})")
    return 0 if ratio <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
