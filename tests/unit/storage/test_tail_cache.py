from pydanube.model.batch import Batch
from pydanube.model.ids import Offset
from pydanube.storage.tail_cache import TailCache


def batch(count: int, size: int = 1000) -> Batch:
    return Batch.from_bytes(bytes(size), count)


def spans(tail, start: int, end: int):
    pieces = tail.read(Offset(start), Offset(end))
    return None if pieces is None else [(p.start, p.end) for p in pieces]


def test_pieces_are_cut_to_the_range() -> None:
    tail = TailCache(10**6).tail()
    for base in (10, 13, 16):
        tail.add(Offset(base), batch(3))
    assert spans(tail, 10, 19) == [(10, 13), (13, 16), (16, 19)]
    assert spans(tail, 11, 17) == [(11, 13), (13, 16), (16, 17)]
    assert spans(tail, 15, 16) == [(15, 16)]
    assert spans(tail, 13, 13) == []


def test_what_is_not_kept_is_not_served() -> None:
    tail = TailCache(10**6).tail()
    assert spans(tail, 0, 5) is None
    tail.add(Offset(10), batch(3))
    assert spans(tail, 9, 12) is None
    assert spans(tail, 13, 20) is None


def test_the_oldest_batch_of_all_topics_goes_first() -> None:
    cache = TailCache(4 * 1512)
    one, two = cache.tail(), cache.tail()
    one.add(Offset(0), batch(1))
    two.add(Offset(0), batch(1))
    one.add(Offset(1), batch(1))
    two.add(Offset(1), batch(1))
    one.add(Offset(2), batch(1))
    assert spans(one, 0, 3) is None
    assert spans(one, 1, 3) == [(1, 2), (2, 3)]
    assert spans(two, 0, 3) == [(0, 1), (1, 2)]
    assert cache.bytes == 4 * 1512


def test_a_batch_larger_than_the_cache_is_not_kept() -> None:
    cache = TailCache(1000)
    tail = cache.tail()
    tail.add(Offset(0), batch(1))
    assert spans(tail, 0, 1) is None
    assert cache.bytes == 0
    tail.add(Offset(1), batch(1, size=10))
    assert spans(tail, 1, 2) == [(1, 2)]


def test_a_gap_forgets_what_is_before_it() -> None:
    cache = TailCache(10**6)
    tail = cache.tail()
    tail.add(Offset(0), batch(1))
    tail.add(Offset(5), batch(1))
    assert spans(tail, 0, 9) is None
    assert spans(tail, 5, 9) == [(5, 6)]
    assert cache.bytes == 1512


def test_dropped_topics_leave_nothing_behind() -> None:
    cache = TailCache(10**9)
    for _ in range(5000):
        tail = cache.tail()
        tail.add(Offset(0), batch(1))
        tail.clear()
    assert cache.bytes == 0
    assert len(cache._order) < 1000


def test_memory_of_long_lived_topics_stays_bounded() -> None:
    cache = TailCache(10 * 1512)
    tail = cache.tail()
    for base in range(10_000):
        tail.add(Offset(base), batch(1))
        assert cache.bytes <= 10 * 1512
    assert spans(tail, 9990, 10_000) == [(n, n + 1) for n in range(9990, 10_000)]
    assert len(tail._bases) < 1000
