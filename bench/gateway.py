"""The gateway beside nginx and beside no proxy at all: requests per second, time to first token, streamed events.

Run ``python bench/gateway.py``. Backends and load generator share one process on the last core, each proxy has the
first core to itself where there are two, and the cells are interleaved, so that what else happens on the machine hits
all alike. Ratios are medians over the rounds; "CPU us" is the proxy's own processor time per request or event, the
figure that noise spares. nginx is left out when it is not installed.
"""

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import uvloop

from standfast.registry.rows import Backend, Route, RoutingTable

KEY = "sf-bench"
MODEL = "bench"
PROMPT = json.dumps(
    {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 70}], "max_tokens": 64, "temperature": 0.2}
).encode()
ANSWER = json.dumps({"id": "x", "choices": [{"message": {"role": "assistant", "content": "word " * 85}}]}).encode()
EVENT = (
    b"data: " + json.dumps({"id": "x", "choices": [{"delta": {"content": "word"}}], "pad": "." * 90}).encode() + b"\n\n"
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
DONE = b"data: [DONE]\n\n"
LAST = b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE)
PLAIN = b"HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(ANSWER),
    ANSWER,
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STREAM_EVENTS = 200
PATHS = {"plain": b"/v1/completions", "paced": b"/v1/chat/completions", "flat": b"/v1/responses"}
FIRST_TOKEN_S = 0.01


class FakeEngine(asyncio.Protocol):
    """Answers by path (see `PATHS`): at once, as a paced stream (the head at once, the first event 10 ms later), or as
    a stream without pauses.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0 or len(self.buffer) < end + 4 + len(PROMPT):
            return
        path = self.buffer[: self.buffer.index(b"\r\n")]
        self.buffer = b""
        if b"/v1/completions" in path:
            self.transport.write(PLAIN)
        elif b"/v1/chat" in path:
            self.transport.write(STREAM_HEAD)
            self.loop.call_later(FIRST_TOKEN_S, self.transport.write, CHUNK)
            self.loop.call_later(FIRST_TOKEN_S * 1.5, self.transport.write, LAST)
        else:
            self.transport.write(STREAM_HEAD)
            self.loop.call_soon(self.event, STREAM_EVENTS)

    def event(self, left: int) -> None:
        if self.transport.is_closing():
            return
        if left:
            self.transport.write(CHUNK)
            self.loop.call_soon(self.event, left - 1)
        else:
            self.transport.write(LAST)


class LoadClient(asyncio.Protocol):
    """One keep-alive client: sends, waits for the end of the answer, sends again, until told to stop."""

    def __init__(self, request: bytes, *, streams: bool) -> None:
        self.request = request
        self.streams = streams
        self.loop = asyncio.get_running_loop()
        self.finished = self.loop.create_future()
        self.stopping = False
        self.requests = 0
        self.first_bytes: list[float] = []
        self.buffer = b""
        self.events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.send()

    def send(self) -> None:
        self.buffer = b""
        self.seen = False
        self.sent_at = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.streams:
            self.events += data.count(b"data: ")
            if not self.seen and b"data: " in data:
                self.seen = True
                self.first_bytes.append(time.perf_counter() - self.sent_at)
            self.buffer = (self.buffer + data)[-7:]
            if self.buffer != b"\r\n0\r\n\r\n":
                return
        else:
            self.buffer += data
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0 or len(self.buffer) < end + 4 + len(ANSWER):
                return
            if not self.buffer.startswith(b"HTTP/1.1 200"):
                self.finished.set_exception(RuntimeError(self.buffer[:300].decode()))
                self.transport.close()
                return
        self.requests += 1
        if self.stopping:
            self.transport.close()
        else:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.finished.done():
            if self.stopping:
                self.finished.set_result(None)
            else:
                self.finished.set_exception(exc or RuntimeError("the connection was closed"))


@dataclass
class Cell:
    """What one proxy did in one cell, over the rounds."""

    rates: list[float] = field(default_factory=list)
    first_bytes: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)


@dataclass
class Subject:
    """Something to send requests to; ``pid`` is the process whose CPU time counts."""

    name: str
    port: int
    pid: int | None = None
    cells: dict[str, Cell] = field(default_factory=dict)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_s(pid: int | None) -> float:
    """Processor seconds that ``pid`` has used."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def done_by(members: list[LoadClient], kind: str) -> int:
    """Events received in the flat-out cell, else requests answered."""
    return sum(member.events if kind == "flat" else member.requests for member in members)


