"""PyDanube: the Danube messaging platform in Python.

The names below are the public ones; each is loaded when it is used, so that importing the package
costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydanube.client.app import App
    from pydanube.client.batch_consumer import DeliveredBatch
    from pydanube.client.client import Client, connect
    from pydanube.client.codecs import Codec, codec_for
    from pydanube.client.consumer import Consumer
    from pydanube.client.dead_letters import DeadLetters
    from pydanube.client.errors import ClientClosed, UndecodablePayload
    from pydanube.client.flight import MessageBatch
    from pydanube.client.message import ReceivedMessage, SentBatch, SentMessage
    from pydanube.client.producer import Producer
    from pydanube.client.reader import Reader
    from pydanube.client.retry import RetryPolicy
    from pydanube.errors import (
        AccessDenied,
        AlreadyExists,
        Conflict,
        Corruption,
        DanubeError,
        InvalidRequest,
        NotFound,
        NotSupported,
        Overloaded,
        Unavailable,
        WrongBroker,
    )
    from pydanube.model.failure_policies import FailurePolicyChange
    from pydanube.model.policies import FailurePolicy
    from pydanube.model.schemas import SchemaReference
    from pydanube.model.standing import SubscriptionStanding
    from pydanube.testing.broker import Broker

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "App",
    "Broker",
    "Client",
    "ClientClosed",
    "Codec",
    "Conflict",
    "Consumer",
    "Corruption",
    "DanubeError",
    "DeadLetters",
    "DeliveredBatch",
    "FailurePolicy",
    "FailurePolicyChange",
    "InvalidRequest",
    "MessageBatch",
    "NotFound",
    "NotSupported",
    "Overloaded",
    "Producer",
    "Reader",
    "ReceivedMessage",
    "RetryPolicy",
    "SchemaReference",
    "SentBatch",
    "SentMessage",
    "SubscriptionStanding",
    "Unavailable",
    "UndecodablePayload",
    "WrongBroker",
    "__version__",
    "codec_for",
    "connect",
]

_FOUND_IN = {
    "App": "pydanube.client.app",
    "Broker": "pydanube.testing.broker",
    "Client": "pydanube.client.client",
    "ClientClosed": "pydanube.client.errors",
    "Codec": "pydanube.client.codecs",
    "Consumer": "pydanube.client.consumer",
    "DeadLetters": "pydanube.client.dead_letters",
    "DeliveredBatch": "pydanube.client.batch_consumer",
    "FailurePolicy": "pydanube.model.policies",
    "FailurePolicyChange": "pydanube.model.failure_policies",
    "MessageBatch": "pydanube.client.flight",
    "Producer": "pydanube.client.producer",
    "Reader": "pydanube.client.reader",
    "ReceivedMessage": "pydanube.client.message",
    "RetryPolicy": "pydanube.client.retry",
    "SchemaReference": "pydanube.model.schemas",
    "SentBatch": "pydanube.client.message",
    "SentMessage": "pydanube.client.message",
    "SubscriptionStanding": "pydanube.model.standing",
    "UndecodablePayload": "pydanube.client.errors",
    "codec_for": "pydanube.client.codecs",
    "connect": "pydanube.client.client",
}


def __getattr__(name: str) -> object:
    if name == "sync":
        return import_module("pydanube.sync")
    if name not in __all__:
        raise AttributeError(f"module 'pydanube' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN.get(name, "pydanube.errors")), name)


def __dir__() -> list[str]:
    return __all__
