"""Decides which journal files may go. Pure."""

from collections.abc import Sequence, Set

from msgspec import Struct

from pydanube.model.ids import JournalPosition, TopicId


class FileUse(Struct, frozen=True):
    """A journal file, and whose batches it holds."""

    start: JournalPosition
    topics: Set[TopicId]


def plan_deletions(files: Sequence[FileUse], needed: Set[TopicId]) -> list[JournalPosition]:
    """Return the starts of the files to delete, oldest first; delete them in that order.

    `files` are all files, oldest first; the last one is being written and stays. A file goes when
    no topic in `needed` has a batch in it and every older file goes too. Progress needs no file:
    each later one begins with a snapshot of it.
    """
    deletable = []
    for file in files[:-1]:
        if not file.topics.isdisjoint(needed):
            break
        deletable.append(file.start)
    return deletable
