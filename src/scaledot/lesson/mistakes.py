"""Mistakes told apart by what they compute, whatever the code looks like.

A family describes a function by choices: along each axis one value is right and the others are the
mistakes people make. Every choice with at most two mistakes is a recipe; what a learner's function
returns is compared with what every recipe returns on the same inputs, fewest mistakes first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from scaledot.lesson.run import Case, Error, Outcome, Result

MOST = 2
"""Mistakes at once that are named; three are hardly ever what they look like."""


@dataclass(frozen=True)
class Family:
    """A function to be written, the mistakes that are made in it, and inputs that show them."""

    axes: Mapping[str, tuple[str, ...]]
    """Choices by axis, in the order in which mistakes are best corrected; the first is right. Two
    values that differ after a colon are one mistake made in two ways."""
    recipe: Callable[..., Any]
    """recipe(*case, **choices) returns what these choices lead to."""
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Bank:
    """What is right and what is wrong, by their outcomes."""

    cases: tuple[Case, ...]
    entries: tuple[tuple[tuple[str, ...], tuple[Outcome, ...]], ...]
    """(mistakes, an outcome for each case); the first entry is the one without mistakes."""

    @property
    def right(self) -> tuple[Outcome, ...]:
        """What a right function does."""
        return self.entries[0][1]

    def name(self, outcomes: Sequence[Outcome]) -> tuple[str, ...] | None:
        """Return the mistakes of the first entry that does the same in every case, or None."""
        if len(outcomes) != len(self.cases):
            return None
        for mistakes, known in self.entries:
            if all(map(alike, outcomes, known)):
                return mistakes
        return None


def bank(family: Family) -> Bank:
    """Return the outcomes of all recipes with at most two mistakes."""
    entries = []
    for choice in _choices(family.axes):
        mistakes = tuple(
            dict.fromkeys(_name(axis, choice[axis]) for axis, values in family.axes.items()
                          if choice[axis] != values[0])
        )  # fmt: skip
        entries.append((mistakes, tuple(_outcome(family, case, choice) for case in family.cases)))
    return Bank(family.cases, tuple(entries))


def names(family: Family) -> list[str]:
    """Return the names of the single mistakes, `axis.value`."""
    every = (_name(axis, x) for axis, values in family.axes.items() for x in values[1:])
    return list(dict.fromkeys(every))


def alike(one: Outcome, other: Outcome) -> bool:
    """Say whether two calls did the same: both raised, or returned the same to rounding."""
    if one.error or other.error:
        return bool(one.error and other.error)
    if one.several != other.several or len(one.results) != len(other.results):
        return False
    return all(map(same, one.results, other.results))


def same(one: Result | str, other: Result | str) -> bool:
    """Say whether two results are the same: shape, and values to half the digits of their types."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    if one.values.shape != other.values.shape:
        return False
    rounding = max(tolerance(one.dtype), tolerance(other.dtype))
    return np.allclose(one.values, other.values, rtol=rounding, atol=rounding, equal_nan=True)


def tolerance(dtype: str) -> float:
    """Return √ε of a type: 1.5e-8 for float64, 3.5e-4 for float32."""
    kind = np.dtype(dtype)
    return float(np.sqrt(np.finfo(kind if kind.kind == "f" else np.float64).eps))


def _choices(axes: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """Go through the choices, fewest mistakes first."""
    right = {axis: values[0] for axis, values in axes.items()}
    for count in range(MOST + 1):
        for wrong in combinations(axes, count):
            for values in product(*(axes[axis][1:] for axis in wrong)):
                yield right | dict(zip(wrong, values, strict=True))


def _name(axis: str, value: str) -> str:
    """Return the name of a mistake."""
    return f"{axis}.{value.partition(':')[0]}"


def _outcome(family: Family, case: Case, choice: Mapping[str, str]) -> Outcome:
    """Return what a recipe does on a case."""
    try:
        with np.errstate(all="ignore"):
            returned = family.recipe(*case, **choice)
    except ValueError as error:  # shapes that do not fit
        return Outcome(error=Error("ValueError", str(error), None))
    several = isinstance(returned, tuple)
    every = returned if several else (returned,)
    return Outcome(tuple(Result(np.asarray(x, float), "float64") for x in every), several)
