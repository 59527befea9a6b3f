"""Every transcript of a dispatcher still holds; --rewrite writes them anew."""

from pathlib import Path

import pytest

from tests.support.dispatch_transcript import rewritten

TRANSCRIPTS = sorted((Path(__file__).parent / "dispatch").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_transcript_holds(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")
    played = rewritten(text)
    if request.config.getoption("--rewrite"):
        path.write_text(played, encoding="utf-8")
    else:
        assert played == text


def test_there_are_transcripts_of_every_dispatcher() -> None:
    first_words = {
        line.removeprefix("dispatcher ")
        for path in TRANSCRIPTS
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("dispatcher ")
    }
    for kind in ("Exclusive", "Shared", "Failover", "KeyShared"):
        assert any(words.split()[0] == kind for words in first_words)
        assert f"{kind} best-effort" in first_words
