"""Where the metadata lie in etcd: which of its keys stands for which of ours."""

from pydanube.errors import Corruption, InvalidRequest
from pydanube.metadata.mirror import Mirrored
from pydanube.wire.etcd.messages import Stored, Told


class EtcdLayout:
    """Everything of one cluster lies below one prefix, such as /pydanube/orders.

    Below it, `data` holds the keys, `counters` the counters, and `identity` names the cluster.
    """

    def __init__(self, prefix: str) -> None:
        if not prefix.startswith("/") or prefix.endswith("/") or "//" in prefix:
            raise InvalidRequest(
                f"the prefix in etcd, {prefix!r}, must start with '/' and not end with one"
            )
        self._data = f"{prefix}/data".encode()
        self._counters = f"{prefix}/counters".encode()
        self.identity = f"{prefix}/identity".encode()

    @property
    def span(self) -> tuple[bytes, bytes]:
        """All keys: from the first, to before the second."""
        return self._data + b"/", self._data + b"0"

    def path(self, key: str) -> bytes:
        """Return where a key lies."""
        return self._data + key.encode()

    def counter(self, key: str) -> bytes:
        """Return where a counter lies."""
        return self._counters + key.encode()

    def stored(self, one: Stored) -> Mirrored:
        """Return what was found as one of our keys."""
        return Mirrored(self._key(one.key), one.value, one.revision, one.lease or None)

    def told(self, one: Told) -> Mirrored:
        """Return what a watch told about one of our keys."""
        return Mirrored(self._key(one.key), one.value, one.revision, one.lease or None)

    def _key(self, path: bytes) -> str:
        try:
            return path[len(self._data) :].decode()
        except UnicodeDecodeError as error:
            raise Corruption(
                f"etcd holds {path!r}, which no PyDanube has written; remove it, and let nobody "
                "else write below the prefix"
            ) from error
