"""What brokers ask of each other's journals: the paths, the bytes, and the errors."""

from collections.abc import Iterable, Sequence
from typing import cast

from msgspec import Struct

from pydanube.errors import Conflict, DanubeError, InvalidRequest, Overloaded, Unavailable
from pydanube.model.ids import BrokerId, Offset, SubscriptionId, TopicId
from pydanube.model.progress import Progress
from pydanube.storage.errors import Fenced
from pydanube.storage.journal.producers import LastBatch, decode_producers, encode_producers
from pydanube.storage.journal.records import decode_progress, encode_progress
from pydanube.storage.mirrors.mirror_logs import Holding, Outcome, Section, SectionAnswer, Whole
from pydanube.storage.mirrors.stream import Record
from pydanube.wire.calls import CallRefused, StatusCode

BEGIN = "/pydanube.Mirrors/Begin"
APPEND = "/pydanube.Mirrors/Append"
FENCE = "/pydanube.Mirrors/Fence"
FETCH = "/pydanube.Mirrors/Fetch"


class Envelope(Struct, frozen=True, array_like=True):
    """Who writes to whom, and of which cluster they are."""

    cluster: str
    sender: int
    to: int


class WireWhole(Struct, frozen=True, array_like=True):
    """A `Whole`; producers and progress as the journal writes them."""

    sequence: int
    producers: list[bytes]
    progress: list[bytes]


class WireSection(Struct, frozen=True, array_like=True):
    """A `Section`; each record is its kind, its flags and the parts of its payload."""

    topic_id: int
    epoch: int
    stream: int
    before: int | None
    records: list[tuple[int, int, list[bytes]]]
    whole: WireWhole | None


class BeginCall(Struct, frozen=True, array_like=True):
    """Become a mirror."""

    envelope: Envelope
    topic: str
    topic_id: int
    epoch: int
    stream: int
    start: int
    whole: WireWhole | None


class WireHolding(Struct, frozen=True, array_like=True):
    """A `Holding`."""

    promised: int
    epoch: int
    stream: int
    sequence: int | None
    start: int
    end: int


class AppendCall(Struct, frozen=True, array_like=True):
    """Journal these."""

    envelope: Envelope
    sections: list[WireSection]


class AppendReply(Struct, frozen=True, array_like=True):
    """For each section what became of it, the latest epoch, the sequence and the end."""

    answers: list[tuple[str, int, int | None, int]]


class FenceCall(Struct, frozen=True, array_like=True):
    """Promise to take nothing of an earlier epoch, and tell what there is."""

    envelope: Envelope
    topic_id: int
    epoch: int
    subscriptions: list[int]


class FenceReply(Struct, frozen=True, array_like=True):
    """What there is."""

    holding: WireHolding
    producers: list[bytes]
    progress: list[bytes]


class FetchCall(Struct, frozen=True, array_like=True):
    """Give batches of an epoch from an offset on."""

    envelope: Envelope
    topic_id: int
    epoch: int
    start: int


class FetchReply(Struct, frozen=True, array_like=True):
    """BATCH payloads in order; none: there are no more."""

    payloads: list[bytes]


def wire_whole(topic_id: TopicId, whole: Whole) -> WireWhole:
    """Return a `Whole` as it is sent."""
    return WireWhole(
        whole.sequence,
        producers_bytes(topic_id, whole.producers),
        progress_bytes(whole.progress.items()),
    )


def producers_bytes(topic_id: TopicId, producers: Iterable[LastBatch]) -> list[bytes]:
    """Return the latest batches of a topic's producers as they are sent."""
    return list(encode_producers({topic_id: {last.stamp.producer_id: last for last in producers}}))


def progress_bytes(progress: Iterable[tuple[SubscriptionId, Progress]]) -> list[bytes]:
    """Return the progress of subscriptions as it is sent."""
    return [encode_progress(subscription_id, whole) for subscription_id, whole in progress]


def read_producers(payloads: Iterable[bytes]) -> tuple[LastBatch, ...]:
    """Read what `producers_bytes` wrote."""
    return tuple(last for payload in payloads for _, last in decode_producers(payload))


def read_progress(payloads: Iterable[bytes]) -> dict[SubscriptionId, Progress]:
    """Read what `progress_bytes` wrote."""
    decoded = map(decode_progress, payloads)
    return {subscription_id: progress for subscription_id, progress, _ in decoded}


def read_whole(sent: WireWhole) -> Whole:
    """Return the `Whole` that was sent."""
    return Whole(
        sequence=sent.sequence,
        producers=read_producers(sent.producers),
        progress=read_progress(sent.progress),
    )


def wire_section(section: Section) -> WireSection:
    """Return a section as it is sent."""
    return WireSection(
        section.topic_id,
        section.epoch,
        section.stream,
        section.before,
        # Views are sent as bytes are.
        [(each.kind, each.flags, cast(list[bytes], list(each.parts))) for each in section.records],
        wire_whole(section.topic_id, section.whole) if section.whole is not None else None,
    )


def read_section(sent: WireSection) -> Section:
    """Return the section that was sent."""
    return Section(
        topic_id=TopicId(sent.topic_id),
        epoch=sent.epoch,
        stream=sent.stream,
        before=sent.before,
        records=[Record(kind, flags, tuple(parts)) for kind, flags, parts in sent.records],
        whole=read_whole(sent.whole) if sent.whole is not None else None,
    )


def wire_holding(holding: Holding) -> WireHolding:
    """Return a holding as it is sent."""
    return WireHolding(
        holding.promised,
        holding.epoch,
        holding.stream,
        holding.sequence,
        holding.start,
        holding.end,
    )


def read_holding(sent: WireHolding) -> Holding:
    """Return the holding that was sent."""
    return Holding(
        promised=sent.promised,
        epoch=sent.epoch,
        stream=sent.stream,
        sequence=sent.sequence,
        start=Offset(sent.start),
        end=Offset(sent.end),
    )


def wire_answers(answers: Sequence[SectionAnswer]) -> AppendReply:
    """Return the answers to sections as they are sent."""
    return AppendReply([(a.outcome.value, a.epoch, a.sequence, a.end) for a in answers])


def read_answers(reply: AppendReply) -> list[SectionAnswer]:
    """Return the answers that were sent."""
    return [
        SectionAnswer(outcome=Outcome(outcome), epoch=epoch, sequence=sequence, end=Offset(end))
        for outcome, epoch, sequence, end in reply.answers
    ]


_CODES: tuple[tuple[type[DanubeError], StatusCode], ...] = (
    (Fenced, StatusCode.ABORTED),
    (Overloaded, StatusCode.RESOURCE_EXHAUSTED),
    (InvalidRequest, StatusCode.INVALID_ARGUMENT),
    (Conflict, StatusCode.FAILED_PRECONDITION),
)


def refusal(error: DanubeError) -> CallRefused:
    """Return an error as a call tells it."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return CallRefused(code, str(error))
    return CallRefused(StatusCode.UNAVAILABLE, str(error))


def error_of(broker: BrokerId, refused: CallRefused) -> DanubeError:
    """Return the error that a call to a broker told."""
    text = f"broker {broker}: {refused.text}"
    for kind, code in _CODES:
        if refused.code == code:
            return kind(text)
    return Unavailable(text)
