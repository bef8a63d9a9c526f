"""Small pieces that the query modules share."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


class Keep(Enum):
    """The value of an argument that was left out: what is stored stays."""

    KEEP = "keep"


KEEP: Literal[Keep.KEEP] = Keep.KEEP


def utc_now() -> datetime:
    """The present, as the registry keeps it."""
    return datetime.now(UTC)


def to_json(value: Mapping[str, Any] | None) -> str | None:
    """A JSON object as the text that is stored."""
    return None if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)


def from_json(text: str | None) -> dict[str, Any] | None:
    """The JSON object of a stored text."""
    return None if text is None else cast("dict[str, Any]", json.loads(text))


async def insert_if_absent(connection: AsyncConnection, table: sa.Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless its primary key is there already, also when another process inserts it at this moment. True:
    inserted.
    """
    statement = _insert(connection, table).values(**values)
    ignoring = statement.on_conflict_do_nothing(index_elements=list(table.primary_key.columns))
    return (await connection.execute(ignoring)).rowcount > 0


async def upsert(
    connection: AsyncConnection, table: sa.Table, key: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Insert a row with the primary key ``key``, or set ``values`` on the one that is there."""
    statement = _insert(connection, table).values(**key, **values)
    replacing = statement.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=dict(values))
    await connection.execute(replacing)


def _insert(connection: AsyncConnection, table: sa.Table) -> "postgresql.Insert | sqlite.Insert":
    # Each dialect costs tens of milliseconds to import: only the one in use is.
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table)


async def one_or_none(
    connection: AsyncConnection, table: sa.Table, *where: sa.ColumnElement[bool]
) -> sa.Row[Any] | None:
    """The row of ``table`` for which ``where`` holds, or None."""
    return (await connection.execute(sa.select(table).where(*where))).one_or_none()
