"""Judge answers to questions: a score and a reason, by id and place, without a word of text."""

import unicodedata
from typing import NamedTuple

from scaledot.lesson.content import Question

Answer = str | list[str]
"""The id of an option, the text in a blank, or the right side chosen for each left one."""


class Judgement(NamedTuple):
    """What an answer is worth."""

    score: float
    """From 0 to 1; of a match, the share of right pairs."""
    wrong: tuple[int, ...] = ()
    """Places of the reasons: of an option, of a near text, of pairs. Empty where there is none."""


def judge(question: Question, answer: Answer) -> Judgement:
    """Judge an answer; one that is not a possible one is worth nothing."""
    if question.kind == "choice":
        if answer == question.answer:
            return Judgement(1.0)
        return Judgement(0.0, tuple(i for i, x in enumerate(question.options) if x.id == answer))
    if question.kind == "blank":
        if any(same_text(str(answer), text) for text in question.accept):
            return Judgement(1.0)
        near = (i for i, x in enumerate(question.near) if same_text(str(answer), x.text))
        return Judgement(0.0, tuple(near)[:1])
    wanted = [str(place) for place in range(len(question.pairs))]
    given = list(answer) if isinstance(answer, list) else []
    wrong = tuple(i for i, x in enumerate(wanted) if i >= len(given) or given[i] != x)
    return Judgement(1 - len(wrong) / len(wanted), wrong)


def same_text(one: str, other: str) -> bool:
    """Say whether two texts are the same but for case and spaces, by Turkish or English rules.

    A capital I is ı in Turkish and i in English, so that neither rule alone is right for "INF".
    """
    return any(fold(one, language) == fold(other, language) for language in ("tr", "en"))


def fold(text: str, language: str) -> str:
    """Return a text without case and spaces."""
    text = "".join(unicodedata.normalize("NFKC", text).split())
    if language == "tr":
        text = text.replace("İ", "i").replace("I", "ı")
    return text.casefold()


def shuffled(question: Question) -> list[int]:
    """Return the right sides of a match in an order that gives nothing away, always the same."""
    places = list(range(len(question.pairs)))
    return places[1::2] + places[::2][::-1]