async def load(subject: Subject, kind: str, *, clients: int, seconds: float) -> None:
    """One cell: ``clients`` keep-alive clients for ``seconds``."""
    loop = asyncio.get_running_loop()
    request = (
        b"POST %b HTTP/1.1\r\nHost: gateway\r\nUser-Agent: OpenAI/Python\r\nAccept: application/json\r\n"
        b"Content-Type: application/json\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        % (PATHS[kind], KEY.encode(), len(PROMPT), PROMPT)
    )
    streams = kind != "plain"
    members = [
        (await loop.create_connection(lambda: LoadClient(request, streams=streams), "127.0.0.1", subject.port))[1]
        for _ in range(clients)
    ]
    await asyncio.sleep(0.2)
    before, cpu, started = done_by(members, kind), cpu_s(subject.pid), loop.time()
    for member in members:
        member.first_bytes.clear()
    await asyncio.sleep(seconds)
    elapsed = loop.time() - started
    units, used = done_by(members, kind) - before, cpu_s(subject.pid) - cpu
    for member in members:
        member.stopping = True
    await asyncio.gather(*(member.finished for member in members))
    cell = subject.cells.setdefault(kind, Cell())
    cell.rates.append(units / elapsed)
    cell.first_bytes.extend(seconds for member in members for seconds in member.first_bytes)
    if units:
        cell.cpu_us.append(used / units * 1e6)


class FixedRoutes:
    """One model on one backend, and one key: a registry that never changes."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    async def revision(self) -> int:
        return 1

    async def routing_table(self) -> RoutingTable:
        backend = Backend(id="bench@1/inference/0", url=self.backend, state="ready", attempt=None)
        route = Route(
            served_name=MODEL,
            deployment=MODEL,
            generation="bench@1",
            visible=True,
            max_waiting=10_000,
            retry_after_s=1.0,
            backends=(backend,),
        )
        return RoutingTable(revision=1, routes=(route,))

    async def active_key_hashes(self) -> set[str]:
        return {hashlib.sha256(KEY.encode()).hexdigest()}

    async def gateway_beat(self, id: str, *, url: str, revision_seen: int, inflight: Mapping[str, int]) -> None:
        return None

    async def forget_gateway(self, id: str) -> None:
        return None


async def serve_gateway(port: int, backend: str, access_log: bool) -> None:
    """The gateway alone in this process, until SIGTERM."""
    from workers.gateway.main import configure_logs, settle
    from workers.gateway.server import Gateway

    configure_logs()
    fd = os.open(os.devnull, os.O_WRONLY) if access_log else None
    gateway = Gateway(FixedRoutes(backend), gateway_id="bench", access_fd=fd)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await gateway.start("127.0.0.1", port)
    settle()
    await stop.wait()
    await gateway.drain(1.0)


def pinned(core: int) -> list[str]:
    """The command prefix that keeps a process on ``core``."""
    taskset = shutil.which("taskset")
    return [taskset, "-c", str(core)] if taskset and (os.cpu_count() or 1) > 1 else []


def start_gateway(backend_port: int, *, access_log: bool) -> tuple[Subject, subprocess.Popen[bytes]]:
    port = free_port()
    command = [sys.executable, __file__, "--serve", str(port), "--backend", f"http://127.0.0.1:{backend_port}"]
    command += ["--access-log"] if access_log else []
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    process = subprocess.Popen(pinned(0) + command, env=environment, stderr=subprocess.DEVNULL)
    return Subject("gateway + access log" if access_log else "gateway", port, process.pid), process


def start_nginx(backend_port: int, directory: Path) -> tuple[Subject, subprocess.Popen[bytes]] | None:
    """nginx with one worker, keep-alive to the backend, no buffering of streams and no access log."""
    binary = shutil.which("nginx")
    if binary is None:
        return None
    port = free_port()
    (directory / "nginx.conf").write_text(
        f"""
