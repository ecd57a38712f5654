"""One mean with Flower's SecAgg+ workflow and its mod for clients: python beside_flower.py SITES
NUMBERS LOST, in an environment of its own with flwr. See `run.py beside`.

Both are Flower's own code; between them stands a grid that hands messages over as they are. Every
site has its key shared among all, and as many shares as confide wants are needed.
"""

from __future__ import annotations

import logging
import sys
import time
import tracemalloc
from collections.abc import Iterable
from importlib import metadata
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.serde import recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.supercore.task_identity import TaskIdentity
from vectors import lost_of, report, run, vector

logging.getLogger("flwr").setLevel(logging.ERROR)
WEIGHT = 1000
"""The largest weight of a site by default, at which quantization is finest."""


class Node(ClientProxy):
    """A site as the strategy knows it; it is never called."""

    def __init__(self, number: int) -> None:
        super().__init__(str(number))
        self.node_id = number

    def _none(self, *args: Any) -> Any:
        raise NotImplementedError

    get_properties = get_parameters = fit = evaluate = reconnect = _none


def context_of(number: int) -> Context:
    """A fresh context."""
    return Context(run_id=1, node_id=number, node_config={}, state=RecordDict(), run_config={})


def own_copy(content: RecordDict) -> RecordDict:
    """The content with settings of its own, which the mod changes, as if it had travelled."""
    settings = {name: ConfigRecord(dict(one)) for name, one in content.config_records.items()}
    return RecordDict({**dict(content.items()), **settings})


class Grid:
    """Hands messages to the sites and back, and takes the time that these need."""

    def __init__(self, sites: int, numbers: int, lost: int) -> None:
        self.contexts = {site + 1: context_of(site + 1) for site in range(sites)}
        self.lost = {site + 1 for site in lost_of(sites, lost)}
        self.numbers = numbers
        self.seconds, self.drawing = 0.0, 0.0
        self.up_bytes, self.exchange, self.most = 0, 0, 0

    def trained(self, message: Message, context: Context) -> Message:
        """What a site has learnt: its vector. Drawing it does not count."""
        start = time.process_time()
        drawn = vector(context.node_id - 1, self.numbers)
        self.drawing += time.process_time() - start
        status = Status(Code.OK, "")
        result = FitRes(status, ndarrays_to_parameters([drawn]), WEIGHT, {})
        return Message(compat.fitres_to_recorddict(result, False), reply_to=message)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """One exchange with every site that is left."""
        self.exchange += 1
        replies: list[Message] = []
        for message in messages:
            number = message.metadata.dst_node_id
            if self.exchange >= 3 and number in self.lost:
                continue
            self.look()
            message.content = own_copy(message.content)
            start = time.process_time()
            reply = secaggplus_mod(message, self.contexts[number], self.trained)
            self.seconds += time.process_time() - start
            if tracemalloc.is_tracing():
                tracemalloc.reset_peak()
            elif not replies:
                self.up_bytes += len(recorddict_to_proto(reply.content).SerializeToString())
            replies.append(reply)
        self.look()
        return replies

    def look(self) -> None:
        """Note the most memory since the last site's turn."""
        if tracemalloc.is_tracing():
            self.most = max(self.most, tracemalloc.get_traced_memory()[1])


def measure(sites: int, numbers: int, lost: int) -> None:
    """One mean: seconds of a site and of the server, bytes, error."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 0
    grid = Grid(sites, numbers, lost)
    manager = SimpleClientManager()
    for number in grid.contexts:
        manager.register(Node(number))
    strategy = FedAvg(min_fit_clients=sites, min_available_clients=sites)
    context = LegacyContext(context_of(0), strategy=strategy, client_manager=manager)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord([np.zeros(numbers, np.float32)])
    colluding = max(1, -(-sites // 3) - 1)
    least = (sites + colluding) // 2 + 1
    workflow = SecAggPlusWorkflow(sites if sites > 2 else 1.0, min(least, sites - 1))
    traced = sys.argv[4:5] == ["memory"]
    if traced:
        tracemalloc.start()
    start = time.process_time()
    workflow(grid, context)  # type: ignore[arg-type]
    spent = time.process_time() - start
    extra: dict[str, object] = {}
    if traced:
        grid.look()
        tracemalloc.stop()
        extra["server_models"] = round(grid.most / (4 * numbers), 2)
    record = context.state.array_records[MAIN_PARAMS_RECORD]
    found = parameters_to_ndarrays(compat.arrayrecord_to_parameters(record, True))[0]
    assert np.any(found), "there is no mean"
    kept = [number - 1 for number in grid.contexts if number not in grid.lost]
    report(
        found.astype(np.float64), kept, numbers,
        library="Flower SecAgg+", version=metadata.version("flwr"),
        site_s=(grid.seconds - grid.drawing) / sites, server_s=spent - grid.seconds,
        up_bytes=None if traced else grid.up_bytes, **extra,
    )  # fmt: skip


if __name__ == "__main__":
    run(measure)
