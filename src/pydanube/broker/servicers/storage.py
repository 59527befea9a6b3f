"""StorageService: which segments a topic has, for tools that read them without a broker."""

from itertools import islice

from pydanube.storage.segments.catalog import SegmentEntry
from pydanube.topics.manager import TopicManager
from pydanube.wire.calls import Call, HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.services import serve

LISTED_MAX = 10_000
"""So that an answer fits into the 4 MiB that stock clients take."""


class StorageServicer:
    """Answers from the catalogue. A topic without segments has an empty list."""

    def __init__(self, topics: TopicManager) -> None:
        self._topics = topics

    def register(self, table: HandlerTable) -> None:
        """Serve the method of StorageService."""
        serve(table, services.LIST_SEGMENT_DESCRIPTORS, self.list_segment_descriptors)

    async def list_segment_descriptors(
        self, request: api.ListSegmentDescriptorsRequest, call: Call
    ) -> api.ListSegmentDescriptorsResponse:
        """List the segments that end behind an offset, in offset order.

        Clients name a topic with or without its leading slash. They ask for what comes after the
        last offset they have, and 0 stands for none: a first segment of one message is listed too.
        An answer has LISTED_MAX segments at most; whoever wants more asks after the last of them.
        """
        topic = self._topics.get("/" + request.topic.removeprefix("/"))
        segments = topic.log.segments if topic.log is not None else None
        entries = segments.entries() if segments is not None else ()
        after = request.after_offset
        wanted = (
            entry
            for entry in entries
            if not entry.is_lost and (after == 0 or entry.end - 1 > after)
        )
        return api.ListSegmentDescriptorsResponse(
            segments=[_descriptor(entry) for entry in islice(wanted, LISTED_MAX)]
        )


def _descriptor(entry: SegmentEntry) -> api.SegmentDescriptorProto:
    return api.SegmentDescriptorProto(
        segment_id=entry.key.rpartition("/")[2],
        start_offset=entry.base,
        # On this wire the end is the last offset, not the next one.
        end_offset=entry.end - 1,
        size=entry.bytes,
        etag=f"{entry.crc32c:08x}",
        created_at=entry.created_ms // 1000,
    )
