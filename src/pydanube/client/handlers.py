"""What a handler wants, read from its signature: one message, its value, or many values. Pure."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct

from pydanube.client.codecs import BYTES, Codec, codec_for
from pydanube.client.message import ReceivedMessage
from pydanube.errors import InvalidRequest
from pydanube.model.failure_policies import FailurePolicyChange
from pydanube.model.names import check_topic_name
from pydanube.model.policies import PoisonPolicy, SubscriptionType
from pydanube.model.schemas import SchemaReference

Handler = Callable[[Any], Any]
"""A function of one argument, or a coroutine function."""
Undecodable = Literal["nack", "drop"]
"""What becomes of a payload that is not of the handler's type."""
RETRIES = 5
"""How often a message that failed comes again, unless told otherwise."""
RETRIES_MAX = 1_000_000
Wants = Literal["value", "message", "values"]


class Subscriber(Struct, frozen=True, kw_only=True):
    """A handler, and what it is called with."""

    handler: Handler
    topic: str
    subscription: str
    subscription_type: SubscriptionType
    start_position: str | None
    concurrency: int
    undecodable: Undecodable
    wants: Wants
    codec: Codec[Any]
    schema: str | SchemaReference | None = None
    retries: int | None = None
    dead_letter: str | bool | None = None

    @property
    def is_async(self) -> bool:
        """Tell whether it runs on the event loop; others get a thread."""
        return inspect.iscoroutinefunction(self.handler)


class PolicyWish(Struct, frozen=True):
    """What a subscriber wants to become of messages that fail."""

    unless_set: FailurePolicyChange
    """Where nobody has set anything."""
    always: FailurePolicyChange
    """What its code says, whatever was set before."""


def policy_wish(retries: int | None, dead_letter: str | bool | None) -> PolicyWish:
    """Return what `retries` and `dead_letter` of a subscriber mean.

    What is left out stays as an operator has set it; where nobody has, a message goes to the
    dead-letter topic after RETRIES repeats, so that a bad one never stops the others.
    """
    if retries is not None and not 0 <= retries <= RETRIES_MAX:
        raise InvalidRequest(f"retries must be 0 to {RETRIES_MAX}, not {retries}")
    poison: PoisonPolicy | None = None
    if dead_letter is not None:
        poison = "Block" if dead_letter is False else "DeadLetter"
    target = check_topic_name(dead_letter) if isinstance(dead_letter, str) else None
    return PolicyWish(
        unless_set=FailurePolicyChange(
            max_redelivery_count=RETRIES if retries is None else retries,
            poison_policy=poison or "DeadLetter",
            dead_letter_topic=target,
        ),
        always=FailurePolicyChange(
            max_redelivery_count=retries, poison_policy=poison, dead_letter_topic=target
        ),
    )


def wanted_by(handler: Handler, kind: object | None) -> tuple[Wants, Codec[Any]]:
    """Return how a handler wants its messages; `kind` says what they hold where it does not.

    Its argument is a ReceivedMessage, a list of values, or a value: what its annotation says.
    """
    annotation = _argument(handler)
    if annotation is ReceivedMessage:
        return "message", BYTES if kind is None else codec_for(kind)
    if get_origin(annotation) is ReceivedMessage:
        return "message", codec_for(get_args(annotation)[0] if kind is None else kind)
    if get_origin(annotation) is list:
        return "values", codec_for(get_args(annotation)[0] if kind is None else kind)
    if annotation is None and kind is None:
        raise InvalidRequest(
            f"{_name(handler)} does not say what it takes: annotate its argument, or give type="
        )
    return "value", codec_for(annotation if kind is None else kind)


def returned_by(handler: Handler, kind: object | None) -> Codec[Any]:
    """Return the codec of what a handler returns, leaving out None."""
    if kind is not None:
        return codec_for(kind)
    annotation = _hints(handler).get("return")
    variants = [each for each in get_args(annotation) if each is not type(None)]
    if len(variants) == 1 and type(None) in get_args(annotation):
        annotation = variants[0]
    if annotation is None or annotation is type(None):
        raise InvalidRequest(
            f"{_name(handler)} does not say what it returns: annotate it, or give type="
        )
    return codec_for(annotation)


def _argument(handler: Handler) -> object | None:
    parameters = list(inspect.signature(handler).parameters.values())
    required = [each for each in parameters if each.default is each.empty]
    if not parameters or len(required) > 1:
        raise InvalidRequest(f"{_name(handler)} must take one argument: a message, or its value")
    annotation: object | None = _hints(handler).get(parameters[0].name)
    return annotation


def _hints(handler: Handler) -> dict[str, Any]:
    try:
        return get_type_hints(handler)
    except NameError as error:
        raise InvalidRequest(
            f"the annotations of {_name(handler)} cannot be read: {error}; define its types in "
            "the module, or give type="
        ) from None


def _name(handler: Handler) -> str:
    return getattr(handler, "__qualname__", repr(handler))
