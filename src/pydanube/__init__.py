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
    from pydanube.model.schemas import SchemaReference
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
    "DeliveredBatch",
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
    "DeliveredBatch": "pydanube.client.batch_consumer",
    "MessageBatch": "pydanube.client.flight",
    "Producer": "pydanube.client.producer",
    "Reader": "pydanube.client.reader",
    "ReceivedMessage": "pydanube.client.message",
    "RetryPolicy": "pydanube.client.retry",
    "SchemaReference": "pydanube.model.schemas",
    "SentBatch": "pydanube.client.message",
    "SentMessage": "pydanube.client.message",
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
