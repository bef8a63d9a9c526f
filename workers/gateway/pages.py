"""What the gateway answers itself: the models, its health, its metrics."""

import asyncio
import math
import time

import msgspec

from workers.gateway import wire
from workers.gateway.core import Core
from workers.gateway.metrics import CONTENT_TYPE
from workers.gateway.paths import Door, model_in
from workers.gateway.request import Request
from workers.gateway.routing import Entry
from workers.gateway.wire import Page


def answer(core: Core, request: Request) -> Page:
    """The page for a request that is not relayed."""
    match request.door:
        case Door.HEALTH:
            return health(core)
        case Door.METRICS:
            return metrics(core)
        case Door.MODELS:
            return models(core)
        case Door.MODEL:
            return model(core, model_in(request.path))
        case _:
            return Page(204, b"", headers=b"allow: GET, HEAD, POST, OPTIONS\r\n")


def health(core: Core) -> Page:
    """200 while new requests can be trusted to find their way: the table is fresh, and the process is not on its way
    out.
    """
    age = core.table_age(asyncio.get_running_loop().time())
    if core.draining:
        status = "draining"
    elif math.isinf(age):
        status = "starting"
    else:
        status = "ok" if age <= core.settings.stale_s else "stale"
    body = {
        "status": status,
        "gateway": core.gateway_id,
        "revision": core.table.revision,
        "table_age_s": None if math.isinf(age) else round(age, 3),
        "models": len(core.table.visible_ready()),
        "in_flight": sum(core.inflight.values()),
    }
    return Page(200 if status == "ok" else 503, msgspec.json.encode(body), headers=b"cache-control: no-store\r\n")


def metrics(core: Core) -> Page:
    text = core.metrics.render(
        inflight=core.inflight,
        revision=core.table.revision,
        table_age_s=core.table_age(asyncio.get_running_loop().time()),
        connections=len(core.connections),
        log_dropped=core.access.dropped,
        gateway=core.gateway_id,
    )
    return Page(200, text, content_type=CONTENT_TYPE)


def models(core: Core) -> Page:
    """The visible models that can be asked now, as OpenAI lists them."""
    data = [_record(core, entry) for entry in core.table.visible_ready()]
    return Page(200, msgspec.json.encode({"object": "list", "data": data}))


def model(core: Core, name: str) -> Page:
    """One model. A hidden one is found by those who know its name, just as it can be asked by them."""
    entry = core.table.entries.get(name)
    if entry is None:
        return unknown_model(core, name)
    if not entry.ready:
        headers = b"retry-after: %b\r\n%b" % (entry.retry_after, entry.header)
        return wire.problem(
            503, f"the model '{name}' is known, but no replica is ready yet", "model_not_ready", headers=headers
        )
    return Page(200, msgspec.json.encode(_record(core, entry)), headers=entry.header)


def unknown_model(core: Core, name: str) -> Page:
    """404 with the names that would have been found; 503 while the gateway cannot know."""
    if core.confirmed_at is None:
        return wire.problem(
            503, "the gateway has not read its routing table yet", "gateway_not_ready", headers=b"retry-after: 1\r\n"
        )
    names = ", ".join(f"'{known}'" for known in core.table.visible_names()) or "none"
    return wire.problem(404, f"the model '{name}' does not exist; there are: {names}", "model_not_found", param="model")


def _record(core: Core, entry: Entry) -> dict[str, object]:
    generation = entry.generation or ""
    return {
        "id": entry.served_name,
        "object": "model",
        "created": core.first_seen.setdefault(generation, int(time.time())),
        "owned_by": "standfast",
        "generation": generation,
    }
