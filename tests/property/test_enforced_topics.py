"""An enforced topic never stores an invalid payload: every format, both APIs, across restarts."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydanube.model.batch import Batch
from pydanube.model.message import Message
from pydanube.model.schemas import TopicSchema
from pydanube.model.sequences import MessageSequence
from pydanube.registry.decisions import NewSchema
from pydanube.runtime.protobuf_compiler import ProcessProtobufCompiler
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.schemas.format import SchemaTools
from pydanube.topics import inspection
from pydanube.topics.errors import SchemaViolation
from tests.support.journals import instant_disk
from tests.support.served_topic import Answer, ServedTopic, message

AVRO = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
).encode()
JSON = json.dumps(
    {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
).encode()
PROTOBUF = b'syntax = "proto3"; message Order { string name = 1; int64 id = 2; }'

FORMATS: dict[str, tuple[bytes, tuple[bytes, ...], tuple[bytes, ...]]] = {
    "json_schema": (JSON, (b'{"id": 1}', b'{"id": 2, "x": []}'), (b'{"id": "1"}', b"{}", b"{")),
    "avro": (AVRO, (b"\x02", b"\x80\x01"), (b"", b"\x80", b"\x02\x02")),
    "protobuf": (PROTOBUF, (b"", b"\x10\x01", b"\x0a\x01a"), (b"\x0a\x05a", b"\x0a\x01\xff")),
    "string": (b"", (b"", b"text"), (b"\xff", b"a\x80")),
    "number": (b"", (b"1234", b"12345678"), (b"", b"123")),
}
"""A definition of each, payloads it describes, and payloads it does not."""

ID, STRANGER = 1, 2
"""Of the topic's subject, and of another one."""


class Sent:
    """A publish and what became of it."""

    def __init__(self, messages: list[Message], answer: Answer) -> None:
        self.messages = messages
        self.answer = answer


class World:
    """A strict topic over one disk, stopped and started again at will."""

    def __init__(self, kind: str) -> None:
        definition, self.good, self.bad = FORMATS[kind]
        self._new = NewSchema(subject="orders", schema_type=kind, definition=definition)
        self._disk: SimulatedDisk = instant_disk()
        self.sent: list[Sent] = []
        self._sequence = 0
        self.topic: ServedTopic

    async def start(self) -> None:
        self.topic = await ServedTopic.start(self._disk)
        registry = self.topic.schemas.registry
        registry._compiled._tools = COMPILER[0]
        assert (await registry.register(self._new)).schema_id == ID
        other = NewSchema(subject="other", schema_type="bytes", definition=b"")
        assert (await registry.register(other)).schema_id == STRANGER
        self.topic.topic.set_schema(
            TopicSchema(subject="orders", policy="enforce", validates_payloads=True)
        )

    async def restart(self) -> None:
        await asyncio.gather(*(each.answer.over for each in self.sent), return_exceptions=True)
        await self.topic.stop()
        await self.start()

    def is_valid(self, row: Message) -> bool:
        named = row.schema_id == ID and row.schema_version in (1, None)
        return named and row.payload in self.good

    def row(self, pick: tuple[bool, int, str]) -> Message:
        valid, index, mistake = pick
        payloads = self.good if valid else self.bad
        fields: dict[str, Any] = {"schema_id": ID, "schema_version": 1}
        fields |= MISTAKES[mistake]
        return message(payloads[index % len(payloads)], **fields)

    def send(self, pick: tuple[bool, int, str], *, numbered: bool) -> None:
        row = self.row(pick)
        number = None
        if numbered:
            number = MessageSequence(self._sequence, None, 7)
            self._sequence += 1
        self.sent.append(Sent([row], self.topic.send(row, number)))

    def put(self, picks: list[tuple[bool, int, str]]) -> None:
        rows = [self.row(pick) for pick in picks]
        self.sent.append(Sent(rows, self.topic.put(Batch.gather(rows))))

    async def judge(self) -> None:
        """Hold what is stored against what was sent, and against the answers."""
        expected: list[bytes] = []
        for each in self.sent:
            try:
                await each.answer.over
            except SchemaViolation:
                assert not all(self.is_valid(row) for row in each.messages)
                continue
            assert all(self.is_valid(row) for row in each.messages), "an invalid one was stored"
            expected += [row.payload for row in each.messages]
        stored = await self.topic.payloads()
        assert all(payload in self.good for payload in stored)
        assert sorted(stored) == sorted(expected)


COMPILER: list[Any] = []
MISTAKES: dict[str, dict[str, int | None]] = {
    "none": {},
    "no version": {"schema_version": None},
    "no schema": {"schema_id": None, "schema_version": None},
    "a stranger's": {"schema_id": STRANGER},
    "nobody's": {"schema_id": 99},
    "another version": {"schema_version": 2},
}

PICKS = st.tuples(
    st.booleans(),
    st.integers(0, 2),
    st.sampled_from(["none", "none", "none", "no version", *MISTAKES]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), PICKS),
        st.tuples(st.just("numbered"), PICKS),
        st.tuples(st.just("put"), st.lists(PICKS, min_size=1, max_size=4)),
        st.tuples(st.just("turn"), st.none()),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=12,
)


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    """Compile Protobuf once: what it costs is not what is tested here."""
    compiled = ProcessProtobufCompiler().compile(PROTOBUF.decode())

    class Remembered:
        def compile(self, text: str) -> bytes:
            return compiled

    COMPILER[:] = [SchemaTools(protobuf_compiler=Remembered())]


@pytest.mark.parametrize("kind", FORMATS)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS, at_once=st.booleans())
def test_an_enforced_topic_never_stores_an_invalid_payload(
    kind: str, monkeypatch: pytest.MonkeyPatch, steps: list[Any], at_once: bool
) -> None:
    monkeypatch.setattr(inspection, "AT_ONCE_BYTES_MAX", 2**20 if at_once else 0)

    async def live() -> None:
        world = World(kind)
        await world.start()
        try:
            for step, what in steps:
                match step:
                    case "send":
                        world.send(what, numbered=False)
                    case "numbered":
                        world.send(what, numbered=True)
                    case "put":
                        world.put(what)
                    case "turn":
                        await asyncio.sleep(0)
                    case "restart":
                        await world.restart()
            await world.judge()
        finally:
            await world.topic.stop()

    asyncio.run(live())


def test_the_law_speaks_when_validation_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "find_violations", lambda rows, faults, validators: [])

    async def live() -> None:
        world = World("string")
        await world.start()
        try:
            world.send((False, 0, "none"), numbered=False)
            with pytest.raises(AssertionError, match="an invalid one was stored"):
                await world.judge()
        finally:
            await world.topic.stop()

    asyncio.run(live())
