"""Keeps the parts of the embedded stack up, and tells where they answer."""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from standfast.application import require_own_packages
from standfast.client.connection import TemporalEndpoint, UnreachableError, external_temporal, temporal_endpoint
from standfast.home import Home
from standfast.problems import UserError
from standfast.stack.child import Child, ChildFailedError, ChildSpec, log_tail
from standfast.stack.keys import ensure_api_key
from standfast.stack.parts import (
    LOOPBACK,
    TemporalWatch,
    gateway_part,
    part_environment,
    reachable,
    temporal_part,
    worker_part,
)
from standfast.stack.ports import choose_port
from standfast.stack.processes import ProcessRef, end, reference
from standfast.stack.record import StackLock, StackRecord, TemporalRecord, read_record, running_stack, write_record

DEFAULT_PORTS = {"temporal": 7233, "ui": 8233, "gateway": 8080}
STALE_GRACE_S = 25.0
"""How long parts of a killed supervisor may take to end by themselves before they are killed."""
LOW_DISK_BYTES = 5 * 2**30


@dataclass(frozen=True, kw_only=True)
class StackSettings:
    """What ``standfast up`` was asked for.

    A port of None takes the default or the next free one; 0 takes any free one.
    """

    home: Home
    temporal_port: int | None = None
    ui_port: int | None = None
    gateway_port: int | None = None
    gateway_host: str = LOOPBACK


class StackRunningError(UserError):
    """Another supervisor holds this home."""

    def __init__(self, home: Home, record: StackRecord | None) -> None:
        where = f"; its gateway is {record.gateway}" if record is not None else ""
        super().__init__(
            f"the stack of {home.root} is already running{where}.", help="`standfast down` stops it.", exit_code=1
        )
        self.record = record


class StackFailedError(UserError):
    """A part did not come up; ``tail`` is the end of its log."""

    def __init__(self, message: str, *, tail: tuple[str, ...], help: str, exit_code: int = 1) -> None:
        super().__init__(message, help=help, exit_code=exit_code)
        self.tail = tail


