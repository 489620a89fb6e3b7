"""Is a lesson whole? What a teacher is told before learners see it.

Both languages must say the same: the same code, formulas, numbers and parts, no text missing. Every
question has one answer and a reason for each wrong one; every exercise can be passed, and every
mistake that can be named has hints. The code that pages show is run once.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from scaledot.lesson import content, figures, mistakes
from scaledot.lesson.answers import same_text
from scaledot.lesson.content import Exercise, Lesson, Question
from scaledot.lesson.judge import NoVerdict, bank_of, ending, judge
from scaledot.lesson.recipes import FAMILIES
from scaledot.lesson.run import run
from scaledot.lesson.tables import Text
from scaledot.lesson.texts import all_texts, say

KINDS = ("choice", "blank", "match")
SOURCES = ("textbook",)
BLANK = "____"

_CODE = re.compile(r"^```.*?^```|``.+?``|`[^`\n]+`", re.M | re.S)
_FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.S)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_MARKER = re.compile(r"^::.*::$", re.M)
_PLACE = re.compile(r"\{\w*\}")
_WORD = re.compile(r"[^\W\d_]{4,}")

# A Turkish text of so many letters without one of these was typed on another keyboard; in the pages
# of this lesson they are one letter in seven.
_TURKISH, _ENOUGH = set("çğıöşüÇĞİÖŞÜ"), 80


def check(lesson: Lesson) -> list[str]:
    """Return what is wrong with a lesson, in words; nothing if it is whole."""
    found = [*lesson.problems, *_id(lesson)]
    for where, text in _texts(lesson):
        found += [f"{where}: {problem}" for problem in same_in_all(text)]
    found += _pages(lesson)
    for name, code in lesson.codes.items():
        if ended := ending(run(code)):
            found.append(f"code/{name}: {say(f'grader.{ended[0]}', 'en', **ended[1])}")
    for question in lesson.questions.values():
        found += [f"question {question.id}: {problem}" for problem in _question(question)]
    for exercise in lesson.exercises.values():
        found += [f"exercise {exercise.id}: {problem}" for problem in _exercise(exercise)]
    return found


def _id(lesson: Lesson) -> Iterator[str]:
    """Say whether a copy of the built-in lesson still has its id."""
    copied = lesson.folder.resolve() != content.BUILT_IN
    if copied and lesson.id == content.read(content.BUILT_IN).id:
        yield (f"lesson.toml: `id` must not be {lesson.id!r}, that of the built-in lesson: the "
               "answers to both would be mixed")  # fmt: skip


# --------------------------------------------------------------------------------- both languages


def same_in_all(text: Text) -> Iterator[str]:
    """Go through what differs between languages that must not, or looks like no translation."""
    turkish, english = text["tr"], text["en"]
    if not (turkish.strip() and english.strip()):
        return
    for what, one, other in (
        ("code", _codes(turkish), _codes(english)),
        ("formulas", _formulas(turkish), _formulas(english)),
        ("numbers", _numbers(turkish), _numbers(english)),
        ("places", _PLACE.findall(_prose(turkish)), _PLACE.findall(_prose(english))),
    ):
        one, other = sorted(one), sorted(other)  # languages order their words each in its own way
        if one != other:
            left, right = _first_difference(one, other)
            yield f"the {what} differ between tr and en: {left!r} and {right!r}"
    words = _without(_prose(turkish), _PLACE)
    if turkish == english and len(_WORD.findall(words)) > 1:
        yield f"tr and en are the same: {words.strip()[:40]!r}"
    elif sum(map(str.isalpha, words)) >= _ENOUGH and not _TURKISH & set(words):
        yield f"no Turkish letter in the Turkish text: {words.strip()[:40]!r}"


def _texts(lesson: Lesson) -> Iterator[tuple[str, Text]]:
    """Go through every text of a lesson with its place."""
    yield "lesson.toml: title", lesson.title
    for page in lesson.pages:
        yield f"page {page.id}", page.text
    for question in lesson.questions.values():
        yield from _texts_of(f"question {question.id}", question)
    for exercise in lesson.exercises.values():
        yield from _texts_of(f"exercise {exercise.id}", exercise)


def _texts_of(where: str, thing: Any) -> Iterator[tuple[str, Text]]:
    """Go through the texts of a question, an exercise, or a part of one."""
    fields = thing._asdict() if hasattr(thing, "_asdict") else vars(thing)
    for name, x in fields.items():
        if isinstance(x, Mapping) and set(x) == {"tr", "en"}:
            yield f"{where}: {name}", x
        elif isinstance(x, Mapping):
            for key, part in x.items():
                yield from _texts_of(f"{where}: {key}", part)
        elif isinstance(x, tuple):
            for place, part in enumerate(x):
                if not isinstance(part, str):
                    yield from _texts_of(f"{where}: {name} {place + 1}", part)


def _codes(text: str) -> list[str]:
    """Return the code of a text; comments in it may be translated."""
    return [re.sub(r"[ \t]*#.*", "", code) for code in _CODE.findall(text)]


def _formulas(text: str) -> list[str]:
    """Return the formulas of a text."""
    return _FORMULA.findall(_without(text, _CODE))


def _numbers(text: str) -> list[str]:
    """Return the numbers in the prose: 10,000 in English is 10.000 in Turkish."""
    return [re.sub("[.,]", "", x) for x in _NUMBER.findall(_prose(text))]


def _prose(text: str) -> str:
    """Return a text without code, formulas and markers."""
    return _without(text, _CODE, _FORMULA, _MARKER)


def _without(text: str, *patterns: re.Pattern[str]) -> str:
    """Return a text without what matches."""
    for pattern in patterns:
        text = pattern.sub(" ", text)
    return text


def _first_difference(one: Sequence[str], other: Sequence[str]) -> tuple[str, str]:
    """Return where two lists first differ; "" past the end of one."""
    place = next(
        (i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y),
        min(len(one), len(other)),
    )
    return "".join(one[place : place + 1]), "".join(other[place : place + 1])


def texts_of_the_page() -> list[str]:
    """Return what is wrong with the texts around the lesson's content."""
    found = []
    for name, text in all_texts().items():
        if set(text) != {"tr", "en"}:
            found.append(f"{name}: must be in tr and en, is in {', '.join(text)}")
        else:
            found += [f"{name}: {problem}" for problem in same_in_all(text)]
    return found


