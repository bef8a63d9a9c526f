"""The meeting of the nodes of one engine: the head listens at the master's address and port, the others connect."""

import argparse
import asyncio

_held: list[object] = []
"""Connections stay open for as long as their process lives; nothing is said over them."""


async def meet(arguments: argparse.Namespace) -> bool:
    """Wait until every node is there; False once the time for it is over."""
    if arguments.nnodes == 1:
        return True
    try:
        async with asyncio.timeout(arguments.distributed_timeout_seconds or 600):
            await (_gather(arguments) if arguments.node_rank == 0 else _join(arguments))
    except TimeoutError:
        return False
    return True


async def _gather(arguments: argparse.Namespace) -> None:
    complete = asyncio.Event()
    present: set[int] = set()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        present.add(int(await reader.readline()))
        _held.append(writer)
        if len(present) == arguments.nnodes - 1:
            complete.set()

    _held.append(await asyncio.start_server(join, arguments.master_addr, arguments.master_port))
    await complete.wait()


async def _join(arguments: argparse.Namespace) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(arguments.master_addr, arguments.master_port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.write(b"%d\n" % arguments.node_rank)
        await writer.drain()
        _held.append(writer)
        return
