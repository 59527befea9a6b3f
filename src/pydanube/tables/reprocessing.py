"""Dead letters tried again, by the schemas of today.

What fits now is added to the table first, unless it is there, and then taken from the dead letters.
Whatever happens between the two, running it again ends it: a message is never lost, and in the
table once.
"""

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import Conflict, NotSupported
from pydanube.runtime.randomness import Randomness
from pydanube.tables.catalogs import Tables
from pydanube.tables.columns import Columns
from pydanube.tables.lake import Commit, LakeSnapshot
from pydanube.tables.messages import RAW, sort_messages
from pydanube.tables.ranges import TableSchemas
from pydanube.tables.settings import TableSetting

_CUT_IN = "a commit came between; run it again"
_PLACE = ("partition", "offset")


class Reprocessed(Struct, frozen=True, kw_only=True):
    """What became of dead letters."""

    table: str
    tried: int
    added: int
    """Rows the table got; others that fit were there."""
    left: int
    """Dead letters that still do not fit."""


def reprocess(
    tables: Tables, setting: TableSetting, schemas: TableSchemas, randomness: Randomness
) -> Reprocessed:
    """Bring dead letters that fit by now into the table. Conflict: somebody was faster."""
    if setting.mode == "upsert":
        raise NotSupported(
            "dead letters of a table with a key are not tried again: they could replace newer "
            "rows. Publish those messages anew"
        )
    dead, main = tables.dead.load(), tables.main.load()
    if dead is None or main is None:
        return Reprocessed(table=tables.main.name, tried=0, added=0, left=0)
    letters = dead.scan(RAW.names, {}).cast(RAW)
    schemas.refresh()
    columns = Columns(main.columns)
    good = sort_messages(letters.combine_chunks(), columns, schemas).rows if len(letters) else None
    if good is None or not len(good):
        return _reprocessed(tables, letters, 0, 0)
    fresh = _absent(good, main)
    if len(fresh):
        commit_id = f"{randomness.below(2**128):032x}"
        commit = Commit(
            id=commit_id,
            positions=main.positions,
            added=columns.added,
            files=main.write(f"{commit_id}-again", fresh),
            summary={"danube.reprocessed": str(len(fresh))},
        )
        if not main.commit(commit):
            main.delete(commit.files)
            raise Conflict(f"table {tables.main.name}: {_CUT_IN}")
    if not dead.remove(good.select(_PLACE)):
        raise Conflict(f"table {tables.dead.name}: {_CUT_IN}")
    return _reprocessed(tables, letters, len(fresh), len(good))


def _absent(good: pa.Table, main: LakeSnapshot) -> pa.Table:
    """Return the rows that a table does not have."""
    bounds = pc.min_max(good.column("offset")).as_py()
    there = main.scan(list(_PLACE), {"offset": (bounds["min"], bounds["max"] + 1)})
    known = set(zip(*(there.column(name).to_pylist() for name in _PLACE), strict=True))
    places = zip(*(good.column(name).to_pylist() for name in _PLACE), strict=True)
    return good.filter(pa.array([place not in known for place in places], pa.bool_()))


def _reprocessed(tables: Tables, letters: pa.Table, added: int, fit: int) -> Reprocessed:
    return Reprocessed(
        table=tables.main.name, tried=len(letters), added=added, left=len(letters) - fit
    )
