"""How Arrow is loaded: without libraries that it would load to recognise their objects."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _KeepOut:
    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._packages:
            raise ImportError(f"{name} is kept out for now")


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Let Arrow find out within that packages are not installed, whether they are or not.

    Arrow asks for numpy when it is loaded, and for pandas once, when it makes its first array.
    Where they are installed that takes a fifth of a second and more than a second, and 50 MiB. A
    broker has no use for either. Elsewhere pandas alone may be kept out: `to_pandas` loads it by
    itself. What has been loaded already stays.
    """
    guard = _KeepOut(packages)
    sys.meta_path.insert(0, guard)
    try:
        yield
    finally:
        sys.meta_path.remove(guard)
