"""Every transcript of placement and rebalancing still holds; --rewrite writes them anew."""

from pathlib import Path

import pytest

from tests.support.balance_transcript import rewritten

TRANSCRIPTS = sorted((Path(__file__).parent / "balance").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_transcript_holds(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")
    played = rewritten(text)
    if request.config.getoption("--rewrite"):
        path.write_text(played, encoding="utf-8")
    else:
        assert played == text


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 4
