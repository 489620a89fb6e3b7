"""A whole problem in slices of query rows: what makes long work show its progress and stop.

Each slice is one call of `scaledot.observe` on its own rows, with the `query_offset` that puts them
where they stand in the whole.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import scaledot
from scaledot.call import prepare
from scaledot.files import Array, Refusal
from scaledot.statistics import DEFAULT, NAMES

SCORES_A_SLICE = 2**22
"""Some tenths of a second of work on one core; 16 MiB of float32 weights."""


class Problem(NamedTuple):
    """Arrays and keywords of one attention, as the public functions take them."""

    query: Array
    key: Array
    value: Array | None
    """None where only the weights are looked at."""
    how: dict[str, Any]
    statistics: tuple[str, ...] = DEFAULT
    """What is wanted of the weights; the default ones are made in any case."""
    k: int = 8
    """How many weights `top_k` keeps of each row."""


@contextmanager
def refusals() -> Iterator[None]:
    """Pass on what the library says of wrong input, as one line."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise Refusal(str(error)) from error


def plan(problem: Problem) -> "scaledot.Plan":
    """Return the plan of the whole, statistics included; all checks are made here."""
    with refusals():
        positions = "distance" in problem.statistics
        given = problem.query, problem.key, problem.value, problem.how
        return prepare(*given, positions=positions).plan


def rooms(problem: Problem) -> dict[str, Array]:
    """Return arrays for the output and the statistics; what keys receive begins at 0."""
    n_queries = problem.query.shape[-2]
    found = _observe(problem, 0, 0, _names(problem))  # no rows at all: it tells shapes and types
    room = {}
    for name, x in found.items():
        if name == "received":
            room[name] = np.zeros_like(x)
        else:
            axis = _rows_axis(name, x)
            shape = (*x.shape[: x.ndim + axis], n_queries, *x.shape[x.ndim + axis + 1 :])
            room[name] = np.empty(shape, x.dtype)
    return room


def _names(problem: Problem) -> tuple[str, ...]:
    """Return the statistics that are made: the default ones, and what is wanted beside them."""
    return tuple(name for name in NAMES if name in DEFAULT or name in problem.statistics)


def _rows_axis(name: str, x: Array) -> int:
    """Return the axis of a result that counts query rows."""
    return -2 if name == "output" or name.startswith("top_k") else -1


def fill(
    problem: Problem,
    results: dict[str, Array],
    weights: Array | None,
    advance: Callable[[int], None],
) -> None:
    """Compute slice by slice into the arrays of `results`, and into `weights` where it is given."""
    n_queries = problem.query.shape[-2]
    names = _names(problem)
    asked = names if weights is None else (*names, "weights_of")
    n_rows = rows_a_slice(problem, results)
    for start in range(0, n_queries, n_rows):
        stop = min(start + n_rows, n_queries)
        found = _observe(problem, start, stop, asked)
        if weights is not None:
            # as `attention` returns them: rounded to the type of the output
            weights[..., start:stop, :] = found.pop("weights_of").astype(found["output"].dtype)
        for name, x in found.items():
            if name == "received":
                results[name] += x
            elif _rows_axis(name, x) == -2:
                results[name][..., start:stop, :] = x
            else:
                results[name][..., start:stop] = x
        advance(stop - start)


def rows_a_slice(problem: Problem, results: dict[str, Array]) -> int:
    """Return how many query rows, of every head and batch, make one slice."""
    n_scores: int = math.prod(results["log_sum_exp"].shape[:-1]) * problem.key.shape[-2]
    return max(1, SCORES_A_SLICE // max(1, n_scores))


def _observe(
    problem: Problem, start: int, stop: int, statistics: tuple[str, ...]
) -> dict[str, Array]:
    """Observe the query rows start:stop; the largest weights come as two arrays."""
    how = dict(problem.how)
    how["query_offset"] = _first_position(problem) + start
    for name in ("mask", "bias"):
        if name in how:
            how[name] = _rows(how[name], start, stop)
    if "query_lengths" in how:
        how["query_lengths"] = np.clip(how["query_lengths"] - start, 0, stop - start)
    rows = range(stop - start) if "weights_of" in statistics else None
    query = problem.query[..., start:stop, :]
    with refusals():
        seen = scaledot.observe(
            query, problem.key, problem.value, statistics=statistics, k=problem.k, rows=rows, **how
        )
    found = {name: x for name, x in seen._asdict().items() if x is not None}
    if seen.top_k is not None:
        del found["top_k"]
        found |= {"top_k_values": seen.top_k.values, "top_k_indices": seen.top_k.indices}
    return found


def _rows(array: Array, start: int, stop: int) -> Array:
    """Return the rows start:stop of a mask or bias, unless one row, or none, stands for all."""
    if array.ndim < 2 or array.shape[-2] == 1:
        return array
    return array[..., start:stop, :]


def _first_position(problem: Problem) -> Any:
    """Return the position of query 0 among the keys, the default of `query_offset` written out."""
    how = problem.how
    if "query_offset" in how:
        return how["query_offset"]
    if "key_lengths" in how and "query_lengths" in how:
        return how["key_lengths"] - how["query_lengths"]
    if "key_lengths" in how or "query_lengths" in how:
        return 0  # the plan has refused whatever would look at it
    return problem.key.shape[-2] - problem.query.shape[-2]
