"""What is framed by hand is what protobuf and pyarrow frame, and hostile bytes are refused."""

import contextlib
from itertools import pairwise

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydanube.errors import InvalidRequest
from pydanube.wire.calls import whole
from pydanube.wire.flight import framing
from pydanube.wire.memory import allocate
from tests.support.flight_messages import MESSAGES

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
BYTES = st.binary(max_size=300)
DESCRIPTORS = st.one_of(
    st.builds(framing.Descriptor, st.just(framing.PATH), path=st.lists(TEXTS).map(tuple)),
    st.builds(framing.Descriptor, st.just(framing.COMMAND), command=BYTES),
)
ENDPOINTS = st.builds(
    framing.Endpoint, ticket=BYTES, locations=st.lists(TEXTS, max_size=2), app_metadata=BYTES
)
SCHEMA = pa.schema([("payload", pa.binary())])
INFOS = st.builds(
    framing.FlightInfo,
    schema=st.just(SCHEMA.serialize().to_pybytes()),
    descriptor=DESCRIPTORS,
    endpoints=st.lists(ENDPOINTS, max_size=3),
    total_records=st.integers(-1, 2**63 - 1),
    total_bytes=st.integers(-1, 2**63 - 1),
    ordered=st.booleans(),
    app_metadata=BYTES,
)


@given(st.none() | DESCRIPTORS, BYTES, BYTES, BYTES, st.lists(st.integers(0, 2**16), max_size=4))
def test_flight_data_is_read_as_protobuf_wrote_it(descriptor, header, app_metadata, body, cuts):
    written = MESSAGES["FlightData"](data_header=header, app_metadata=app_metadata, data_body=body)
    if descriptor is not None:
        written.flight_descriptor.MergeFromString(framing.write_descriptor(descriptor))
        written.flight_descriptor.SetInParent()
    message = written.SerializeToString()
    edges = sorted(cut % (len(message) + 1) for cut in cuts)
    parts = tuple(message[low:high] for low, high in pairwise([0, *edges, len(message)]))
    read = framing.read_flight_data(parts if cuts else message)
    assert (read.header, read.app_metadata, whole(read.body)) == (header, app_metadata, body)
    assert (read.descriptor is None) == (descriptor is None)
    if read.descriptor is not None:
        assert framing.read_descriptor(read.descriptor) == descriptor


def test_fields_behind_the_body_are_no_part_of_it_wherever_the_message_is_cut():
    message = b"".join(
        (
            framing.bytes_field(2, b"header"),
            framing.bytes_field(1000, b"body"),
            framing.bytes_field(3, b"metadata"),
        )
    )
    for cut in range(1, len(message)):
        read = framing.read_flight_data((message[:cut], message[cut:]))
        assert (read.header, read.app_metadata, whole(read.body)) == (
            b"header",
            b"metadata",
            b"body",
        )


@given(st.integers(0, 70), BYTES, BYTES)
def test_an_ipc_message_survives_being_sent_and_put_together_again(padded_words, body, metadata):
    header = bytes(range(8)) * padded_words
    message = framing.encapsulate(memoryview(header), (body,))
    sent = whole(framing.flight_data(message, metadata))
    judged = MESSAGES["FlightData"].FromString(sent)
    assert (judged.data_header, judged.data_body, judged.app_metadata) == (header, body, metadata)
    read = framing.read_flight_data(sent)
    assert framing.encapsulate(read.header, read.body) == message


@given(st.none() | st.just(b"descriptor"), st.binary(max_size=80), BYTES, st.binary(max_size=80))
def test_a_message_in_memory_of_its_own_becomes_what_is_stored_within_it(
    descriptor, header, metadata, body
):
    message = b"".join(
        (
            framing.bytes_field(1, descriptor or b""),
            framing.bytes_field(2, header),
            framing.bytes_field(3, metadata),
            framing.bytes_field(1000, body),
        )
    )
    memory = allocate(len(message))
    memory[:] = message
    read = framing.read_flight_data((memory,))
    assert (read.header, read.app_metadata, whole(read.body)) == (header, metadata, body)
    stored = framing.encapsulate(read.header, read.body)
    assert stored == framing.encapsulate(memoryview(header), (body,))
    if body and len(body) % 8 == 0:
        assert pa.py_buffer(stored[len(stored) - len(body) :]).address % 8 == 0
        assert stored.obj is memory.obj
        assert stored.readonly


@given(st.binary(min_size=1, max_size=16), st.binary(min_size=1, max_size=16), st.integers(0, 60))
def test_of_two_bodies_the_last_counts(first, last, cut):
    message = b"".join(
        (
            framing.bytes_field(1000, first),
            framing.bytes_field(2, b"a header"),
            framing.bytes_field(1000, last),
        )
    )
    memory = allocate(len(message))
    memory[:] = message
    at = min(cut, len(message) - 1)
    for body in (message, (message[:at], message[at:]), (memory,)):
        read = framing.read_flight_data(body)
        assert whole(read.body) == last
        assert framing.encapsulate(read.header, read.body)[16:] == last