worker_processes 1; daemon off; master_process off; pid {directory}/pid; error_log {directory}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000000; tcp_nodelay on;
  upstream engine {{ server 127.0.0.1:{backend_port}; keepalive 256; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{
    proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }}
}}
"""
    )
    command = [*pinned(0), binary, "-p", str(directory), "-c", str(directory / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    return Subject("nginx", port, process.pid), process


async def until_listening(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def report(subjects: list[Subject]) -> dict[str, float]:
    """Print the table; returns the gateway's ratios."""
    by_name = {subject.name: subject for subject in subjects}
    head = f"{'':22}{'req/s':>9}{'CPU us':>8}{'TTFT p50':>10}{'p99 ms':>8}{'events/s':>10}{'CPU us':>8}"
    print(head)
    for subject in subjects:
        plain, paced, flat = (subject.cells[kind] for kind in ("plain", "paced", "flat"))
        print(
            f"{subject.name:22}{median(plain.rates):9.0f}{median(plain.cpu_us):8.1f}"
            f"{median(paced.first_bytes) * 1e3:10.2f}{percentile(paced.first_bytes, 0.99) * 1e3:8.2f}"
            f"{median(flat.rates):10.0f}{median(flat.cpu_us):8.1f}"
        )
    ratios: dict[str, float] = {}
    gateway = by_name["gateway"]
    for other in ("nginx", "direct"):
        if other not in by_name:
            continue
        for kind, label in (("plain", "requests/s"), ("flat", "events/s")):
            pairs = zip(gateway.cells[kind].rates, by_name[other].cells[kind].rates, strict=True)
            ratios[f"{label} / {other}"] = median([ours / theirs for ours, theirs in pairs])
    added = (median(gateway.cells["paced"].first_bytes) - median(by_name["direct"].cells["paced"].first_bytes)) * 1e3
    ratios["TTFT added over direct, reused connection (ms)"] = added
    if "nginx" in by_name:
        cpu = by_name["nginx"].cells["plain"].cpu_us
        ratios["CPU per request / nginx"] = median(gateway.cells["plain"].cpu_us) / median(cpu)
    for name, value in ratios.items():
        print(f"  {name}: {value:.2f}")
    return ratios


async def compare(options: argparse.Namespace) -> dict[str, float]:
    cores = os.cpu_count() or 1
    if cores > 1:
        os.sched_setaffinity(0, {cores - 1})
    loop = asyncio.get_running_loop()
    engine = await loop.create_server(FakeEngine, "127.0.0.1", 0)
    backend_port = int(engine.sockets[0].getsockname()[1])
    subjects = [Subject("direct", backend_port)]
    with tempfile.TemporaryDirectory() as name:
        started = [start_nginx(backend_port, Path(name)), start_gateway(backend_port, access_log=False)]
        started.append(start_gateway(backend_port, access_log=True))
        running = [one for one in started if one is not None]
        subjects += [subject for subject, _ in running]
        try:
            for subject in subjects:
                await until_listening(subject.port)
            if started[0] is None:
                print("nginx is not installed: compared with direct only")
            for _ in range(options.rounds):
                for kind, clients in (("plain", 32), ("paced", 4), ("flat", 64)):
                    for subject in subjects:
                        await load(subject, kind, clients=clients, seconds=options.seconds)
        finally:
            for _, process in running:
                process.terminate()
            for _, process in running:
                await asyncio.to_thread(process.wait)
    engine.close()
    return report(subjects)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.7, help="length of one cell")
    parser.add_argument("--json", action="store_true", help="print the ratios as JSON at the end")
    parser.add_argument("--serve", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="", help=argparse.SUPPRESS)
    parser.add_argument("--access-log", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.serve is not None:
            runner.run(serve_gateway(options.serve, options.backend, options.access_log))
            return
        started = time.monotonic()
        ratios = runner.run(compare(options))
    print(f"took {time.monotonic() - started:.0f} s")
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
