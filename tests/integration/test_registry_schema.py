"""Opening and migrating a registry: once, whoever comes first, and never backwards."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from standfast.registry import Registry, RegistryError, RegistryUnavailable
from standfast.registry.database import Database
from standfast.registry.schema import HEAD, MIGRATIONS, alembic_config
from standfast.registry.statements import utc_now
from standfast.registry.tables import leases, metadata

pytest_plugins = ("tests.support.registry",)


@asynccontextmanager
async def a_database(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        await database.close()


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.registry_process",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def say_go(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    assert process.stdin is not None
    assert json.loads(await process.stdout.readline()) == "ready"
    process.stdin.write(b"go\n")
    await process.stdin.drain()


async def test_the_migrations_make_exactly_the_tables_of_the_code(registry: Registry) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    def differences(connection: sa.Connection) -> Any:
        return compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata)

    async with registry._database.read() as connection:
        assert await connection.run_sync(differences) == []


def test_the_newest_migration_is_the_one_that_the_code_asks_for() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [HEAD]


async def test_the_first_migration_can_be_taken_back(registry_url: str) -> None:
    from alembic import command

    await (await Registry.open(registry_url)).close()
    async with a_database(registry_url) as database:
        async with database.write() as connection:
            await connection.run_sync(lambda sync: command.downgrade(alembic_config(sync), "base"))
        async with database.read() as connection:
            left = await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names())
        assert left == ["alembic_version"]


async def test_an_up_to_date_registry_opens_without_alembic(registry_url: str) -> None:
    await (await Registry.open(registry_url)).close()
    process = await start("open", registry_url)
    await say_go(process)
    output, _ = await process.communicate()
    assert json.loads(output) == {"alembic": False, "revision": 0}


async def test_processes_that_open_at_once_migrate_once(registry_url: str) -> None:
    processes = [await start("open", registry_url) for _ in range(3)]
    await asyncio.gather(*(say_go(process) for process in processes))
    outputs = [await process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 3
    assert all(json.loads(output)["revision"] == 0 for output, _ in outputs)
    async with a_database(registry_url) as database, database.read() as connection:
        assert (await connection.execute(sa.text("SELECT version_num FROM alembic_version"))).scalars().all() == [HEAD]
        assert (await connection.execute(sa.text("SELECT number FROM revision"))).scalars().all() == [0]


async def test_a_registry_of_a_newer_release_is_refused(registry_url: str) -> None:
    await (await Registry.open(registry_url)).close()
    async with a_database(registry_url) as database, database.write() as connection:
        await connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(RegistryError, match="newer Standfast: its schema is 9999"):
        await Registry.open(registry_url)


async def test_without_migrating_an_empty_database_is_refused_and_left_empty(postgres_url: str) -> None:
    with pytest.raises(RegistryError, match=f"this release needs {HEAD}"):
        await Registry.open(postgres_url, migrate=False)
    async with a_database(postgres_url) as database, database.read() as connection:
        assert await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names()) == []


async def test_without_migrating_no_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnavailable, match="no such file"):
        await Registry.open(f"sqlite:///{tmp_path / 'none.db'}", migrate=False)
    assert list(tmp_path.iterdir()) == []


async def test_the_directory_of_a_new_registry_is_made(tmp_path: Path) -> None:
    path = tmp_path / "home" / "100% new" / "registry.db"
    async with await Registry.open(f"sqlite:///{path}") as registry:
        assert await registry.revision() == 0
    async with await Registry.open(f"sqlite:///{path}", migrate=False) as registry:
        assert await registry.list_deployments() == []


async def test_a_path_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegistryUnavailable, match=r"file/registry\.db cannot be used") as refused:
        await Registry.open(f"sqlite:///{tmp_path / 'file' / 'registry.db'}")
    assert refused.value.exit_code == 3
    (tmp_path / "text.db").write_text("this is no database, however long it is read " * 100)
    with pytest.raises(RegistryUnavailable, match="not a database"):
        await Registry.open(f"sqlite:///{tmp_path / 'text.db'}")


async def test_a_server_that_is_not_there_is_named_without_its_password(unused_tcp_port: int) -> None:
    with pytest.raises(RegistryUnavailable) as refused:
        await Registry.open(f"postgresql://user:opensesame@127.0.0.1:{unused_tcp_port}/name")
    assert f"127.0.0.1:{unused_tcp_port}" in str(refused.value)
    assert "opensesame" not in str(refused.value)


async def test_the_database_itself_refuses_a_gpu_or_a_slot_of_ports_twice(registry: Registry) -> None:
    def row(owner: str, kind: str, resource: int) -> dict[str, Any]:
        fixed = {"host": "host", "count": 1, "position": 0, "generation": "g", "created_at": utc_now()}
        return {**fixed, "owner": owner, "kind": kind, "resource": resource}

    for kind in ("gpu", "ports"):
        with pytest.raises(IntegrityError):
            async with registry._database.write() as connection:
                await connection.execute(sa.insert(leases), [row("a", kind, 1), row("b", kind, 1)])
    async with registry._database.write() as connection:
        await connection.execute(sa.insert(leases), [row("a", "memory", 0), row("b", "memory", 0)])


async def test_a_killed_process_leaves_neither_a_change_nor_a_lock(registry: Registry, registry_url: str) -> None:
    await registry.put_deployment("qwen", served_name="qwen", target="local")
    process = await start("hold", registry_url)
    assert process.stdout is not None
    assert json.loads(await process.stdout.readline()) == "ready"
    process.kill()
    await process.wait()
    stored = await registry.put_deployment("llama", served_name="llama", target="local")
    assert stored.target == "local"
    qwen = await registry.get_deployment("qwen")
    assert qwen is not None
    assert qwen.target == "local"
    assert await registry.revision() == 2
