"""How runs are known to everybody: each says how its flows are doing on a topic of the brokers."""

import logging
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from msgspec import Struct, structs

from pydanube.errors import DanubeError
from pydanube.pipelines.reports import FlowStatus
from pydanube.runtime.blocking import host_name, process_id
from pydanube.runtime.clock import Clock
from pydanube.spark.brokers import Brokers, Patience
from pydanube.spark.options import Access, Selection
from pydanube.spark.sink.publishing import completed
from pydanube.spark.source.topics import Topics
from pydanube.wire.flight.blocking import BlockingFlight
from pydanube.wire.flight.descriptors import PublishCommand, Ticket

PIPELINES_TOPIC = "/system/pipelines"
EVERY_MS = 10_000
"""A flow whose state stays the same speaks so often."""
SILENT_AFTER_MS = 60_000
"""A flow that runs and has said nothing for so long may be gone."""
QUIET_AFTER_FAILURE_MS = 30_000
ANNOUNCEMENTS_LOOKED_AT_MAX = 10_000

_SHORT = Patience(give_up_seconds=2.0)
"""A topic that another broker creates or serves is found by then; a run does not wait for long."""
_RUNNING = ("STARTING", "RUNNING", "RESTARTING")
_log = logging.getLogger("pydanube.pipelines")


class Announcement(Struct, frozen=True, kw_only=True):
    """What a message on the topic holds, as JSON; its key is pipeline/flow."""

    status: FlowStatus
    at_ms: int
    host: str
    process: int


class Announcer:
    """Tells the topic about the flows of one run. It is a mirror: failures are only logged."""

    def __init__(self, access: Access, clock: Clock) -> None:
        self._brokers = Brokers(access, _SHORT)
        self._clock = clock
        self._told: dict[str, tuple[str, int]] = {}
        self._quiet_until_ms = 0

    def tell(self, statuses: Sequence[FlowStatus]) -> None:
        """Publish what is news: another state, or the same for a while."""
        now_ms = self._clock.now_ms()
        news = [each for each in statuses if self._is_due(each, now_ms)]
        if not news or now_ms < self._quiet_until_ms:
            return
        try:
            # Twice does no harm: the last word counts.
            self._brokers.call(lambda broker: _publish(broker, news, now_ms), PIPELINES_TOPIC)
        except DanubeError as error:
            self._quiet_until_ms = now_ms + QUIET_AFTER_FAILURE_MS
            _log.warning("could not report the run to %s: %s", PIPELINES_TOPIC, error)
            return
        for each in news:
            self._told[each.flow] = (each.state, now_ms)

    def _is_due(self, status: FlowStatus, now_ms: int) -> bool:
        state, told_ms = self._told.get(status.flow, ("", 0))
        return state != status.state or (status.state in _RUNNING and now_ms >= told_ms + EVERY_MS)


def announced(access: Access, now_ms: int, patience: Patience) -> list[FlowStatus]:
    """Return what flows said last; one that runs and is silent for long says so."""
    brokers = Brokers(access, patience)
    states = Topics(brokers, Selection(names=(PIPELINES_TOPIC,))).states()
    if PIPELINES_TOPIC not in states:
        return []
    end = states[PIPELINES_TOPIC].frontier
    start = max(states[PIPELINES_TOPIC].earliest, end - ANNOUNCEMENTS_LOOKED_AT_MAX)
    if start >= end:
        return []
    ticket = Ticket(topic=PIPELINES_TOPIC, from_=start, to=end)
    last: dict[str, Announcement] = {}
    for _, rows in brokers.stream(lambda broker: broker.get(ticket), PIPELINES_TOPIC):
        for payload in rows.column("payload").to_pylist():
            found = _read(payload)
            if found is not None:
                last[f"{found.status.pipeline}/{found.status.flow}"] = found
    return [_judged(last[name], now_ms) for name in sorted(last)]


def _read(payload: bytes) -> Announcement | None:
    try:
        return msgspec.json.decode(payload, type=Announcement)
    except msgspec.MsgspecError:
        return None  # Anybody may publish here; what is not ours says nothing.


def _judged(found: Announcement, now_ms: int) -> FlowStatus:
    silent_ms = now_ms - found.at_ms
    if found.status.state not in _RUNNING or silent_ms < SILENT_AFTER_MS:
        return found.status
    words = (
        f"process {found.process} on {found.host} has said nothing for {silent_ms // 1000} s; "
        "look there"
    )
    return structs.replace(found.status, error=words)


def _publish(broker: BlockingFlight, news: Sequence[FlowStatus], now_ms: int) -> None:
    said = [
        Announcement(status=each, at_ms=now_ms, host=host_name(), process=process_id())
        for each in news
    ]
    rows = pa.RecordBatch.from_pydict(
        {
            "payload": pa.array([msgspec.json.encode(each) for each in said], pa.binary()),
            "routing_key": [f"{each.pipeline}/{each.flow}" for each in news],
        }
    )
    producer = f"pipeline-{news[0].pipeline}"
    whole = completed(rows, producer, now_ms)
    put = broker.put(PublishCommand(topic=PIPELINES_TOPIC, producer=producer), whole.schema)
    put.write(whole, None)
    put.answer()
    put.close()
