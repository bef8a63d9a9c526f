"""What Standfast needs of a Temporal namespace: its search attributes, and workers on its queues."""

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from standfast.contracts import SEARCH_ATTRIBUTES
from standfast.plans.record import Record

if TYPE_CHECKING:
    from temporalio.client import Client

RPC_TIMEOUT = timedelta(seconds=5)


class Poller(Record):
    """A worker that asked a task queue for work; ``seen_at`` in Unix seconds."""

    identity: str
    seen_at: float


async def missing_search_attributes(client: "Client") -> tuple[str, ...]:
    """The attributes that the namespace lacks, or has with another type than keyword. Raises ``RPCError``."""
    from temporalio.api.enums.v1 import IndexedValueType
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest

    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), timeout=RPC_TIMEOUT
    )
    known = {
        name for name, kind in answer.custom_attributes.items() if kind == IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    }
    return tuple(name for name in SEARCH_ATTRIBUTES if name not in known)


async def add_search_attributes(client: "Client", names: Iterable[str]) -> None:
    """Register keyword attributes. Raises ``RPCError`` (Temporal Cloud refuses: there its own tools do this)."""
    from temporalio.api.enums.v1 import IndexedValueType
    from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest

    wanted = dict.fromkeys(names, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
    if wanted:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wanted), timeout=RPC_TIMEOUT
        )


async def pollers(client: "Client", task_queue: str) -> tuple[Poller, ...]:
    """Who polls a task queue for workflow tasks, as the server remembers it (up to five minutes back).

    Raises ``RPCError``.
    """
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        ),
        timeout=RPC_TIMEOUT,
    )
    return tuple(
        Poller(identity=poller.identity, seen_at=poller.last_access_time.ToNanoseconds() / 1e9)
        for poller in answer.pollers
    )
