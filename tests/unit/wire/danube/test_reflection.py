from contextlib import aclosing

import pytest

from pydanube.wire.danube import reflection as room
from pydanube.wire.danube.generated import Reflection_pb2 as reflection
from pydanube.wire.danube.reflection import Reflection


async def ask(served, *questions):
    """Return the answers to questions that are asked in one call."""

    async def requests():
        for question in questions:
            yield question

    async with aclosing(await served._serve(requests(), None)) as groups:
        return [answer async for group in groups for answer in group]


def question(name):
    return reflection.ServerReflectionRequest(file_containing_symbol=name).SerializeToString()


@pytest.fixture
def served(monkeypatch):
    served = Reflection(["danube.Health"])
    served.worked_out = 0
    answer = served.answer

    def counted(request):
        served.worked_out += 1
        return answer(request)

    monkeypatch.setattr(served, "answer", counted)
    return served


async def test_a_question_asked_again_gets_the_same_answer_without_the_work(served):
    first, second = await ask(served, question("a.B"), question("a.B"))
    assert first == second
    assert (await ask(served, question("a.B"))) == [first]
    assert served.worked_out == 1


async def test_other_questions_get_answers_of_their_own(served):
    answers = await ask(served, question("a.B"), question("a.C"))
    texts = [
        reflection.ServerReflectionResponse.FromString(answer).error_response.error_message
        for answer in answers
    ]
    assert texts == ["a.B is not known here", "a.C is not known here"]


async def test_answers_used_last_are_kept_and_no_more_than_so_many(served):
    await ask(served, question("first"))
    for number in range(3 * room._ANSWERS_MAX):
        await ask(served, question(f"x{number}"), question("first"))
    assert served.worked_out == 3 * room._ANSWERS_MAX + 1
    assert len(served._known) == room._ANSWERS_MAX


async def test_answers_to_long_questions_are_not_kept(served):
    long = question("x" * (room._QUESTION_BYTES_MAX + 1))
    await ask(served, long, long)
    assert served.worked_out == 2
