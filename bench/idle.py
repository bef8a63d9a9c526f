"""What the control worker costs while 50 replicas stand and nothing happens.

    python bench/idle.py [--replicas 50] [--seconds 30]

Starts a whole stack in a temporary home and the scripted engine of the tests in so many replicas, waits until all
of them are ready, and reads the
worker's CPU time over a quiet span. Prints the share of one core, beside that of a worker that watches nothing.
Goal: under 5 % of a core.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from standfast.home import Home
from standfast.images.builder import build
from standfast.images.store import ImageStore
from standfast.registry import Registry
from standfast.spec import Scaling
from tests.scripted_engine import build_wheel, scripted_image
from tests.support.ports import free_port
from tests.support.scripted_deployments import scripted
from tests.support.stack import TestStack, until


async def share(pid: int, seconds: float) -> float:
    """The share of one core that a process used over a span."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    await asyncio.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / seconds


async def serves(stack: TestStack) -> bool:
    """Whether the control worker has finished its start."""
    return "serving" in stack.log("worker")


async def measure(root: Path, replicas: int, seconds: float) -> None:
    home = Home(root=root / "home")
    home.root.mkdir()
    recipe = scripted_image(build_wheel(root / "wheel"))
    await build(recipe, ImageStore(home.images), on_progress=lambda _: None)
    stack = TestStack(home=home, temporal_port=free_port(), gateway_port=free_port())
    stack.environment["STANDFAST_HOST_MEMORY"] = "1TiB"
    os.environ["TEMPORAL_ADDRESS"] = f"127.0.0.1:{stack.temporal_port}"
    try:
        async with await Registry.open(home.registry_url) as registry:
            await registry.create_api_key("bench")
        await stack.start_temporal()
        await stack.start_worker()
        worker = stack.processes["worker"].pid
        await until(lambda: serves(stack), within_s=60, what="the control worker")
        await asyncio.sleep(5)
        idle = await share(worker, seconds)
        print(f"control worker, nothing deployed: {idle:.2%} of a core", flush=True)
        many = scripted(
            root / "engines",
            home.root,
            recipe,
            "many",
            scaling=Scaling(min_replicas=replicas, max_replicas=replicas),
            behaviour={"lifetime_s": 3600},
        )
        async with stack.client() as client:
            await client.deploy(many.deployment)
        await asyncio.sleep(5)
        watching = await share(worker, seconds)
        print(
            f"control worker, {replicas} replicas watched: {watching:.2%} of a core "
            f"({watching - idle:+.2%} over one that watches nothing; goal under 5 %: "
            f"{'met' if watching < 0.05 else 'MISSED'})"
        )
    finally:
        await stack.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="standfast-idle-") as root:
        asyncio.run(measure(Path(root), arguments.replicas, arguments.seconds))


if __name__ == "__main__":
    main()
