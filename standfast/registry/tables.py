"""The tables of the registry: one schema for SQLite and PostgreSQL.

Identifiers are text that people can read; times are aware UTC datetimes; structured values (generations, inspections,
reports) are JSON text of records, so that what is read back is byte for byte what was written.
"""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

#: Names for constraints and indexes, so that a migration can name what it changes on either database.
_NAMING = {
    "pk": "pk_%(table_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
}

metadata = sa.MetaData(naming_convention=_NAMING)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime on both databases (SQLite itself keeps no time zone). Naive values are refused."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; the registry keeps aware UTC datetimes")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _text(name: str, *, null: bool = False, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=null, **options)


def _integer(name: str, *, null: bool = False, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=null, **options)


def _time(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, UtcDateTime, nullable=null)


revision = sa.Table(
    "revision",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    _integer("number"),
)
"""One row (id 1): a number that grows with every change of what gateways read."""

deployments = sa.Table(
    "deployments",
    metadata,
    _text("name", primary_key=True),
    _text("served_name"),
    _text("target"),
    sa.Column("visible", sa.Boolean, nullable=False),
    _text("current_generation", null=True),
    _time("created_at"),
    _time("updated_at"),
    _time("retired_at", null=True),
)
sa.Index(
    "uq_deployments_standing_served_name",
    deployments.c.served_name,
    unique=True,
    sqlite_where=deployments.c.retired_at.is_(None),
    postgresql_where=deployments.c.retired_at.is_(None),
)

generations = sa.Table(
    "generations",
    metadata,
    _text("id", primary_key=True),
    sa.Column("deployment", sa.Text, sa.ForeignKey("deployments.name"), nullable=False, index=True),
    _text("digest"),
    _text("record"),
    _text("phase"),
    _text("failure", null=True),
    _time("created_at"),
    _time("updated_at"),
)

backends = sa.Table(
    "backends",
    metadata,
    _text("id", primary_key=True),
    sa.Column("generation", sa.Text, sa.ForeignKey("generations.id"), nullable=False, index=True),
    _integer("replica"),
    _text("attempt", null=True),
    _text("url", null=True),
    _text("state"),
    _text("host"),
    _time("updated_at"),
)

routes = sa.Table(
    "routes",
    metadata,
    _text("served_name", primary_key=True),
    sa.Column("deployment", sa.Text, sa.ForeignKey("deployments.name"), nullable=False, index=True),
    sa.Column("generation", sa.Text, sa.ForeignKey("generations.id"), nullable=True),
    sa.Column("visible", sa.Boolean, nullable=False),
    _integer("max_waiting"),
    sa.Column("retry_after_s", sa.Double, nullable=False),
    _time("updated_at"),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column(
        "id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True, autoincrement=True
    ),
    _text("host"),
    _text("kind"),
    _integer("resource"),
    _integer("count"),
    _integer("position"),
    _text("owner"),
    _text("generation"),
    _time("created_at"),
)
"""One row per GPU, per slot of ports and per owner's memory. ``resource`` is the GPU's index, the first port of the
slot, or 0 for memory; ``count`` is 1, the ports used in the slot, or bytes; ``position`` is the ordinal of the GPU or
of the span in the owner's request.
"""
_exclusive = leases.c.kind.in_(("gpu", "ports"))
sa.Index(
    "uq_leases_exclusive",
    leases.c.host,
    leases.c.kind,
    leases.c.resource,
    unique=True,
    sqlite_where=_exclusive,
    postgresql_where=_exclusive,
)
sa.Index("uq_leases_owner", leases.c.owner, leases.c.kind, leases.c.resource, unique=True)

attempts = sa.Table(
    "attempts",
    metadata,
    _text("name", primary_key=True),
    _text("deployment", index=True),
    _text("generation", index=True),
    _text("role"),
    _integer("replica"),
    _integer("number"),
    _text("phase"),
    _time("started_at"),
    _time("ready_at", null=True),
    _time("ended_at", null=True),
    _text("failure", null=True),
    _text("directory"),
)

images = sa.Table(
    "images",
    metadata,
    _text("digest", primary_key=True),
    _text("name"),
    _text("path"),
    _text("inspection"),
    _time("built_at"),
    _time("used_at"),
)

proofs = sa.Table(
    "proofs",
    metadata,
    _text("id", primary_key=True),
    _text("deployment", index=True),
    _text("generation", index=True),
    _text("inference_hash", index=True),
    sa.Column("passed", sa.Boolean, nullable=False),
    _text("report"),
    _time("created_at"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    _text("id", primary_key=True),
    _text("label"),
    _text("prefix"),
    _text("sha256", unique=True),
    _time("created_at"),
    _time("revoked_at", null=True),
)

gateways = sa.Table(
    "gateways",
    metadata,
    _text("id", primary_key=True),
    _text("url"),
    _integer("revision_seen"),
    _time("beat_at"),
    _text("inflight"),
)
