"""A bounded memory forgets what was used longest ago."""

from pydanube.schemas.kept import Kept


def test_what_was_used_last_is_kept() -> None:
    kept: Kept[str, list[str]] = Kept(2)
    first = kept.get("a", lambda: ["a"])
    kept.get("b", lambda: ["b"])
    assert kept.get("a", lambda: ["another"]) is first
    kept.get("c", lambda: ["c"])
    assert len(kept) == 2
    assert kept.get("a", lambda: ["another"]) is first
    assert kept.get("b", lambda: ["made again"]) == ["made again"]
