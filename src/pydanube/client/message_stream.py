"""Single messages out of the batches of one topic or partition, where its broker gives batches."""

from collections.abc import Callable
from typing import Any, Generic

import pyarrow as pa
from typing_extensions import override

from pydanube.client.batch_consumer import CREDIT_ROWS, BatchConsumer, DeliveredBatch
from pydanube.client.brokers import Brokers
from pydanube.client.codecs import Codec, Value
from pydanube.client.connection import Subscription
from pydanube.client.credit import CreditWindow
from pydanube.client.message import MessageId, ReceivedMessage
from pydanube.errors import Unavailable
from pydanube.model.batch import SCHEMA, payloads_of
from pydanube.model.ids import stable_producer_id
from pydanube.wire.danube.convert import DELIVERY_ATTEMPT_ATTRIBUTE
from pydanube.wire.danube.marks import marked_address

FIRST_CREDIT_ROWS = 100
"""Before it is known how fast messages are taken: as many as waited without batches."""
LEAST_CREDIT_ROWS = 10


class MessageStream(BatchConsumer, Generic[Value]):
    """Receives batches and hands over their messages; their acks go out as ranges."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        subscription: Subscription,
        codec: Codec[Value],
        take: Callable[[ReceivedMessage[Value]], None],
    ) -> None:
        window = CreditWindow(FIRST_CREDIT_ROWS, LEAST_CREDIT_ROWS, CREDIT_ROWS)
        super().__init__(brokers, topic, subscription, None, window)
        self._codec = codec
        self._take = take

    @override
    async def run(self) -> None:
        try:
            await super().run()
        finally:
            # Whoever waits finds another way: the marks hold on every connection.
            self._give_up(Unavailable(f"{self.topic} is not received any more"))

    @override
    def _hand_over(self, batch: DeliveredBatch) -> None:
        for message in messages_of(batch, self._connection.address.broker_url, self._codec):
            self._take(message)

    def drop_unread(self, rows: int) -> None:
        """Take note that so many messages are not going to be taken."""
        self._untaken_rows -= rows


def messages_of(
    batch: DeliveredBatch, broker_url: str, codec: Codec[Value]
) -> list[ReceivedMessage[Value]]:
    """Return the rows of a batch as they would come one by one."""
    columns = batch.rows
    address = broker_url if batch.mark is None else marked_address(broker_url, batch.mark)
    topic, attempt = batch.topic, batch.attempt
    ids: dict[str, int] = {}
    messages: list[ReceivedMessage[Value]] = []
    rows = zip(
        payloads_of(columns),
        _values(columns, "publish_time"),
        _values(columns, "producer_name"),
        _values(columns, "routing_key"),
        _values(columns, "attributes"),
        _values(columns, "schema_id"),
        _values(columns, "schema_version"),
        strict=True,
    )
    for offset, (payload, time, name, key, pairs, schema, version) in enumerate(rows, batch.offset):
        if name not in ids:
            ids[name] = stable_producer_id(topic, name)
        attributes = dict(pairs) if pairs else {}
        if attempt > 1:
            attributes[DELIVERY_ATTEMPT_ATTRIBUTE] = str(attempt)
        messages.append(
            ReceivedMessage(
                message_id=MessageId(ids[name], topic, address, offset),
                request_id=0,
                payload=payload,
                publish_time_ms=time,
                producer_name=name,
                routing_key=key,
                attributes=attributes,
                schema_id=schema,
                schema_version=version,
                codec=codec,
            )
        )
    return messages


def _values(columns: pa.RecordBatch, name: str) -> list[Any]:
    # Any: each column has a type of its own.
    column = columns.column(SCHEMA.get_field_index(name))
    if column.null_count == len(column):
        return [None] * len(column)
    values: list[Any] = column.to_pylist()
    return values
