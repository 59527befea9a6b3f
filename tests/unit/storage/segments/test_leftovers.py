"""Objects without an entry go only if everything they hold is elsewhere."""

from typing import Any

import pytest

from pydanube.model.ids import Offset, TopicId
from pydanube.storage.segments.catalog import SegmentEntry, lost_entry, object_key
from pydanube.storage.segments.encoding import SegmentOrigin
from pydanube.storage.segments.leftovers import Journaled, plan_sweep
from pydanube.storage.segments.rebuilding import plan_chain

ORIGIN = SegmentOrigin(topic="/default/orders", topic_id=TopicId(7), epoch=0)
NOTHING = Journaled(Offset(0), Offset(0))


def key(base: int, end: int, token: int = 1) -> str:
    return object_key(ORIGIN, Offset(base), Offset(end), token)


def entry(base: int, end: int, token: int = 1) -> SegmentEntry:
    lost: Any = lost_entry(ORIGIN, Offset(base), Offset(end), 0)
    return type(lost)(
        **{
            **{name: getattr(lost, name) for name in lost.__struct_fields__},
            "key": key(base, end, token),
            "rows": end - base,
        }
    )


ENTRIES = [entry(10, 20), entry(20, 30)]
PRESENT = [each.key for each in ENTRIES]


@pytest.mark.parametrize(
    ("stray", "journaled", "goes"),
    [
        (key(10, 30, 2), NOTHING, True),  # What was joined, or an attempt that was repeated.
        (key(0, 10, 2), NOTHING, True),  # It has expired.
        (key(30, 40, 2), NOTHING, False),  # Newer than the catalogue.
        (key(20, 40, 2), NOTHING, False),
        (key(30, 40, 2), Journaled(Offset(30), Offset(40)), True),  # An attempt that ended early.
        (key(30, 40, 2), Journaled(Offset(35), Offset(60)), False),
        ("default/orders/7/joined-0000000000000001.parquet", NOTHING, True),
    ],
)
def test_an_object_goes_if_nothing_is_lost_by_it(
    stray: str, journaled: Journaled, goes: bool
) -> None:
    going, staying = plan_sweep([*PRESENT, stray], set(PRESENT), ENTRIES, Offset(10), journaled)
    assert (going, staying) == (([stray], []) if goes else ([], [stray]))


def test_what_covers_an_entry_whose_object_is_gone_stays() -> None:
    joined = key(10, 30, 2)
    going, staying = plan_sweep([joined], set(PRESENT), ENTRIES, Offset(10), NOTHING)
    assert (going, staying) == ([], [joined])


def test_a_chain_takes_known_entries_first_and_goes_on_with_what_is_there() -> None:
    found = [*PRESENT, key(30, 35, 3), key(30, 40, 4), key(50, 60)]
    chain = plan_chain(found, ENTRIES, Offset(10))
    assert [(link.base, link.end, link.key) for link in chain.new()] == [(30, 40, key(30, 40, 4))]
    assert (chain.start, chain.end, chain.missing) == (10, 40, ())


def test_a_chain_puts_what_was_joined_in_place_of_what_is_gone() -> None:
    joined = key(10, 30, 2)
    chain = plan_chain([joined, key(30, 40)], ENTRIES, Offset(10))
    assert [link.key for link in chain.new()] == [joined, key(30, 40)]
    assert chain.missing == ()


def test_an_entry_whose_object_is_nowhere_is_told_and_stays() -> None:
    chain = plan_chain([ENTRIES[1].key], ENTRIES, Offset(10))
    assert chain.missing == (ENTRIES[0],)
    assert [link.entry for link in chain.links] == ENTRIES


def test_a_topic_without_a_catalogue_begins_with_its_first_object() -> None:
    chain = plan_chain([key(5, 8), key(8, 9)], [], None)
    assert (chain.start, chain.end, len(chain.new())) == (5, 9, 2)
