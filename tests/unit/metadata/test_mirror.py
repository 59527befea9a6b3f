"""A copy of keys follows what it is told."""

import pytest

from pydanube.metadata.mirror import Mirror, Mirrored
from pydanube.metadata.store import Change, Entry


def mirror() -> Mirror:
    mirror = Mirror()
    mirror.replace(
        [Mirrored("/b", b"2", 3, 7), Mirrored("/a/x", b"1", 2), Mirrored("/a0", b"3", 4)], 5
    )
    return mirror


def test_what_was_listed_is_there_in_order() -> None:
    copy = mirror()
    assert copy.revision == 5
    assert [entry.key for entry in copy.entries_below("/")] == ["/a/x", "/a0", "/b"]
    assert copy.entries_below("/a/") == [Entry("/a/x", b"1", 2)]
    assert (copy.get("/b"), copy.get("/c")) == (Entry("/b", b"2", 3), None)


def test_the_changes_of_a_revision_are_taken_in_and_told_together() -> None:
    copy = mirror()
    told = copy.apply([Mirrored("/a/y", b"4", 8), Mirrored("/b", None, 8)])
    assert told == [Change("/a/y", b"4", 8), Change("/b", None, 8)]
    assert copy.revision == 8
    assert [entry.key for entry in copy.entries_below("/")] == ["/a/x", "/a/y", "/a0"]


def test_no_revision_is_taken_in_twice() -> None:
    copy = mirror()
    with pytest.raises(AssertionError, match="revision 5 was told after 5"):
        copy.apply([Mirrored("/a", b"", 5)])


def test_a_lease_has_the_keys_that_were_last_written_with_it() -> None:
    copy = mirror()
    assert copy.holds_keys_of(7)
    copy.apply([Mirrored("/b", b"plain", 6)])
    assert not copy.holds_keys_of(7)
    copy.apply([Mirrored("/b", b"bound", 7, 8)])
    assert copy.holds_keys_of(8)
    copy.apply([Mirrored("/b", None, 8)])
    assert not copy.holds_keys_of(8)
    copy.apply([Mirrored("/b", None, 9)])