# -------------------------------------------------------------------------------------- the pages


def _pages(lesson: Lesson) -> Iterator[str]:
    """Go through what is wrong with the parts that pages show."""
    known: dict[str, Collection[str]] = {
        "figure": (),
        "question": lesson.questions,
        "exercise": lesson.exercises,
        "run": lesson.codes,
        "source": SOURCES,
    }
    shown: list[tuple[str, str]] = []
    for page in lesson.pages:
        parts = page.markers("tr")
        if parts != (others := page.markers("en")):
            yield f"page {page.id}: tr and en show different parts, or in another order"
        for kind, name in dict.fromkeys(parts + others):
            if kind not in known:
                yield f"page {page.id}: no part is called {kind!r}; valid are: {', '.join(known)}"
            elif kind == "figure":
                yield from (f"page {page.id}: {problem}" for problem in _figure(name))
            elif name not in known[kind]:
                valid = ", ".join(known[kind]) or "none"
                yield f"page {page.id}: no {kind} is called {name!r}; there are: {valid}"
        shown += parts
    for kind, names in (("question", lesson.questions), ("exercise", lesson.exercises)):
        for name in names:
            if (times := shown.count((kind, name))) != 1:
                yield (f"{kind} {name}: must be shown once, by ::{kind} {name}::, "
                       f"is shown {times} times")  # fmt: skip


def _figure(wanted: str) -> Iterator[str]:
    """Say what is wrong with a figure that is asked for by its name and words."""
    name, *words = wanted.split()
    allowed = figures.WORDS.get(name)
    if allowed is None:
        yield f"no figure is called {name!r}; there are: {', '.join(figures.WORDS)}"
        return
    if len(words) < figures.NEEDED.get(name, 0):
        yield f"the figure {name} needs one of: {', '.join(allowed[0])}"
    if len(words) > len(allowed):
        yield f"the figure {name} takes at most {len(allowed)} words, got {wanted!r}"
    for word, valid in zip(words, allowed, strict=False):
        if word not in valid:
            yield f"the figure {name} has no {word!r}; valid are: {', '.join(valid)}"


# ---------------------------------------------------------------------------------- the questions


def _question(question: Question) -> Iterator[str]:
    """Go through what is wrong with a question."""
    if question.kind == "choice":
        yield from _choice(question)
    elif question.kind == "blank":
        yield from _blank(question)
    elif question.kind == "match":
        if len(question.pairs) < 2:
            yield "a match needs at least two [[question.pair]]"
        for language in ("tr", "en"):
            sides = [x.right[language] for x in question.pairs]
            yield from _twice(f"right sides ({language})", sides)
            for side in sides:
                if re.search(r"[$`]", side):
                    yield f"a drop-down shows plain text only: {side!r}; write √d and d²"
    else:
        yield f"`kind` must be one of {', '.join(KINDS)}, got {question.kind!r}"


