"""The hash functions clients and broker must agree on (FNV-1a, and the ring's finaliser)."""

_FNV_BASIS = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK_64 = 0xFFFFFFFFFFFFFFFF
_MASK_32 = 0xFFFFFFFF


def fnv1a_64(key: str) -> int:
    """Return FNV-1a over the UTF-8 bytes; partition = this modulo the number of partitions."""
    value = _FNV_BASIS
    for byte in key.encode():
        value = ((value ^ byte) * _FNV_PRIME) & _MASK_64
    return value


def ring_hash(key: str) -> int:
    """Return the 32-bit position of a key on a Key-Shared subscription's ring."""
    value = fnv1a_64(key)
    value = (value >> 32) ^ (value & _MASK_32)
    # The murmur3 finaliser spreads FNV's weak high bits over the ring.
    value ^= value >> 16
    value = (value * 0x85EBCA6B) & _MASK_32
    value ^= value >> 13
    value = (value * 0xC2B2AE35) & _MASK_32
    return value ^ (value >> 16)