class Supervisor:
    """One run of the stack. ``observe`` is called with every new record."""

    def __init__(self, settings: StackSettings, observe: Callable[[StackRecord], None] = lambda record: None) -> None:
        self.settings = settings
        self.home = settings.home
        self._observe = observe
        self._children: dict[str, Child] = {}
        self._stop = asyncio.Event()
        self._record: StackRecord | None = None

    async def run(self) -> None:
        """Bring the stack up and keep it up until `request_stop`.

        Raises `UserError` when it cannot come up; nothing is left running then.
        """
        require_own_packages()
        for directory in (self.home.root, self.home.run):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = StackLock(self.home)
        if not lock.acquire():
            raise StackRunningError(self.home, running_stack(self.home))
        try:
            previous = read_record(self.home)
            await _end_stale_parts(previous)
            await self._run_locked(previous)
        finally:
            lock.release()

    def request_stop(self) -> None:
        """Ask for an orderly shutdown; `run` returns after it."""
        self._stop.set()

    async def _run_locked(self, previous: StackRecord | None) -> None:
        ports, notices = _choose_ports(self.settings, previous, external=external_temporal())
        endpoint, temporal = _temporal(self.home, ports)
        self._publish(
            StackRecord(
                state="starting",
                supervisor=_self_reference(),
                started_at=time.time(),
                temporal=temporal,
                gateway=f"http://{reachable(self.settings.gateway_host)}:{ports['gateway']}",
                ports=ports,
                parts=(),
                notices=(*notices, *_disk_notices(self.home)),
            )
        )
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._bring_up(endpoint, temporal, ports, tasks)
        except BaseException as error:
            await self._take_down(tasks)
            failed = not isinstance(error, asyncio.CancelledError)
            self._publish_state("failed" if failed else "stopped", error=str(error) if failed else None)
            raise
        await self._take_down(tasks)
        self._publish_state("stopped")

    async def _bring_up(
        self,
        endpoint: TemporalEndpoint,
        temporal: TemporalRecord,
        ports: dict[str, int],
        tasks: "list[asyncio.Task[None]]",
    ) -> None:
        watch = TemporalWatch(endpoint)
        environment = part_environment(self.home, endpoint, managed=temporal.managed)
        registry = asyncio.create_task(self._prepare_registry())
        try:
            if temporal.managed:
                spec = temporal_part(self.home, watch, port=ports["temporal"], ui_port=ports["ui"])
                await self._start(tasks, spec)
            elif not await watch.answers(time.time()):
                raise UnreachableError(
                    f"Temporal at {endpoint.address} (from {endpoint.source}) does not answer, or lacks the search "
                    f"attributes of Standfast and refuses to add them.",
                    help="`standfast doctor` says which; unset TEMPORAL_ADDRESS to run the embedded server.",
                )
            await registry
            worker = worker_part(self.home, watch, environment)
            gateway = gateway_part(self.home, environment, host=self.settings.gateway_host, port=ports["gateway"])
            await self._start(tasks, worker, gateway)
        finally:
            registry.cancel()
            await asyncio.gather(registry, return_exceptions=True)
        if self._stop.is_set():
            return
        self._publish_state("ready")
        await self._until_stopped(tasks)

    async def _prepare_registry(self) -> None:
        from standfast.registry import Registry

        async with await Registry.open(self.home.registry_url) as registry:
            await ensure_api_key(self.home, registry)

    async def _start(self, tasks: "list[asyncio.Task[None]]", *specs: ChildSpec) -> None:
        """Start parts side by side; returns when all of them answer, or when a stop was asked for."""
        ready = []
        for spec in specs:
            child = self._children[spec.name] = Child(spec, self._child_changed)
            tasks.append(asyncio.create_task(child.keep_up(), name=spec.name))
            ready.append(asyncio.create_task(child.ready.wait()))
        try:
            await self._until_stopped(tasks, *ready)
        finally:
            for waiting in ready:
                waiting.cancel()

    async def _until_stopped(self, tasks: "list[asyncio.Task[None]]", *goals: "asyncio.Task[object]") -> None:
        """Wait for the goals (without any: for the stop request); a part that gives up ends the wait with its error."""
        stop: asyncio.Task[object] = asyncio.create_task(self._stop.wait())
        pending = set(goals) if goals else {stop}
        try:
            while pending and not stop.done():
                done, _ = await asyncio.wait({*pending, *tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task in done:
                        _raise_failure(task)
                pending -= done
        finally:
            stop.cancel()

    async def _take_down(self, tasks: "list[asyncio.Task[None]]") -> None:
        """Worker first, so that nothing new starts; then the gateway; Temporal last."""
        if self._record is not None:
            self._publish_state("stopping")
        for name in ("worker", "gateway", "temporal"):
            child = self._children.get(name)
            if child is not None:
                await child.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _child_changed(self, _child: Child) -> None:
        assert self._record is not None
        parts = tuple(child.record for child in self._children.values())
        self._publish(self._record.model_copy(update={"parts": parts}))

    def _publish_state(self, state: str, error: str | None = None) -> None:
        assert self._record is not None
        self._publish(self._record.model_copy(update={"state": state, "error": error}))

    def _publish(self, record: StackRecord) -> None:
        self._record = record
        write_record(self.home, record)
        self._observe(record)


async def run_until_signalled(supervisor: Supervisor) -> None:
    """Run with TERM, INT and HUP meaning an orderly stop."""
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(signal_number, supervisor.request_stop)
    await supervisor.run()


def _raise_failure(task: "asyncio.Task[None]") -> None:
    error = task.exception()
    if isinstance(error, ChildFailedError):
        raise StackFailedError(
            f"the {error.name} did not come up: it {error.message}.",
            tail=log_tail(error.log),
            help=f"Its log is {error.log}.",
        )
    if error is not None:
        raise error


async def _end_stale_parts(previous: StackRecord | None) -> None:
    """Parts of a supervisor that was killed end by themselves; wait for that, and insist in the end."""
    if previous is None:
        return
    stale = [part.process for part in previous.parts if part.process is not None and part.process.alive()]
    await asyncio.gather(*(end(process, grace_s=STALE_GRACE_S) for process in stale))


def _choose_ports(
    settings: StackSettings, previous: StackRecord | None, *, external: bool
) -> tuple[dict[str, int], tuple[str, ...]]:
    asked = {"temporal": settings.temporal_port, "ui": settings.ui_port, "gateway": settings.gateway_port}
    hosts = {"temporal": LOOPBACK, "ui": LOOPBACK, "gateway": settings.gateway_host}
    options = {"temporal": "--temporal-port", "ui": "--ui-port", "gateway": "--port"}
    chosen: dict[str, int] = {}
    notices: list[str] = []
    for name, default in DEFAULT_PORTS.items():
        if external and name != "gateway":
            continue
        before = previous.ports.get(name) if previous is not None else None
        port, notice = choose_port(
            option=options[name],
            host=hosts[name],
            asked=asked[name],
            preferred=(default,) if before is None else (before, default),
            taken=set(chosen.values()),
        )
        chosen[name] = port
        if notice is not None:
            notices.append(notice)
    return chosen, tuple(notices)


def _temporal(home: Home, ports: dict[str, int]) -> tuple[TemporalEndpoint, TemporalRecord]:
    if external_temporal():
        endpoint = temporal_endpoint(home)
        record = TemporalRecord(
            address=endpoint.address,
            namespace=endpoint.namespace,
            managed=False,
            ui=endpoint.ui,
            profile=os.environ.get("TEMPORAL_PROFILE"),
        )
        return endpoint, record
    address = f"{LOOPBACK}:{ports['temporal']}"
    ui = f"http://{LOOPBACK}:{ports['ui']}"
    endpoint = TemporalEndpoint(
        address=address,
        namespace="default",
        settings={"target_host": address, "namespace": "default"},
        source="the embedded stack",
        ui=ui,
    )
    return endpoint, TemporalRecord(address=address, namespace="default", managed=True, ui=ui)


def _self_reference() -> ProcessRef:
    found = reference(os.getpid())
    assert found is not None
    return found


def _disk_notices(home: Home) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(home.run).free
        if free < LOW_DISK_BYTES:
            return (f"only {free / 2**30:.1f} GiB are free in {home.root}; images and weights need more",)
    return ()
