"""The line in which jobs wait for a slot: fair between requests, in order within each."""

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class WaitingLine(Generic[Job]):
    """Round robin over requests: no job waits behind the hundred choices of another request."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, deque[Job]] = {}  # of each request; whose turn is next, first

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def join(self, request: Hashable, job: Job) -> None:
        """`job` waits, behind those of its own `request`."""
        self._jobs.setdefault(request, deque()).append(job)

    def leave(self, request: Hashable, job: Job) -> None:
        """`job` waits no more. Raises ValueError or KeyError where it doesn't wait."""
        jobs = self._jobs[request]
        jobs.remove(job)
        if not jobs:
            del self._jobs[request]

    def leave_all(self) -> list[Job]:
        """Nobody waits any more; who did."""
        left = [job for jobs in self._jobs.values() for job in jobs]
        self._jobs.clear()
        return left

    def next(self) -> Job:
        """The job whose turn it is; it leaves. The next turn is another request's."""
        request = next(iter(self._jobs))
        jobs = self._jobs.pop(request)
        job = jobs.popleft()
        if jobs:
            self._jobs[request] = jobs
        return job