@given(st.binary(max_size=40))
def test_a_header_of_any_length_is_padded_to_eight_bytes(header):
    message = framing.encapsulate(memoryview(header), (b"bo", b"dy"))
    assert message[:4] == b"\xff" * 4
    length = int.from_bytes(message[4:8], "little")
    assert length % 8 == 0
    assert message[8 : 8 + length] == header + bytes(length - len(header))
    assert message[8 + length :] == b"body"


@given(DESCRIPTORS)
def test_descriptors_have_the_bytes_pyarrow_gives_them(descriptor):
    if descriptor.kind == framing.PATH:
        theirs = flight.FlightDescriptor.for_path(*descriptor.path)
    else:
        theirs = flight.FlightDescriptor.for_command(descriptor.command)
    assert framing.write_descriptor(descriptor) == theirs.serialize()
    assert framing.read_descriptor(theirs.serialize()) == descriptor


@given(BYTES, TEXTS)
def test_tickets_actions_and_criteria_are_read_as_pyarrow_wrote_them(body, name):
    assert framing.read_ticket(flight.Ticket(body).serialize()) == body
    assert framing.read_action(flight.Action(name, body).serialize()) == (name, body)
    criteria = MESSAGES["Criteria"](expression=body).SerializeToString()
    assert framing.read_criteria(criteria) == body


@given(INFOS)
@example(framing.FlightInfo(schema=b"", descriptor=framing.Descriptor(0), endpoints=()))
def test_a_flight_info_is_what_protobuf_reads(info):
    judged = MESSAGES["FlightInfo"].FromString(framing.write_flight_info(info))
    assert (judged.schema, judged.total_records) == (info.schema, info.total_records)
    assert (judged.total_bytes, judged.ordered) == (info.total_bytes, info.ordered)
    assert judged.app_metadata == info.app_metadata
    assert tuple(judged.flight_descriptor.path) == info.descriptor.path
    assert judged.flight_descriptor.cmd == info.descriptor.command
    assert [
        (each.ticket.ticket, [place.uri for place in each.location], each.app_metadata)
        for each in judged.endpoint
    ] == [(each.ticket, list(each.locations), each.app_metadata) for each in info.endpoints]


@given(st.lists(BYTES, max_size=3), st.integers(-1, 2**63 - 1))
def test_a_flight_info_is_what_pyarrow_reads(tickets, rows):
    info = framing.FlightInfo(
        schema=SCHEMA.serialize().to_pybytes(),
        descriptor=framing.Descriptor(framing.PATH, path=("/default/orders",)),
        endpoints=[
            framing.Endpoint(ticket=ticket, locations=["grpc+tcp://h:1"]) for ticket in tickets
        ],
        total_records=rows,
        total_bytes=rows,
        app_metadata=b"{}",
    )
    theirs = flight.FlightInfo.deserialize(framing.write_flight_info(info))
    assert theirs.schema == SCHEMA
    assert theirs.descriptor == flight.FlightDescriptor.for_path("/default/orders")
    assert [each.ticket.ticket for each in theirs.endpoints] == tickets
    assert (theirs.total_records, theirs.total_bytes) == (rows, rows)
    assert theirs.app_metadata == b"{}"


@given(BYTES, TEXTS, TEXTS)
def test_small_messages_are_what_protobuf_reads(body, name, description):
    assert MESSAGES["PutResult"].FromString(framing.write_put_result(body)).app_metadata == body
    assert MESSAGES["Result"].FromString(framing.write_result(body)).body == body
    assert MESSAGES["SchemaResult"].FromString(framing.write_schema_result(body)).schema == body
    assert MESSAGES["FlightData"].FromString(framing.metadata_only(body)).app_metadata == body
    judged = MESSAGES["ActionType"].FromString(framing.write_action_type(name, description))
    assert (judged.type, judged.description) == (name, description)


@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), BYTES), max_size=4), BYTES)
def test_fields_of_a_later_version_are_skipped(unknown, body):
    extra = b"".join(framing.bytes_field(number, value) for number, value in unknown)
    extra += framing.number_field(77, -1) + b"\x99\x06" + bytes(8) + b"\x9d\x06" + bytes(4)
    known = {1, 2, 3, 1000}
    expected = body if not any(number in known for number, _ in unknown) else None
    read = framing.read_flight_data(extra + framing.metadata_only(body))
    if expected is not None:
        assert read.app_metadata == body


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_are_read_or_refused(data, cut):
    for read in (
        framing.read_descriptor,
        framing.read_ticket,
        framing.read_action,
        framing.read_criteria,
    ):
        with contextlib.suppress(InvalidRequest):
            assert read(data) is not None
    assert flight_data_of(data) == flight_data_of((data[:cut], data[cut:]))


def flight_data_of(message):
    """Return what a message says, or None if it is refused."""
    try:
        read = framing.read_flight_data(message)
    except InvalidRequest:
        return None
    return read.descriptor, bytes(read.header), read.app_metadata, whole(read.body)


@given(BYTES, BYTES, st.data())
def test_a_cut_message_is_refused_and_never_read_as_another(header, body, data):
    whole = MESSAGES["FlightData"](data_header=header + b"h", data_body=body + b"b")
    message = whole.SerializeToString()
    cut = data.draw(st.integers(1, len(message) - 1))
    first_field = len(framing.bytes_field(2, header + b"h"))
    if cut == first_field:
        return
    with pytest.raises(InvalidRequest):
        framing.read_flight_data(message[:cut])
