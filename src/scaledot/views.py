"""What pictures show, computed apart from drawing it, of sequences of any length.

Weights go into cells block by block, so that no score matrix is ever made.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaledot import api, arrays, checks
from scaledot.call import prepare
from scaledot.histograms import SCORES_A_BLOCK, ScoreHistogram, score_histogram
from scaledot.results import Array, Observation

__all__ = [
    "Overview",
    "WeightsView",
    "in_cells",
    "overview",
    "view_weights",
]

CELLS = 350, 350
"""What a heat map of five inches has pixels for."""


@dataclass(frozen=True)
class WeightsView:
    """Weights in cells: what queries give to neighbouring keys together, the mean over queries.

    The cells of a row of cells sum to 1, as the weights of a row do. Without enough tokens to fill
    the cells each weight is a cell of its own.
    """

    cells: np.ndarray
    """(..., H, rows of cells, columns of cells); NaN where a weight is."""
    n_queries: int
    n_keys: int
    step: tuple[int, int]
    """Queries and keys to a cell; the last ones may have fewer."""

    @property
    def label(self) -> str:
        """What the number of a cell is, in words."""
        n_queries, n_keys = self.step
        given = "weight" if n_keys == 1 else f"weight given to {n_keys:,} keys"
        return given if n_queries == 1 else f"{given}, mean of {n_queries:,} queries"

    def coarser(self, cells: tuple[int, int]) -> "WeightsView":
        """Return the same weights in at most so many cells.

        Examples
        --------
        >>> view = view_weights(np.zeros((4, 1)), np.zeros((8, 1)))
        >>> view.coarser((2, 4)).cells
        array([[0.25, 0.25, 0.25, 0.25],
               [0.25, 0.25, 0.25, 0.25]])
        """
        held = self.cells.shape[-2:]
        rows, columns = step_of(held[0], cells[0]), step_of(held[1], cells[1])
        if rows == columns == 1:
            return self
        step = self.step[0] * rows, self.step[1] * columns
        given = together(self.cells, columns, axis=-1)
        given *= _queries_of(held[0], self.step[0], self.n_queries)[:, None]
        sums = together(given, rows, axis=-2)
        means = sums / _queries_of(sums.shape[-2], step[0], self.n_queries)[:, None]
        return WeightsView(means, self.n_queries, self.n_keys, step)


def step_of(n: int, most: int) -> int:
    """Return how many of n neighbours go into each of at most so many cells."""
    return max(1, -(-n // most))


def together(x: np.ndarray, step: int, axis: int) -> np.ndarray:
    """Return the sums of each so many neighbours along an axis, in float64; the last has the rest.

    Examples
    --------
    >>> together(np.arange(5), 2, axis=0)
    array([1., 5., 4.])
    """
    starts = np.arange(0, x.shape[axis], step)
    found: np.ndarray = np.add.reduceat(x, starts, axis=axis, dtype=np.float64)
    return found


def _queries_of(n_cells: int, step: int, n_queries: int) -> np.ndarray:
    """Return how many queries each row of cells stands for."""
    return np.minimum(step, n_queries - step * np.arange(n_cells))


def in_cells(weights: Array) -> WeightsView:
    """Return weights (..., T, S) that are there already, each in a cell of its own."""
    xp, given = arrays.adopt_all({"weights": weights})
    (found,), _ = arrays.floats(xp, given)
    checks.ranks({"weights": tuple(found.shape)})
    cells = arrays.on_host(found)
    return WeightsView(cells, cells.shape[-2], cells.shape[-1], (1, 1))


def view_weights(
    query: Array,
    key: Array,
    *,
    cells: tuple[int, int] = CELLS,
    head: int | tuple[int, ...] | None = None,
    advance: Callable[[int], None] | None = None,
    **how: Any,
) -> WeightsView:
    """Return the weights in cells that fit a picture, in memory that does not grow with T × S.

    Parameters
    ----------
    query, key, **how
        As for `scaledot.attention`.
    cells : (int, int)
        At most so many cells for queries and for keys.
    head : int or ints
        One head alone: its place in (..., H). All of them by default.
    advance : function
        Called with a number of query rows each time so many are done.

    Returns
    -------
    WeightsView
        Of shape (..., H, rows, columns), or (rows, columns) for one head.

    Raises
    ------
    TypeError, ValueError
        As `scaledot.attention`; a `head` that is not there; `cells` that are no two ints >= 1.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot.views import view_weights
    >>> view = view_weights(np.zeros((4, 1)), np.zeros((4, 1)), cells=(2, 2), causal=True)
    >>> view.cells.round(3)
    array([[1.   , 0.   ],
           [0.583, 0.417]])
    >>> view.label
    'weight given to 2 keys, mean of 2 queries'
    """
    most = checks.cells(cells)
    call = prepare(query, key, None, how)
    front = call.problem.layout.shape()
    if head is not None:
        call = call._replace(problem=call.problem.of_head(checks.head(head, front)))
        front = ()
    n_queries, n_keys = len(call.problem.rows), call.problem.frame.n_keys
    step = step_of(n_queries, most[0]), step_of(n_keys, most[1])
    sums = np.zeros((*front, -(-n_queries // step[0]), -(-n_keys // step[1])))
    n_rows = max(1, SCORES_A_BLOCK // max(1, math.prod(front) * n_keys))
    for start in range(0, n_queries, n_rows):
        rows = np.arange(start, min(start + n_rows, n_queries))
        _add(sums, rows, arrays.on_host(call.weights_of(rows)), step)
        if advance is not None:
            advance(len(rows))
    means = sums / _queries_of(sums.shape[-2], step[0], n_queries)[:, None]
    return WeightsView(means, n_queries, n_keys, step)


def _add(sums: np.ndarray, rows: np.ndarray, weights: np.ndarray, step: tuple[int, int]) -> None:
    """Add the weights of some neighbouring rows to the cells that they belong to."""
    if not weights.size:
        return
    part = together(weights, step[1], axis=-1)
    first = np.flatnonzero((rows % step[0] == 0) | (rows == rows[0]))
    sums[..., rows[first] // step[0], :] += np.add.reduceat(part, first, axis=-2)


# ------------------------------------------------------------------------------------- together


@dataclass(frozen=True)
class Overview:
    """What one picture shows of some queries and keys."""

    seen: Observation
    """With `SEEN` at least."""
    scores: ScoreHistogram
    weights: WeightsView
    """Of one head, (rows, columns)."""
    head: tuple[int, ...]
    """Its place in (..., H); () where there is but one."""


SEEN = ("max_weight", "entropy", "received")
"""What an overview needs of `scaledot.observe`."""


def overview(
    query: Array,
    key: Array,
    *,
    head: int | tuple[int, ...] | None = None,
    seen: Observation | None = None,
    advance: Callable[[int], None] | None = None,
    **how: Any,
) -> Overview:
    """Return what `scaledot.plots.overview` draws, in memory that does not grow with T × S.

    Parameters
    ----------
    query, key, **how
        As for `scaledot.attention`.
    head : int or ints
        The head whose weights are shown: its place in (..., H), or its number in the first entry
        of the axes before. By default the first.
    seen : Observation
        What `scaledot.observe` returned for the same arguments, max_weight, entropy and received
        among it; it is observed here by default.
    advance : function
        Called with a number of query rows each time so many rows of the shown head are done.

    Returns
    -------
    Overview
        The statistics of all heads, a histogram of the products query · key, and the weights of
        one head.

    Raises
    ------
    TypeError, ValueError
        As `scaledot.attention`; a `head` that is not there.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot.views import overview
    >>> query, key = np.random.default_rng(0).normal(size=(2, 3, 8, 100, 64))
    >>> overview(query, key, head=5).head
    (0, 5)
    """
    if seen is None:
        seen = api.observe(query, key, statistics=SEEN, **how)
    front = prepare(query, key, None, how).problem.layout.shape()
    first = (0,) * len(front)
    if head is None:
        head = first
    elif not isinstance(head, tuple):
        head = (*first[1:], head)
    place = checks.head(head, front)
    return Overview(
        seen,
        score_histogram(query, key, **how),
        view_weights(query, key, head=place, advance=advance, **how),
        place,
    )
