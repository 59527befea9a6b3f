"""Patterns over routing keys: `*` is any run of bytes, `?` exactly one byte, all else itself."""

_STAR, _ANY = ord("*"), ord("?")


class Glob:
    """A pattern that must match the whole key. Time is linear in the key, whatever the pattern.

    All places in the pattern that the bytes so far can lead to are the bits of one number, so
    nothing is ever tried twice.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._takes: dict[int, int] = {}
        self._takes_any = 0
        self._stays = 0
        place = 1
        for byte in pattern.encode():
            if byte == _STAR:
                self._stays |= place
                continue
            if byte == _ANY:
                self._takes_any |= place
            else:
                self._takes[byte] = self._takes.get(byte, 0) | place
            place <<= 1
        self._accepts = place

    def matches(self, key: str) -> bool:
        """Tell whether the pattern matches the UTF-8 bytes of the key."""
        places = 1
        for byte in key.encode():
            moves = places & (self._takes.get(byte, 0) | self._takes_any)
            places = (moves << 1) | (places & self._stays)
            if not places:
                return False
        return bool(places & self._accepts)
