"""Deploy to first token, against a bare ``vllm serve`` to its first token, in one run with a warm image and weights.

    python bench/deploy.py [--rounds 3] [--home DIR]

A home that already holds the image and the weights of ``configs/quickstart.py`` saves their preparation. The bare
command is the one that the
deploy itself ran, with the same environment. Prints both times of each round, and the ratio of the medians. Goal:
at most 1.05 times plus 2 s.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from standfast import catalog
from standfast.client import Client
from standfast.contracts import DeployStatus
from standfast.home import Home
from standfast.spec import Deployment
from standfast.stack.record import read_api_key, read_record

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.py"
STANDFAST = Path(sys.executable).parent / "standfast"


async def first_token(http: httpx.AsyncClient, url: str, model: str) -> None:
    """Return once a token came out."""
    body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    while True:
        try:
            if (await http.post(f"{url}/v1/completions", json=body)).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        await asyncio.sleep(0.05)


async def bare(home: Home, attempt: str) -> float:
    """Run what an attempt ran, without Standfast, until its first token; seconds."""
    bound = json.loads((home.attempts / attempt.replace("/", "%") / "bound.json").read_text())
    rank: dict[str, Any] = bound["ranks"]["0"]
    argv: list[str] = list(rank["argv"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    argv[argv.index("--port") + 1] = port
    model = argv[argv.index("--served-model-name") + 1]
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**environment, **rank["environment"]},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with httpx.AsyncClient(timeout=120, trust_env=False) as http:
            await first_token(http, f"http://127.0.0.1:{port}", model)
        return time.monotonic() - started
    finally:
        os.killpg(process.pid, 15)
        await process.wait()


async def deployed(client: Client, home: Home, deployment: Deployment) -> tuple[float, str]:
    """Deploy until the gateway's first token: seconds, and how long each step of the deploy took."""
    record, key = read_record(home), read_api_key(home)
    assert record is not None and key is not None
    started = time.monotonic()
    seen: list[DeployStatus] = []
    deploying = asyncio.create_task(client.deploy(deployment, on_progress=seen.append))
    async with httpx.AsyncClient(timeout=120, trust_env=False, headers={"Authorization": f"Bearer {key}"}) as http:
        await first_token(http, record.gateway, deployment.resolved_served_name)
    took = time.monotonic() - started
    await deploying
    steps = (
        f"{step.name} {step.ended_at - step.started_at:.1f}"
        for step in seen[-1].steps
        if step.started_at is not None and step.ended_at is not None
    )
    return took, ", ".join(steps)


async def run(home: Home, rounds: int) -> None:
    [base] = catalog.load(CONFIG)
    async with Client.connect(home) as client:
        print("warming up: image, weights, page cache", flush=True)
        await deployed(client, home, base)
        registry = await client.registry()
        attempt = max(await registry.list_attempts(deployment=base.name), key=lambda found: found.started_at).name
        await client.deprecate(base.name, reason="bench")
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(rounds):
            theirs.append(await bare(home, attempt))
            took, steps = await deployed(client, home, dataclasses.replace(base, description=f"round {number}"))
            ours.append(took)
            await client.deprecate(base.name, reason="bench")
            print(f"round {number}: bare {theirs[-1]:.1f} s, deploy {took:.1f} s (steps: {steps})", flush=True)
    mine, baseline = statistics.median(ours), statistics.median(theirs)
    goal = 1.05 * baseline + 2
    print(
        f"deploy to first token / bare vllm serve to first token: {mine / baseline:.3f}x "
        f"({mine:.1f} s / {baseline:.1f} s; goal at most 1.05x + 2 s = {goal:.1f} s: "
        f"{'met' if mine <= goal else 'MISSED'})"
    )


def main() -> None:
    """Start a stack over the home, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache" / "standfast-bench")
    arguments = parser.parse_args()
    home = Home(root=arguments.home.absolute())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["STANDFAST_HOME"] = str(home.root)
    subprocess.run([STANDFAST, "up", "--detach"], env=environment, check=True)
    try:
        asyncio.run(run(home, arguments.rounds))
    finally:
        subprocess.run([STANDFAST, "down"], env=environment, check=False)


if __name__ == "__main__":
    main()
