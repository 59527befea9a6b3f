"""What topics refuse."""

from pydanube.errors import AccessDenied, AlreadyExists, Conflict, InvalidRequest, Overloaded


class DispatchMismatch(Conflict):
    """A producer asks for another dispatch strategy than the topic has."""

    code = "dispatch_mismatch"


class SchemaMismatch(Conflict):
    """A producer names a schema subject that does not exist or is not the topic's."""

    code = "schema_mismatch"


class TopicExists(AlreadyExists):
    """The topic, or one whose name excludes it, is there already."""

    code = "topic_exists"


class ProducerExcluded(AlreadyExists):
    """A producer has, or wants, the topic for itself."""

    code = "producer_excluded"


class TooManyProducers(Overloaded):
    """The topic has as many live producers as its policy allows."""

    code = "too_many_producers"


class TooManyConsumers(Overloaded):
    """The topic has as many live consumers as its policy allows."""

    code = "too_many_consumers"


class SubscriptionLimit(AccessDenied):
    """A subscription, or one more consumer of it, exceeds the policy."""

    code = "subscription_limit"


class MessageTooLarge(InvalidRequest):
    """The payload exceeds the policy."""

    code = "message_too_large"


class SchemaViolation(InvalidRequest):
    """A message names another schema than its topic takes, or its payload is not what it says."""

    code = "schema_violation"


class SinkNotDeterministic(InvalidRequest):
    """A batch has the sequences of an earlier one, and other contents."""

    code = "sink_not_deterministic"


class SequencesUnknown(Conflict):
    """A message continues a session that the topic does not know, or no longer.

    Nothing of the session can be told from its repetition any more: begin another one.
    """

    code = "sequences_unknown"
    # Our own client knows it by this; whoever else sends sequences must not repeat it for ever.
    wire_status = "OUT_OF_RANGE"


class TooManySequences(Overloaded):
    """The topic remembers the sequences of as many producers as it can."""

    code = "too_many_sequences"


class NotAddressed(InvalidRequest):
    """An ack or nack names a topic or subscription this broker does not have."""

    code = "not_addressed"
    wire_status = "INTERNAL"
