"""A model hub on loopback: the part of the wire protocol that ``huggingface_hub`` uses to resolve and to download."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """One repository, ``org/model``, whose ``main`` is `COMMIT`.

    ``token`` set: only requests with it are let in. ``status`` set: every request gets it. ``gates`` hold a file's body
    back, after its first half, until the event is set. ``served`` counts the bodies begun, by file.
    """

    files: Mapping[str, bytes]
    token: str | None = None
    status: int | None = None
    gated: bool = False
    gates: dict[str, threading.Event] = field(default_factory=dict)
    half_way: dict[str, threading.Event] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""

    def hold(self, name: str) -> threading.Event:
        """Hold ``name`` back half-way; returns the event that says that a client waits there."""
        self.gates[name] = threading.Event()
        self.half_way[name] = threading.Event()
        return self.half_way[name]

    def release(self) -> None:
        """Let every held file go on."""
        for gate in self.gates.values():
            gate.set()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve the hub on an ephemeral port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.release()
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked[path] += 1
        if self.hub.status is not None:
            self._send(self.hub.status, b"", {})
        elif self.hub.gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif self.hub.token is not None and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("/api/models/org/model/"):
            self._api(path.removeprefix("/api/models/org/model/"))
        elif path.startswith(f"/org/model/resolve/{COMMIT}/"):
            self._file(path.removeprefix(f"/org/model/resolve/{COMMIT}/"), body=body)
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _api(self, rest: str) -> None:
        kind, _, revision = rest.partition("/")
        if revision.partition("?")[0] not in ("main", COMMIT):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif kind == "revision":
            self._json({"id": "org/model", "modelId": "org/model", "sha": COMMIT, "siblings": [], "tags": []})
        else:
            self._json([_listed(name, content) for name, content in self.hub.files.items()])

    def _file(self, name: str, *, body: bool) -> None:
        content = self.hub.files.get(name)
        if content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if not body:
            self._send(200, content, headers, body=False)
            return
        self.hub.served[name] += 1
        half = len(content) // 2
        self._send(200, content, headers, body=False)
        self._write(content[:half])
        if name in self.hub.gates:
            self.hub.half_way[name].set()
            self.hub.gates[name].wait(600)
        self._write(content[half:])

    def _json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: Mapping[str, str], *, body: bool = True) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.command != "HEAD":
            self._write(content)

    def _write(self, content: bytes) -> None:
        try:
            self.wfile.write(content)
            self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


def _listed(name: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
