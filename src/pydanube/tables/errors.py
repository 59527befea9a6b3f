"""What goes wrong between topics and tables, beside what brokers refuse."""

from pydanube.errors import Conflict, InvalidRequest, Unavailable


class TableOfAnotherTopic(Conflict):
    """The table belongs to another topic, or to an earlier life of this one."""

    code = "table_of_another_topic"


class TableGuardAltered(Conflict):
    """A setting of the table was changed without which a commit is no compare-and-set."""

    code = "table_guard_altered"


class TableDataLoss(Conflict):
    """Messages that the table lacks are gone from the topic."""

    code = "table_data_loss"


class BadMessage(InvalidRequest):
    """A message does not fit the table, and the table is set to fail then."""

    code = "table_bad_message"


class CommitOutcomeUnknown(Unavailable):
    """A commit was sent and its answer lost: it may have happened, or happen yet."""

    code = "table_commit_unknown"


class TableOfAnotherShape(Conflict):
    """The table was made with another key or layout than it is to be written with."""

    code = "table_of_another_shape"


def check_owner(table: str, owner: str | None, topic: str) -> None:
    """Refuse to replace all rows of a table that holds something else than the topic's."""
    if owner != topic:
        held = "rows that came from no topic" if owner is None else f"topic {owner}"
        raise TableOfAnotherTopic(
            f"table {table} holds {held}, not {topic}, and would lose all of it; name another table"
        )


def check_shape(table: str, made: str | None, wanted: str) -> None:
    """Refuse to write rows of one shape to a table of another."""
    if made is not None and wanted and made != wanted:
        raise TableOfAnotherShape(
            f"table {table} was made as {made!r} and cannot go on as {wanted!r}; nothing was "
            "written. Name another table, or make this one anew with danube table rebuild"
        )
