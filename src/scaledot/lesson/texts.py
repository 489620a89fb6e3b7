"""Words for ids: what the lesson says around its content, in every language."""

import locale
import os
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from scaledot.lesson.content import Exercise
from scaledot.lesson.judge import CHECKS, Verdict
from scaledot.lesson.tables import Text

FILE = Path(__file__).with_name("content") / "ui.toml"
RUNGS = ("did", "why", "where", "solution")
"""The ladder of hints."""
CAUSES = ("mistake", "nothing", "count")
"""Messages that may be why Python stopped the program, which is said after them."""


@cache
def all_texts() -> Mapping[str, Text]:
    """Return every text by its id."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {f"{part}.{name}": x for part, texts in found.items() for name, x in texts.items()}


def say(name: str, language: str, /, **facts: Any) -> str:
    """Return a text, with facts in their places; a fact that is unknown is a dash."""
    shown = {key: "–" if fact is None else fact for key, fact in facts.items()}
    return all_texts()[name][language].format_map(shown)


def usual_language() -> str:
    """Return the language of the user's locale, or English if it is another."""
    names = [os.environ.get(x, "") for x in ("LC_ALL", "LC_MESSAGES", "LANG")]
    name = next((x for x in (*names, locale.getlocale()[0] or "") if x), "").lower()
    # "tr_TR.UTF-8", and what Windows says
    return "tr" if name.startswith(("tr", "turkish")) else "en"


def number(x: float, digits: int, language: str) -> str:
    """Return a number as the language writes it."""
    shown = f"{x:.{digits}f}"
    return shown.replace(".", ",") if language == "tr" else shown


def checks(verdict: Verdict, language: str) -> Iterator[tuple[bool, str]]:
    """Go through the checks: whether each is passed, and what it is."""
    for name in CHECKS:
        yield name in verdict.passed, say(f"check.{name}", language)


def message(verdict: Verdict, exercise: Exercise, language: str) -> str:
    """Return what to say first of a program; after a cause, the error that stopped it."""
    if verdict.message == "mistake":
        told = _mistakes(verdict, exercise, language)
    else:
        facts = {"returns": exercise.returns[language], **verdict.facts}
        told = say(f"grader.{verdict.message}", language, **facts)
    if verdict.message in CAUSES and "kind" in verdict.facts:
        return f"{told} {say('grader.raised', language, **verdict.facts)}"
    return told


def _mistakes(verdict: Verdict, exercise: Exercise, language: str) -> str:
    """Return what the learner did: one mistake, or two."""
    did = [exercise.mistakes[name].did[language] for name in verdict.mistakes]
    if len(did) == 1:
        return did[0]
    return say("grader.two", language, first=did[0], second=did[1])


def hint(verdict: Verdict, exercise: Exercise, rung: str, language: str) -> str:
    """Return one rung of the ladder for the mistake that is best corrected first, before the last.

    Of what no mistake explains there is only the first, what happened, which `message` tells.
    """
    hints = exercise.mistakes[verdict.mistakes[0]]
    return {"did": hints.did, "why": hints.why, "where": hints.where}[rung][language]


def rungs(verdict: Verdict) -> tuple[str, ...]:
    """Return the rungs that a verdict has hints for."""
    if verdict.right:
        return ()
    return RUNGS if verdict.mistakes else ("did", "solution")