def _choice(question: Question) -> Iterator[str]:
    """Go through what is wrong with a choice."""
    if len(question.options) < 2:
        yield "a choice needs at least two [[question.option]]"
    ids = [x.id for x in question.options]
    yield from _twice("ids of options", ids)
    if question.answer not in ids:
        yield f"`answer` must be the id of an option ({', '.join(ids)}), got {question.answer!r}"
    for option in question.options:
        if option.id != question.answer and not option.why["en"]:
            yield f"option {option.id} is wrong and does not say why: write why.tr and why.en"
        if option.id == question.answer and option.why["en"]:
            yield f"option {option.id} is right: its reason belongs in `explain`"
    for language in ("tr", "en"):
        yield from _twice(f"options ({language})", [x.text[language] for x in question.options])


def _blank(question: Question) -> Iterator[str]:
    """Go through what is wrong with a blank."""
    if not question.accept:
        yield "a blank needs `accept`, a list of right texts"
    if any(text.count(BLANK) != 1 for text in question.prompt.values()):
        yield f"the prompt of a blank must have one {BLANK}"
    yield from _twice("texts", [*question.accept, *(x.text for x in question.near)])
    if not question.near:
        yield "a blank needs at least one [[question.near]], a wrong text and why it is wrong"


def _twice(what: str, texts: Sequence[str]) -> Iterator[str]:
    """Say which texts are there twice, case and spaces aside."""
    for place, text in enumerate(texts):
        if any(same_text(text, other) for other in texts[:place]):
            yield f"two {what} are the same: {text!r}"


# ---------------------------------------------------------------------------------- the exercises


def _exercise(exercise: Exercise) -> Iterator[str]:
    """Go through what is wrong with an exercise."""
    if exercise.starter.count("{here}") != 1:
        yield "the starter must have one {here}, the comment where to write"
        return
    for name, hints in exercise.mistakes.items():
        if hints.figure:
            yield from (f"mistake {name}: {problem}" for problem in _figure(hints.figure))
    try:
        yield from _judged(exercise)
    except NoVerdict as error:
        yield str(error)


def _judged(exercise: Exercise) -> Iterator[str]:
    """Go through what is wrong with what an exercise knows, and with what it says of itself."""
    if exercise.bank:
        yield from _bank(exercise)
    else:
        yield from _programs(exercise)
    if exercise.bank and exercise.bank not in FAMILIES:
        return
    if not exercise.bank and not exercise.cases:
        return
    verdict = judge(exercise, exercise.solution)
    if not verdict.right:
        yield f"the solution fails: {verdict.message} {dict(verdict.facts)}"
    elif judge(exercise, exercise.started("en")).right:
        yield "the starter passes as it is"


def _bank(exercise: Exercise) -> Iterator[str]:
    """Go through what is wrong with an exercise whose mistakes a family knows."""
    if exercise.bank not in FAMILIES:
        yield f"`bank` must be one of {', '.join(FAMILIES)}, got {exercise.bank!r}"
        return
    known = mistakes.names(FAMILIES[exercise.bank])
    for name in known:
        if name not in exercise.mistakes:
            yield f'mistake {name} has no hints: write [mistake."{name}"]'
    for name, hints in exercise.mistakes.items():
        if name not in known:
            yield f"no mistake of the bank is called {name}; there are: {', '.join(known)}"
        if hints.program:
            yield f"mistake {name}: the bank knows it, `program` is not needed"
    if exercise.cases:
        yield "the bank has its own cases, `cases` is not needed"


def _programs(exercise: Exercise) -> Iterator[str]:
    """Go through what is wrong with an exercise that brings its own wrong programs."""
    if not exercise.cases:
        yield ("without a `bank` it needs `cases`, a list of arguments such as "
               "'(np.array([1.0, 2.0]),)'")  # fmt: skip
        return
    bank = bank_of(exercise)
    for name, hints in exercise.mistakes.items():
        if not hints.program:
            yield f"mistake {name} needs a `program` that makes it"
            continue
        outcomes = dict(bank.entries).get((name,))
        if outcomes is None:
            yield f"mistake {name}: its program does not define {exercise.entry}, or ends before it"
        elif bank.name(outcomes) != (name,):
            other = " ".join(bank.name(outcomes) or ()) or "the solution"
            yield f"mistake {name}: on all cases its program does the same as {other}"
