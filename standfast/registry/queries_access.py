"""API keys (hashed at rest) and the gateways that check them."""

import hashlib
import json
import secrets
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from standfast.registry.database import Database
from standfast.registry.errors import NotFound
from standfast.registry.rows import StoredGateway, StoredKey
from standfast.registry.statements import one_or_none, upsert, utc_now
from standfast.registry.tables import api_keys, gateways

_SHOWN_CHARACTERS = 9


def hash_key(plaintext: str) -> str:
    """The SHA-256 under which an API key is kept, in hexadecimal. Keys are long and random, so that no salt or
    stretching is needed.
    """
    return hashlib.sha256(plaintext.encode()).hexdigest()


def _key_of(row: sa.Row[Any]) -> StoredKey:
    return StoredKey(**row._mapping)


def _gateway_of(row: sa.Row[Any]) -> StoredGateway:
    fields = dict(row._mapping)
    fields["inflight"] = json.loads(fields["inflight"])
    return StoredGateway(**fields)


class AccessQueries:
    """Methods of `standfast.registry.Registry` on API keys and gateways."""

    _database: Database

    async def create_api_key(self, label: str) -> tuple[StoredKey, str]:
        """A new key: what is stored, and the key itself (``sf-...``), which cannot be had again. Gateways see it with
        the next revision.
        """
        plaintext = f"sf-{secrets.token_urlsafe(32)}"
        id = uuid.uuid4().hex
        async with self._database.write_routing() as connection:
            await connection.execute(
                sa.insert(api_keys).values(
                    id=id,
                    label=label,
                    prefix=plaintext[:_SHOWN_CHARACTERS],
                    sha256=hash_key(plaintext),
                    created_at=utc_now(),
                )
            )
            row = await one_or_none(connection, api_keys, api_keys.c.id == id)
            assert row is not None
            return _key_of(row), plaintext

    async def revoke_api_key(self, id: str) -> None:
        """Make a key invalid for good. Gateways see it with the next revision. Raises `NotFound`."""
        async with self._database.write_routing() as connection:
            revoked_at = sa.func.coalesce(api_keys.c.revoked_at, sa.literal(utc_now(), api_keys.c.revoked_at.type))
            changed = await connection.execute(
                sa.update(api_keys).where(api_keys.c.id == id).values(revoked_at=revoked_at)
            )
            if changed.rowcount == 0:
                raise NotFound(f"There is no API key with the id {id!r}.")

    async def list_api_keys(self) -> list[StoredKey]:
        """All keys, revoked ones too, oldest first."""
        query = sa.select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
        async with self._database.read() as connection:
            return [_key_of(row) for row in await connection.execute(query)]

    async def active_key_hashes(self) -> set[str]:
        """The SHA-256 (see `hash_key`) of every key that is valid now."""
        query = sa.select(api_keys.c.sha256).where(api_keys.c.revoked_at.is_(None))
        async with self._database.read() as connection:
            return set((await connection.execute(query)).scalars())

    async def gateway_beat(self, id: str, *, url: str, revision_seen: int, inflight: Mapping[str, int]) -> None:
        """Record that a gateway lives, the revision that it serves from, and its requests in flight by backend id."""
        values = {
            "url": url,
            "revision_seen": revision_seen,
            "beat_at": utc_now(),
            "inflight": json.dumps(dict(inflight)),
        }
        async with self._database.write() as connection:
            await upsert(connection, gateways, {"id": id}, values)

    async def list_gateways(self, max_age_s: float | None = None) -> list[StoredGateway]:
        """Gateways by id; with ``max_age_s`` only those whose last beat is no older (by the clocks of the writer and of
        this process).
        """
        query = sa.select(gateways).order_by(gateways.c.id)
        if max_age_s is not None:
            query = query.where(gateways.c.beat_at >= utc_now() - timedelta(seconds=max_age_s))
        async with self._database.read() as connection:
            return [_gateway_of(row) for row in await connection.execute(query)]

    async def forget_gateway(self, id: str) -> None:
        """Drop a gateway that ended."""
        async with self._database.write() as connection:
            await connection.execute(sa.delete(gateways).where(gateways.c.id == id))
