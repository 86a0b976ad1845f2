"""A task group for helpers of one body of code: they end with it, and its exception comes out as it
is.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def companions() -> AsyncIterator[TaskGroup]:
    """Like `anyio.create_task_group`, but the tasks are cancelled when the body ends.

    A single exception is raised bare instead of in a group: callers catch `GatewayError` and such.
    """
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise
