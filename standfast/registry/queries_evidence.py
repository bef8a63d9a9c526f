"""Images and proofs: what was built, and what was shown to work."""

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from standfast.plans.inspection import Inspection
from standfast.registry.database import Database
from standfast.registry.errors import NotFound
from standfast.registry.rows import StoredImage, StoredProof
from standfast.registry.statements import from_json, insert_if_absent, one_or_none, to_json, utc_now
from standfast.registry.tables import generations, images, proofs


def _image_of(row: sa.Row[Any]) -> StoredImage:
    fields = dict(row._mapping)
    fields["inspection"] = Inspection.model_validate_json(fields["inspection"])
    return StoredImage(**fields)


def _proof_of(row: sa.Row[Any]) -> StoredProof:
    fields = dict(row._mapping)
    fields["report"] = from_json(fields["report"])
    return StoredProof(**fields)


class EvidenceQueries:
    """Methods of `standfast.registry.Registry` on images and proofs."""

    _database: Database

    async def put_image(
        self, digest: str, *, name: str, path: str, inspection: Inspection, built_at: datetime | None = None
    ) -> StoredImage:
        """Record a built image, or that a known one is used again (``used_at``). ``built_at`` defaults to
        when the image was first recorded."""
        now = utc_now()
        values: dict[str, Any] = {
            "name": name,
            "path": path,
            "inspection": inspection.model_dump_json(),
            "used_at": now,
        }
        if built_at is not None:
            values["built_at"] = built_at
        async with self._database.write() as connection:
            first = {"digest": digest, "built_at": now} | values
            if not await insert_if_absent(connection, images, first):
                await connection.execute(sa.update(images).where(images.c.digest == digest).values(**values))
            row = await one_or_none(connection, images, images.c.digest == digest)
            assert row is not None
            return _image_of(row)

    async def get_image(self, digest: str) -> StoredImage | None:
        """The image, or None."""
        async with self._database.read() as connection:
            row = await one_or_none(connection, images, images.c.digest == digest)
            return None if row is None else _image_of(row)

    async def list_images(self) -> list[StoredImage]:
        """Images, last used first."""
        query = sa.select(images).order_by(images.c.used_at.desc(), images.c.digest)
        async with self._database.read() as connection:
            return [_image_of(row) for row in await connection.execute(query)]

    async def put_proof(
        self, *, generation: str, inference_hash: str, passed: bool, report: Mapping[str, Any], id: str | None = None
    ) -> StoredProof:
        """Keep the report of a validation. A given ``id`` makes a repeated call harmless. Raises `NotFound`."""
        proof_id = id or uuid.uuid4().hex
        async with self._database.write() as connection:
            owner = await one_or_none(connection, generations, generations.c.id == generation)
            if owner is None:
                raise NotFound(f"There is no generation {generation!r} to keep a proof for.")
            values = {
                "id": proof_id,
                "deployment": owner.deployment,
                "generation": generation,
                "inference_hash": inference_hash,
                "passed": passed,
                "report": to_json(report),
                "created_at": utc_now(),
            }
            await insert_if_absent(connection, proofs, values)
            row = await one_or_none(connection, proofs, proofs.c.id == proof_id)
            assert row is not None
            return _proof_of(row)

    async def list_proofs(
        self, *, deployment: str | None = None, generation: str | None = None, limit: int | None = None
    ) -> list[StoredProof]:
        """Proofs, newest first."""
        query = sa.select(proofs).order_by(proofs.c.created_at.desc(), proofs.c.id).limit(limit)
        if deployment is not None:
            query = query.where(proofs.c.deployment == deployment)
        if generation is not None:
            query = query.where(proofs.c.generation == generation)
        async with self._database.read() as connection:
            return [_proof_of(row) for row in await connection.execute(query)]

    async def fresh_proof(self, inference_hash: str, *, max_age: timedelta | None = None) -> StoredProof | None:
        """The last proof of an inference plan if it passed (and is no older than ``max_age``); a later failure makes it
        stale.
        """
        query = (
            sa.select(proofs)
            .where(proofs.c.inference_hash == inference_hash)
            .order_by(proofs.c.created_at.desc(), proofs.c.id)
            .limit(1)
        )
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None or not row.passed or (max_age is not None and row.created_at < utc_now() - max_age):
            return None
        return _proof_of(row)
