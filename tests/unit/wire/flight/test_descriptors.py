"""What calls are about: JSON with nothing unknown in it, and short forms for topics."""

import json

import pytest

from pydanube.errors import InvalidRequest
from pydanube.wire.flight import descriptors
from pydanube.wire.flight.descriptors import (
    BatchNumbers,
    ConsumerSays,
    Delivered,
    PlanCommand,
    PublishCommand,
    PutAnswer,
    SubscribeCommand,
    Ticket,
)
from pydanube.wire.flight.framing import COMMAND, PATH, Descriptor

TOPIC = "/default/orders"


def command(**fields):
    return Descriptor(COMMAND, json.dumps(fields).encode())


def test_a_path_of_one_name_is_a_command_of_that_topic():
    path = Descriptor(PATH, path=(TOPIC,))
    assert descriptors.command_of(PublishCommand, path, "publish") == PublishCommand(topic=TOPIC)
    assert descriptors.command_of(PlanCommand, path, "plan") == PlanCommand(topic=TOPIC)


@pytest.mark.parametrize(
    "descriptor",
    [
        Descriptor(0),
        Descriptor(7, command=b"{}"),
        Descriptor(PATH),
        Descriptor(PATH, path=("default", "orders")),
        Descriptor(COMMAND, command=b""),
        Descriptor(COMMAND, command=b"[]"),
        Descriptor(COMMAND, command=b'{"topic": 5}'),
        Descriptor(COMMAND, command=b"\xff"),
    ],
)
def test_other_descriptors_are_refused_with_what_is_wanted(descriptor):
    with pytest.raises(InvalidRequest, match="JSON object"):
        descriptors.command_of(PublishCommand, descriptor, "publish")


def test_a_path_is_not_enough_to_subscribe():
    with pytest.raises(InvalidRequest, match=r"command is a JSON object.*subscription"):
        descriptors.command_of(SubscribeCommand, Descriptor(PATH, path=(TOPIC,)), "subscribe")


def test_a_field_nobody_knows_is_refused_by_name():
    with pytest.raises(InvalidRequest, match="colour"):
        descriptors.command_of(PublishCommand, command(topic=TOPIC, colour="red"), "publish")
    with pytest.raises(InvalidRequest, match="colour"):
        descriptors.decode_metadata(ConsumerSays, b'{"colour": 1}', "it")


def test_a_ticket_is_a_name_or_an_object():
    assert descriptors.ticket_of(TOPIC.encode()) == Ticket(topic=TOPIC)
    whole = Ticket(topic=TOPIC, id="7", from_=3, to=9, missing="skip")
    assert descriptors.ticket_of(descriptors.encode(whole)) == whole
    assert json.loads(descriptors.encode(whole))["from"] == 3
    with pytest.raises(InvalidRequest, match="neither"):
        descriptors.ticket_of(b"\xff")


def test_no_metadata_says_nothing():
    assert descriptors.decode_metadata(BatchNumbers, b"", "it") == BatchNumbers()
    assert descriptors.decode_metadata(ConsumerSays, b"", "it") == ConsumerSays()


def test_what_is_sent_is_short():
    assert descriptors.encode(Delivered(offset=5, attempt=1)) == b'{"offset":5,"attempt":1}'
    assert descriptors.encode(Delivered(attempt=1)) == b'{"attempt":1}'
    answer = PutAnswer(result="applied", rows=3, offset=9)
    assert descriptors.encode(answer) == b'{"result":"applied","rows":3,"offset":9}'


@pytest.mark.parametrize(
    "said",
    [
        {"ack": [[0, 2**63]]},
        {"ack": [[0]]},
        {"ack": [[0, 1]] * 10_001},
        {"ack": [[0.5, 1]]},
        {"credit": 10**7},
        {"ack_until": "latest"},
        {"id": -1},
    ],
)
def test_numbers_out_of_bounds_are_refused(said):
    with pytest.raises(InvalidRequest, match="JSON object"):
        descriptors.decode_metadata(ConsumerSays, json.dumps(said).encode(), "it")
