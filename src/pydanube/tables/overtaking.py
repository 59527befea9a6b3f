"""Which dead letters still matter to a table with a key: those that nothing later has overtaken.

The table does not tell: a key whose row was deleted is not in it. The topic does, as far as it
still has what came after a letter; letters whose successors are gone stay where they are.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.spark.source.rows import Place
from pydanube.tables.columns import Columns
from pydanube.tables.lake import LakeSnapshot, Upsert
from pydanube.tables.messages import raw_rows, sort_messages
from pydanube.tables.ranges import TableTools
from pydanube.tables.state import Span

Key = tuple[object, ...]


class KeyedChanges(Struct, frozen=True):
    """What letters of one partition come to."""

    upsert: Upsert
    overtaken: list[int]
    """Offsets of letters that a later message of their key makes worthless."""


def keyed_changes(
    tools: TableTools,
    main: LakeSnapshot,
    letters: pa.Table,
    columns: Columns,
    key: tuple[str, ...],
) -> KeyedChanges:
    """Decode letters of one partition, and tell which of them the table is to take."""
    good = sort_messages(letters, columns, tools.schemas).rows
    for name in key:
        if name not in good.column_names:
            good = good.slice(0, 0)
            break
        good = good.filter(pc.is_valid(good.column(name)))
    nothing = Upsert(key=key, rows=good.slice(0, 0), deleted=_keys(good.slice(0, 0), key))
    if not len(good):
        return KeyedChanges(nothing, [])
    places: dict[Key, int] = {}
    for found, offset in _with_keys(good, key):
        places[found] = max(offset, places.get(found, -1))
    newest = _newest(tools, main, good, places, key)
    if newest is None:
        return KeyedChanges(nothing, [])
    winners = []
    overtaken = []
    for found, offset in _with_keys(good, key):
        if offset < max(places[found], newest.get(found, -1)):
            overtaken.append(offset)
        else:
            winners.append(offset)
    rows = good.filter(pc.is_in(good.column("offset"), pa.array(winners, pa.int64())))
    return KeyedChanges(Upsert(key=key, rows=rows, deleted=_keys(rows.slice(0, 0), key)), overtaken)


def _newest(
    tools: TableTools,
    main: LakeSnapshot,
    good: pa.Table,
    wanted: Mapping[Key, int],
    key: tuple[str, ...],
) -> dict[Key, int] | None:
    """Return the last message of each key that the table has seen; None: nobody can tell."""
    first = good.slice(0, 1).to_pylist()[0]
    place = Place(topic=first["topic"], partition=first["partition"])
    name = next((each for each in main.positions if Place.of(each) == place), None)
    state = None if name is None else tools.source.states().get(name)
    low = min(wanted.values()) + 1
    if name is None or state is None or state.earliest > low:
        return None
    position = main.positions[name]
    if state.id != position.id:
        return None
    newest: dict[Key, int] = {}
    seen = Columns(main.columns)
    span = Span(position.id, low, position.next)
    batches = tools.source.read(name, span) if low < position.next else iter(())
    for at, batch in batches:
        found = sort_messages(raw_rows(batch, at, place), seen, tools.schemas, empty_deletes=True)
        for rows in (found.rows, found.tombstones):
            if not set(key) <= set(rows.column_names):
                continue
            for each, offset in _with_keys(rows, key):
                if each in wanted:
                    newest[each] = max(offset, newest.get(each, -1))
    return newest


def _with_keys(rows: pa.Table, key: tuple[str, ...]) -> list[tuple[Key, int]]:
    keys = zip(*(rows.column(name).to_pylist() for name in key), strict=True)
    return list(zip(keys, rows.column("offset").to_pylist(), strict=True))


def _keys(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    return rows.select(list(key))
