"""The process of the gateway's that speaks to Ray, and the one module that imports it.

It is no part of the gateway's process because Ray's library ends its process where Ray's own
servers are lost, and because its calls block. It is a driver of Ray's: when it ends, and it ends
with the gateway, Ray ends the supervisors, and with them go their listeners and workers. So nothing
is left of a gateway that was killed; a detached supervisor would have to be found and ended by
somebody.

Ray's view of a node comes late (it takes seconds to notice one that is gone), so the gateway's
connection to a worker decides that a node is lost, and this process is only asked to confirm it.
"""

import hashlib
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from backends.machine.processes import end_with
from backends.places.cluster.messages import (
    Bring,
    Brought,
    Check,
    Connected,
    Copying,
    Joined,
    Left,
    NodeFacts,
    Part,
    Report,
    decode_order,
    encode,
)
from backends.places.cluster.supervisor import Supervisor, mark_of

LOOKING = 1.0  # seconds between two looks at Ray's list of nodes
ANSWERING = 2.0  # seconds in which a supervisor answers
STARTING = 60.0  # seconds until one that was begun does
CHUNK = 8 * 2**20  # bytes of a file at a time
AHEAD = 2  # chunks on their way
NAMESPACE = "roundhouse"
# Ray hides the cards from what reserves none, but a supervisor has to see them.
ENVIRONMENT = {
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class Control:
    """Ray's nodes but the gateway's own, a supervisor on each."""

    def __init__(self, reports: BinaryIO, *, tls: bool) -> None:
        """`reports`: read by the gateway; `tls`: connections to workers are encrypted."""
        self._tls = tls
        self._reports = reports
        self._own = ray.get_runtime_context().get_node_id()
        self._supervisors: dict[str, Any] = {}  # by Ray's id of a node
        self._names: dict[str, str] = {}  # ours of it
        self._sending = threading.Lock()

    def send(self, report: Report) -> None:
        """On any thread."""
        with self._sending:
            self._reports.write(encode(report) + b"\n")
            self._reports.flush()

    def watch(self) -> None:
        """For ever: begin supervisors on nodes that came, forget those of nodes that went."""
        while True:
            there = {
                str(node["NodeID"]): node
                for node in ray.nodes()
                if node["Alive"] and node["NodeID"] != self._own
            }
            for number, node in there.items():
                if number not in self._supervisors:
                    self._begin(number, node)
            for number in list(self._supervisors):
                if number not in there:
                    self._forget(number, "it left the cluster")
            time.sleep(LOOKING)

    def obey(self) -> None:
        """Follow orders until there is nobody to give any."""
        for line in sys.stdin.buffer:
            match decode_order(line):
                case Bring() as order:
                    threading.Thread(target=self._bring, args=(order,), daemon=True).start()
                case Check(node):
                    threading.Thread(target=self._check, args=(node,), daemon=True).start()

    def _begin(self, number: str, node: Mapping[str, Any]) -> None:
        self._names[number] = self._name(number, node)
        strategy = NodeAffinitySchedulingStrategy(number, soft=False)
        actor: Any = ray.remote(num_cpus=0, num_gpus=0, max_concurrency=8)(Supervisor)
        self._supervisors[number] = actor.options(
            scheduling_strategy=strategy, runtime_env={"env_vars": environment()}
        ).remote(str(node["NodeManagerAddress"]), tls=self._tls)
        thread = threading.Thread(target=self._tell, args=(number, STARTING), daemon=True)
        thread.start()

    def _name(self, number: str, node: Mapping[str, Any]) -> str:
        """Its name in Ray, or its host's, with a part of its number where another is called so."""
        given = str(node.get("NodeName") or "")
        if not given or given == node["NodeManagerAddress"]:
            given = str(node["NodeManagerHostname"])
        name = re.sub(r"[^A-Za-z0-9._-]", "-", given)
        taken = {one for other, one in self._names.items() if other != number}
        return f"{name}-{number[:6]}" if name in taken else name

    def _tell(self, number: str, seconds: float) -> None:
        """That it is there, or isn't."""
        supervisor = self._supervisors.get(number)
        if supervisor is None:
            return
        try:
            facts: NodeFacts = ray.get(supervisor.facts.remote(), timeout=seconds)
        except Exception as error:  # noqa: BLE001 - Ray's, or what the supervisor raised
            self._forget(number, reason(error))
            return
        self.send(Joined(self._names[number], facts))

    def _check(self, node: str) -> None:
        number = self._number(node)
        if number is None:
            self.send(Left(node, "it left the cluster"))
        else:
            self._tell(number, ANSWERING)

    def _there(self, node: str) -> str:
        """Raises LookupError."""
        if (number := self._number(node)) is None:
            raise LookupError(f"node {node} left the cluster")
        return number

    def _number(self, node: str) -> str | None:
        there = (one for one, name in self._names.items() if name == node)
        return next((one for one in there if one in self._supervisors), None)

    def _forget(self, number: str, why: str) -> None:
        """A supervisor that is gone; where its node is still there, it gets a new one."""
        supervisor = self._supervisors.pop(number, None)
        if supervisor is not None:
            ray.kill(supervisor)
            self.send(Left(self._names[number], why))

    def _bring(self, order: Bring) -> None:
        try:
            paths = self._brought(order, self._supervisors[self._there(order.node)])
        except Exception as error:  # noqa: BLE001 - it is told
            self.send(Brought(order.number, failure=reason(error)))
        else:
            self.send(Brought(order.number, paths))

    def _brought(self, order: Bring, supervisor: Any) -> tuple[str, ...]:
        """Where the files lie there; those that it lacks are copied."""
        marks = {part: mark_of(Path(part.path)) for part in order.parts}
        found: dict[Part, str | None] = {
            part: ray.get(supervisor.find.remote(part.path, part.place, mark))
            for part, mark in marks.items()
        }
        lacking: list[Part] = []
        if any(path != part.path for part, path in found.items()):
            # An engine reads the files of a model from one folder: all are copies then.
            lacking = [part for part in order.parts if found[part] in (None, part.path)]
        total = sum(Path(part.path).stat().st_size for part in lacking)
        done = 0
        for part in lacking:
            for size in self._copied(part, marks[part], supervisor, found):
                done += size
                self.send(Copying(order.number, done, total))
        return tuple(path for path in found.values() if path is not None)

    def _copied(self, part: Part, mark: str, supervisor: Any, found: dict[Part, str | None]) -> Any:
        """Yields the bytes of each chunk that arrived."""
        digest, offset = hashlib.sha256(), 0
        under_way: deque[tuple[Any, int]] = deque()
        with Path(part.path).open("rb") as file:
            while (data := file.read(CHUNK)) or not offset:
                digest.update(data)
                under_way.append(
                    (supervisor.write.remote(part.place, mark, offset, data), len(data))
                )
                offset += len(data) or 1
                if len(under_way) >= AHEAD:
                    written, size = under_way.popleft()
                    ray.get(written)
                    yield size
        for written, size in under_way:
            ray.get(written)
            yield size
        found[part] = ray.get(supervisor.finish.remote(part.place, mark, digest.hexdigest()))


def environment() -> dict[str, str]:
    """Of supervisors: they import what this process does."""
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def reason(error: BaseException) -> str:
    """One line."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__


def main(parent: str, address: str, tls: str) -> None:
    """Of a process that `backends.places.cluster.nodes` starts. `address`: Ray's, or `auto`; `tls`:
    1 or 0.
    """
    end_with(int(parent))
    reports = os.fdopen(os.dup(1), "wb")  # Ray prints to stdout as it likes
    os.dup2(2, 1)
    try:
        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
        )
        control = Control(reports, tls=tls == "1")
    except Exception as error:  # noqa: BLE001 - whatever Ray raises
        reports.write(encode(Connected(reason(error))) + b"\n")
        reports.flush()
        return
    control.send(Connected())
    threading.Thread(target=control.watch, daemon=True).start()
    control.obey()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
