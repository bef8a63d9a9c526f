"""How soon a killed engine process is seen: from kill -9 to the first 503 of the gateway.

    python bench/detection.py [--rounds 8]

Deploys the scripted engine of the tests with two child processes whose death its own health does not show, and
kills the engine and a child in turn.
Prints the median and the longest time for each, against the time that a client needs to see a refused connection.
Goal: within 2 s.
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from standfast.home import Home
from standfast.images.builder import build
from standfast.images.store import ImageStore
from standfast.platforms.local import LocalPlatform
from standfast.registry import Registry
from standfast.spec import RetryBudget
from tests.scripted_engine import build_wheel, scripted_image
from tests.support.ports import free_port
from tests.support.scripted_deployments import scripted
from tests.support.stack import TestStack, until

BODY = {"model": "m", "prompt": "hello", "max_tokens": 1}


async def measure(root: Path, rounds: int) -> None:
    """Kill, wait for the 503, wait for the return; over and over."""
    home = Home(root=root / "home")
    home.root.mkdir()
    recipe = scripted_image(build_wheel(root / "wheel"))
    await build(recipe, ImageStore(home.images), on_progress=lambda _: None)
    stack = TestStack(home=home, temporal_port=free_port(), gateway_port=free_port())
    os.environ["TEMPORAL_ADDRESS"] = f"127.0.0.1:{stack.temporal_port}"
    times: dict[str, list[float]] = {"the engine": [], "a child": []}
    try:
        async with await Registry.open(home.registry_url) as registry:
            _, stack.api_key = await registry.create_api_key("bench")
        await stack.start_temporal()
        await asyncio.gather(stack.start_worker(), stack.start_gateway())
        model = scripted(
            root / "engines",
            home.root,
            recipe,
            retry=RetryBudget(attempts=100, window="1h", initial_backoff="100ms", max_backoff="100ms"),
            behaviour={"children": 2, "on_child_death": "ignore"},
        )
        platform = LocalPlatform(home.attempts, host="bench")
        async with stack.client() as client, stack.http() as http:
            await client.deploy(model.deployment)
            registry = await client.registry()

            async def answers() -> bool:
                return (await http.post("/v1/completions", json=BODY)).status_code == httpx.codes.OK

            async def refuses() -> bool:
                return (await http.post("/v1/completions", json=BODY)).status_code == httpx.codes.SERVICE_UNAVAILABLE

            for number in range(2 * rounds):
                await until(answers, within_s=60, what="the model")
                attempt = next(found for found in await registry.list_attempts() if found.phase == "ready")
                victim = ("the engine", "a child")[number % 2]
                processes = (await platform.observe(attempt.name)).processes
                pid = next(p.pid for p in processes if (p.name == "vllm") == (victim == "the engine"))
                os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
                await until(refuses, within_s=20, every_s=0.01, what="the 503")
                times[victim].append(time.monotonic() - killed)
    finally:
        await stack.close()
    for victim, seconds in times.items():
        print(
            f"kill -9 of {victim} to 503: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s of "
            f"{len(seconds)} (goal 2 s: {'met' if max(seconds) <= 2 else 'MISSED'})"
        )


def main() -> None:
    """Measure in a temporary home."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    with tempfile.TemporaryDirectory(prefix="standfast-detection-") as root:
        asyncio.run(measure(Path(root), parser.parse_args().rounds))


if __name__ == "__main__":
    main()
