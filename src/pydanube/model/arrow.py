"""How Arrow is loaded: without pandas, which it would load with its first array."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _KeepOut:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError("not now")


@contextmanager
def without_pandas() -> Iterator[None]:
    """Let Arrow find out within that pandas is not there; it asks once, when it makes an array.

    Where pandas is installed, loading it takes more than a second and 50 MiB, for nothing: Arrow
    only wants to recognise its objects. `to_pandas` still works, for it loads pandas by itself. A
    process that has loaded pandas already is left as it is.
    """
    if "pandas" in sys.modules:
        yield
        return
    guard = _KeepOut()
    sys.meta_path.insert(0, guard)
    try:
        yield
    finally:
        sys.meta_path.remove(guard)
