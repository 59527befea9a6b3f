"""How Flight calls fail: with the same codes and texts as the per-message API."""

from collections.abc import Iterator
from contextlib import contextmanager

from pydanube.errors import DanubeError
from pydanube.wire.danube.status import refusal


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a DanubeError into the CallRefused that ends the call."""
    try:
        yield
    except DanubeError as error:
        raise refusal(error) from error
