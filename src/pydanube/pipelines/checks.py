"""Whether a flow may go on from what its checkpoint and its sink hold."""

from msgspec import Struct, structs

from pydanube.pipelines.errors import FlowRefused
from pydanube.pipelines.flow_files import FlowFiles, FlowRecord
from pydanube.pipelines.graph import Flow
from pydanube.pipelines.identity import FlowIdentity, changes
from pydanube.pipelines.lakes import LastBatch
from pydanube.pipelines.sinks.catalog import kind_of

NEW = "--new-checkpoint"
FROM_SINK = "--from-sink"


class Beginning(Struct, frozen=True, kw_only=True):
    """How a run treats what earlier runs left behind."""

    new_checkpoint: bool = False
    from_sink: bool = False


def find_refusal(flow: Flow, files: FlowFiles, identity: FlowIdentity) -> str | None:
    """Return why a flow may not simply go on, with the ways out; None if it may."""
    record = files.record()
    query = files.query_id()
    if record is not None and record.query is not None and query != record.query:
        return (
            f"the checkpoint {files.checkpoint} is gone, or another one, since query "
            f"{record.query} wrote to {flow.sink.target}. "
            f"{_ways_out(flow, stateful=_state(identity))}"
        )
    if record is not None and query is not None and record.hash != identity.hash:
        found = changes(record.identity, identity)
        if found:
            return (
                f"{'; '.join(found)}: the checkpoint {files.checkpoint} does not fit any more. "
                f"Take the change back, or: {_ways_out(flow, stateful=_state(identity))}"
            )
    stands = table_says(flow)
    known = {query, record.follows if record is not None else None}
    if stands is not None and stands.query not in known:
        return (
            f"the table {flow.sink.target} has batch {stands.number} of another query of this "
            f"flow, {stands.query}: its checkpoint is lost, and batches counted anew would be "
            f"taken for old ones or repeated. {_ways_out(flow, stateful=_state(identity))}"
        )
    return None


def begin(
    flow: Flow, files: FlowFiles, identity: FlowIdentity, how: Beginning, now_ms: int
) -> FlowRecord:
    """Return what the flow starts from, noted beside the checkpoint; FlowRefused says why not."""
    if how.from_sink and not how.new_checkpoint:
        raise FlowRefused(f"{FROM_SINK} begins a new checkpoint: add {NEW}")
    if how.new_checkpoint:
        return _begin_anew(flow, files, identity, how, now_ms)
    refusal = find_refusal(flow, files, identity)
    if refusal is not None:
        raise FlowRefused(f"{flow.name}: {refusal}")
    before = files.record()
    record = FlowRecord(identity=identity, hash=identity.hash, query=files.query_id())
    if before is not None:
        record = structs.replace(
            record, starts=before.starts, follows=before.follows, begins=before.begins
        )
    files.note(record)
    return record


def table_says(flow: Flow) -> LastBatch | None:
    """Return what the sink's table says about this flow."""
    lake = kind_of(flow.sink).table(flow.sink)
    return None if lake is None else lake.last_batch(flow.name)


def _begin_anew(
    flow: Flow, files: FlowFiles, identity: FlowIdentity, how: Beginning, now_ms: int
) -> FlowRecord:
    stands = table_says(flow)
    starts: dict[str, dict[str, int]] = {}
    if how.from_sink:
        if stands is None:
            raise FlowRefused(
                f"{flow.name}: {flow.sink.target} does not say how far the flow was; only a Delta "
                f"or Iceberg table that it wrote does. Without {FROM_SINK} it starts as its "
                "sources say"
            )
        if _state(identity):
            raise FlowRefused(
                f"{flow.name}: it keeps state, which no sink holds; begin with {NEW} alone and an "
                "empty sink, so that everything is computed again"
            )
        starts = stands.offsets
        missing = [name for name in flow.streams if name not in starts]
        if missing:
            raise FlowRefused(
                f"{flow.name}: {flow.sink.target} says nothing about {', '.join(missing)}"
            )
    before = files.record()
    begins = before.begins if how.from_sink and before is not None else {}
    files.set_aside(f"before-{now_ms}")
    record = FlowRecord(
        identity=identity,
        hash=identity.hash,
        starts=starts,
        begins=begins,
        follows=stands.query if stands is not None else None,
    )
    files.note(record)
    return record


def _ways_out(flow: Flow, *, stateful: bool) -> str:
    anew = f"`run {NEW}` starts as the sources say, and may repeat what {flow.sink.target} has"
    if not kind_of(flow.sink).is_table or stateful:
        return f"Bring the checkpoint back, or begin anew: {anew}"
    return (
        f"Bring the checkpoint back, or begin anew: `run {NEW} {FROM_SINK}` goes on where "
        f"{flow.sink.target} ends; {anew}"
    )


def _state(identity: FlowIdentity) -> bool:
    return identity.shuffle_partitions is not None
