"""Which paths the gateway answers, which it relays, and which it does not know."""

import re
from enum import Enum
from typing import Final
from urllib.parse import unquote_to_bytes

from workers.gateway import wire
from workers.gateway.wire import Page


class Door(Enum):
    """What a method and a path ask for."""

    RELAY = "relay"
    MODELS = "models"
    MODEL = "model"
    HEALTH = "health"
    METRICS = "metrics"
    OPTIONS = "options"


_COMMON: Final = frozenset({b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings", b"/v1/responses"})
_ADMIN: Final = frozenset({b"load_lora_adapter", b"unload_lora_adapter"})
"""Under ``/v1/`` in vLLM, and not for clients: they change what a replica serves."""
_READ: Final = (b"GET", b"HEAD")
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_MODELS = b"/v1/models"


def origin_form(target: bytes) -> bytes:
    """The target without scheme and authority (proxies and old clients send the absolute form)."""
    if target.startswith(b"/") or target == b"*":
        return target
    match = _ABSOLUTE.match(target)
    if match is None:
        return target
    rest = target[match.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def needs_key(path: bytes) -> bool:
    """Everything but health and metrics is for holders of a key."""
    return path.startswith(b"/v1/")


def door_of(method: bytes, path: bytes) -> Door | Page:
    """The door for ``method`` and ``path`` (without query), or the refusal."""
    if method == b"POST" and path in _COMMON:
        return Door.RELAY
    if method == b"CONNECT":
        return wire.problem(405, "the gateway is not a forward proxy", "method_not_allowed")
    if method == b"OPTIONS":
        return Door.OPTIONS
    plain = unquote_to_bytes(path)
    if not path.startswith(b"/") or b"#" in path or not _settled(plain):
        return wire.problem(400, "the path is not in its plain form", "bad_request")
    if path in (b"/healthz", b"/metrics"):
        door = Door.HEALTH if path == b"/healthz" else Door.METRICS
        return door if method in _READ else _wrong_method(b"GET, HEAD, OPTIONS")
    if path == _MODELS or path.startswith(_MODELS + b"/"):
        door = Door.MODELS if path in (_MODELS, _MODELS + b"/") else Door.MODEL
        return door if method in _READ else _wrong_method(b"GET, HEAD, OPTIONS")
    if path.startswith(b"/v1/") and plain[4:].strip(b"/") not in (b"", *_ADMIN):
        return Door.RELAY if method == b"POST" else _wrong_method(b"POST, OPTIONS")
    return wire.problem(404, "no such path: the API is under /v1/, health is /healthz", "not_found")


def model_in(path: bytes) -> str:
    """The model id of ``/v1/models/{id}``; ids may hold slashes."""
    return unquote_to_bytes(path[len(_MODELS) + 1 :]).decode("utf-8", "replace")


def _settled(plain: bytes) -> bool:
    """No dot segments, empty segments, backslashes or control characters, which a backend could resolve to another
    path.
    """
    segments = plain.split(b"/")[1:]
    if any(segment in (b".", b"..") for segment in segments) or b"" in segments[:-1]:
        return False
    return b"\\" not in plain and not any(byte < 0x20 or byte == 0x7F for byte in plain)


def _wrong_method(allow: bytes) -> Page:
    return wire.problem(
        405, f"this path takes {allow.decode()}", "method_not_allowed", headers=b"allow: %b\r\n" % allow
    )
