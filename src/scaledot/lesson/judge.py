"""Judge a learner's program by what it does: a ladder of checks, and the mistakes by name.

It returns ids and numbers, never sentences; `texts` has the words in both languages.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from scaledot.lesson import mistakes
from scaledot.lesson.content import Exercise
from scaledot.lesson.mistakes import Bank
from scaledot.lesson.recipes import FAMILIES
from scaledot.lesson.run import USUAL, Limits, Outcome, Result, Run, remembered, run

CHECKS = ("runs", "defines", "returns", "values", "keeps", "prints")
"""Runs to its end; defines the function; which returns the right kinds and shapes; and the right
values; and keeps its inputs as they were; and the program prints what is expected."""


class NoVerdict(RuntimeError):
    """The solution of an exercise, with which programs are compared, gave no results."""


@dataclass(frozen=True)
class Verdict:
    """What a program is worth, and what to say of it."""

    passed: tuple[str, ...]
    """Of CHECKS."""
    message: str
    """The id of what to say first."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the message speaks of: plain numbers and strings."""
    mistakes: tuple[str, ...] = ()
    """In the order in which they are best corrected."""
    printed: str = ""
    complained: str = ""

    @property
    def right(self) -> bool:
        """Whether every check is passed."""
        return self.passed == CHECKS

    @property
    def score(self) -> float:
        """The share of checks that are passed."""
        return len(self.passed) / len(CHECKS)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, as JSON takes it."""
        return {
            "right": self.right,
            "score": round(self.score, 3),
            "passed": list(self.passed),
            "message": self.message,
            "facts": dict(self.facts),
            "mistakes": list(self.mistakes),
            "printed": self.printed,
            "complained": self.complained,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Verdict":
        """Return the verdict that `to_dict` was called on."""
        return cls(
            passed=tuple(found["passed"]),
            message=found["message"],
            facts=found["facts"],
            mistakes=tuple(found["mistakes"]),
            printed=found["printed"],
            complained=found["complained"],
        )


@lru_cache(maxsize=64)
def _family(name: str) -> Bank:
    """Return the bank of a family."""
    return mistakes.bank(FAMILIES[name])


def _outcomes(program: str, entry: str, cases: tuple[str, ...]) -> tuple[Outcome, ...]:
    """Return what the solution or a wrong program does in every case."""
    found = remembered(program, entry, cases)
    if len(found.outcomes) != len(cases):
        what = f"does not define {entry}" if found.stage == "done" else f"ended with: {found.stage}"
        raise NoVerdict(f"nothing can be judged: the exercise's own solution {what}")
    return found.outcomes


def _programs(exercise: Exercise) -> Bank:
    """Return the bank that the solution and the wrong programs of an exercise make."""
    entry, cases = exercise.entry, exercise.cases
    entries: list[tuple[tuple[str, ...], tuple[Outcome, ...]]] = [
        ((), _outcomes(exercise.solution, entry, cases))
    ]
    for name, hints in exercise.mistakes.items():
        if hints.program:
            with suppress(NoVerdict):
                entries.append(((name,), _outcomes(hints.program, entry, cases)))
    return Bank(cases, tuple(entries))


def bank_of(exercise: Exercise) -> Bank:
    """Return what is known of an exercise: by its family, or by its solution and programs.

    Raises
    ------
    NoVerdict
        A solution that ended before it did every case.
    """
    return _family(exercise.bank) if exercise.bank else _programs(exercise)


def judge(exercise: Exercise, code: str, limits: Limits = USUAL) -> Verdict:
    """Run a program, and say what it is worth; raises NoVerdict as `bank_of` does."""
    bank = bank_of(exercise)
    found = run(code, exercise.entry, bank.cases, limits)
    named = bank.name(found.outcomes) if found.outcomes else None
    checks = {
        "runs": found.stage == "done",
        "defines": found.defined,
        "returns": _kinds(found, bank),
        "values": named == (),
        "keeps": bool(found.outcomes) and not found.touched,
        "prints": not difference(found.printed, exercise.expected),
    }
    message, facts = _message(exercise, bank, found, named, checks, limits)
    return Verdict(
        passed=tuple(name for name in CHECKS if checks[name]),
        message=message,
        facts=facts,
        mistakes=named or (),
        printed=found.printed,
        complained=found.complained,
    )


def _message(
    exercise: Exercise,
    bank: Bank,
    found: Run,
    named: tuple[str, ...] | None,
    checks: Mapping[str, bool],
    limits: Limits,
) -> tuple[str, dict[str, Any]]:
    """Return what to say first, and what it speaks of."""
    ended = ending(found, limits)
    if ended and ended[0] != "raised":
        return ended
    stopped = ended[1] if ended else {}
    if named:
        return "mistake", stopped
    if ended:
        if found.outcomes and named is None:
            cause, facts = _first_difference(bank, found)
            if cause in ("nothing", "count"):  # what the program does with the result then fails
                return cause, facts | stopped
        return ended
    if not found.defined:
        if not found.functions:
            return "no_function", {"entry": exercise.entry}
        return "missing", {"entry": exercise.entry, "functions": ", ".join(found.functions)}
    if named is None:
        return _first_difference(bank, found)
    if not checks["keeps"]:
        return "touched", {}
    if not checks["prints"]:
        return "prints", difference(found.printed, exercise.expected)
    return "right", {}


def ending(found: Run, limits: Limits = USUAL) -> tuple[str, dict[str, Any]] | None:
    """Return what ended a run before its end, and what to say of it; None where nothing did."""
    if found.stage == "done":
        return None
    facts: dict[str, Any] = found.error._asdict() if found.error else {"line": found.line}
    if found.stage == "memory" or facts.get("kind") == "MemoryError":
        return "memory", facts | limits.shown
    if found.stage == "timeout":
        return "timeout", facts | limits.shown
    return found.stage, facts


def _kinds(found: Run, bank: Bank) -> bool:
    """Say whether every call returned as many results as it should, in the right shapes."""

    def kind(outcome: Outcome) -> Any:
        shapes = [x if isinstance(x, str) else x.values.shape for x in outcome.results]
        return outcome.error is None, outcome.several, shapes

    outcomes = found.outcomes
    return bool(outcomes) and list(map(kind, outcomes)) == list(map(kind, bank.right))


def _first_difference(bank: Bank, found: Run) -> tuple[str, dict[str, Any]]:
    """Return the first thing that a call did otherwise than it should; no guess why."""
    for got, want in zip(found.outcomes, bank.right, strict=True):
        if mistakes.alike(got, want):
            continue
        if got.error:
            return "call_raised", got.error._asdict()
        if got.results == ("NoneType",):
            return "nothing", {}
        if got.several != want.several or len(got.results) != len(want.results):
            return "count", {"got": len(got.results), "want": len(want.results)}
        for place, (one, other) in enumerate(zip(got.results, want.results, strict=True)):
            assert not isinstance(other, str)
            if not mistakes.same(one, other):
                return _entry(place, one, other)
    raise AssertionError("every outcome is alike, and yet no entry of the bank is")


def _entry(place: int, got: Result | str, want: Result) -> tuple[str, dict[str, Any]]:
    """Return the kind, the shape or the first entry in which a result differs."""
    facts: dict[str, Any] = {"result": place + 1}
    if isinstance(got, str):
        return "kind", facts | {"got": got}
    if got.values.shape != want.values.shape:
        return "shape", facts | {"got": f"{got.values.shape}", "want": f"{want.values.shape}"}
    rounding = mistakes.tolerance(got.dtype)
    near = np.isclose(got.values, want.values, rtol=rounding, atol=rounding, equal_nan=True)
    entry = tuple(int(x) for x in np.argwhere(~near)[0])
    values = {"got": f"{got.values[entry]:.6g}", "want": f"{want.values[entry]:.6g}"}
    return "value", facts | {"entry": str(list(entry))} | values


def difference(printed: str, expected: str) -> dict[str, int]:
    """Return row and column, from 1, of the first difference; nothing where there is none.

    Space at the ends of lines and empty lines at the end do not count.
    """
    got, want = lines(printed), lines(expected)
    for row in range(max(len(got), len(want))):
        one, other = "".join(got[row : row + 1]), "".join(want[row : row + 1])
        if one != other or row >= min(len(got), len(want)):
            pairs = enumerate(zip(one, other, strict=False))
            column = next((i for i, (x, y) in pairs if x != y), min(len(one), len(other)))
            return {"row": row + 1, "column": column + 1}
    return {}


def lines(text: str) -> list[str]:
    """Return what is compared of a printed text."""
    return [line.rstrip() for line in text.strip("\n").rstrip().splitlines()]
