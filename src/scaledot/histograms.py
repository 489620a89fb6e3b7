"""The products query · key of sampled rows in bins, of sequences of any length."""

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from scaledot import arrays, checks
from scaledot.call import Call, prepare
from scaledot.results import Array

__all__ = ["ScoreHistogram", "score_histogram"]

SCORES_A_BLOCK = 2**22
"""Scores that are in memory at once: 16 MiB of float32."""
MOST_PRODUCTS = 2**24
"""Products that a histogram is made of: 4,096 rows of 4,096 keys, about a second of work."""


@dataclass(frozen=True)
class ScoreHistogram:
    """Products query · key of sampled rows; those times the scale spread by `scale` · `std`."""

    counts: np.ndarray
    """(bins,), int64: how many products lie in each bin."""
    edges: np.ndarray
    """(bins + 1,), float64: where the bins begin and end, before the scale."""
    scale: float
    std: float
    """Standard deviation of the products, before the scale; NaN without any."""
    n_rows: int
    """Rows that were taken, of `of_rows`."""
    of_rows: int
    seed: int | None
    """That by which they were drawn; None by a generator."""
    n_products: int
    """Visible products of those rows that are finite."""
    n_unsound: int
    """Those that are NaN or infinite, and in no bin."""

    @property
    def label(self) -> str:
        """How many rows were taken and how, in words."""
        label = f"all {self.of_rows:,} rows,"
        if self.n_rows != self.of_rows:
            drawn = "at random" if self.seed is None else f"by seed {self.seed}"
            label = f"{self.n_rows:,} of {self.of_rows:,} rows, drawn {drawn};"
        label += f" {self.n_products:,} products"
        return label + (f"; {self.n_unsound:,} not finite" if self.n_unsound else "")


def score_histogram(
    query: Array,
    key: Array,
    *,
    rows: int = 4096,
    bins: int = 120,
    rng: int | np.random.Generator = 0,
    **how: Any,
) -> ScoreHistogram:
    """Count the visible products query · key of sampled rows of all heads, bin by bin.

    Parameters
    ----------
    query, key, **how
        As for `scaledot.attention`. Products are those before scale, cap and bias, at keys that the
        row may see.
    rows : int
        At most so many rows; fewer where they would make more than 2²⁴ products.
    bins : int
        At most so many bins of one width from the smallest to the largest product, and no more than
        the square root of the number of products.
    rng : int or Generator
        A seed, or a generator, for the rows.

    Returns
    -------
    ScoreHistogram
        One histogram for both: a bin of products from a to b is one of scaled products from
        scale · a to scale · b.

    Raises
    ------
    TypeError, ValueError
        As `scaledot.attention`; `rows` and `bins` that are no ints >= 1.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledot.histograms import score_histogram
    >>> query, key = np.random.default_rng(0).normal(size=(2, 8, 1000, 64))
    >>> seen = score_histogram(query, key)
    >>> seen.label
    '4,096 of 8,000 rows, drawn by seed 0; 4,096,000 products'
    >>> round(seen.std), round(seen.std * seen.scale, 1)
    (8, 1.0)
    """
    most, n_bins = checks.integer("rows", rows, least=1), checks.integer("bins", bins, least=1)
    scale = prepare(query, key, None, how).plan.scale
    call = prepare(query, key, None, {**how, "scale": 1.0})
    of_rows = math.prod(call.problem.layout.shape(len(call.problem.rows)))
    n_rows = min(of_rows, most, max(1, MOST_PRODUCTS // max(1, call.problem.frame.n_keys)))
    chosen = np.random.default_rng(rng).choice(of_rows, n_rows, replace=False, shuffle=False)
    chosen.sort()

    n, n_unsound, total, least, largest = 0, 0, 0.0, math.inf, -math.inf
    for finite, unsound in _products(call, chosen):
        n, n_unsound = n + finite.size, n_unsound + unsound
        total += float(finite.sum())
        least = min(least, float(finite.min(initial=math.inf)))
        largest = max(largest, float(finite.max(initial=-math.inf)))
    n_bins = min(n_bins, max(1, math.isqrt(n)))
    edges = _edges(least, largest, n_bins) if n else np.linspace(-0.5, 0.5, n_bins + 1)
    counts, squares = np.zeros(n_bins, np.int64), 0.0
    for finite, _ in _products(call, chosen):
        counts += np.histogram(finite, edges)[0]
        squares += float(np.sum((finite - total / n) ** 2)) if n else 0.0
    std = math.sqrt(squares / n) if n else math.nan
    seed = operator.index(rng) if isinstance(rng, Integral) else None
    return ScoreHistogram(counts, edges, scale, std, n_rows, of_rows, seed, n, n_unsound)


def _products(call: Call, chosen: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the finite visible scaled products of rows of (..., H, T), and how many are not."""
    n_queries = max(1, len(call.problem.rows))
    heads, rows = np.divmod(chosen, n_queries)
    for head in np.unique(heads):
        place = np.unravel_index(head, call.problem.layout.shape() or (1,))
        mine = rows[heads == head]
        problem = call.problem.of_head(tuple(map(int, place))).of_rows(mine)
        with np.errstate(all="ignore"):  # as in every call: -inf - -inf has a meaning
            for _, stages in problem.walk(slice(0, len(mine)), max(1, SCORES_A_BLOCK // len(mine))):
                visible = arrays.on_host(stages.masked) != -np.inf
                products = arrays.on_host(stages.scaled)[visible].astype(np.float64)
                finite = products[np.isfinite(products)]
                yield finite, products.size - finite.size


def _edges(least: float, largest: float, n_bins: int) -> np.ndarray:
    """Return the edges of bins of one width from the smallest to the largest number."""
    if largest - least <= 1e-9 * max(abs(least), abs(largest)):  # no bins between two neighbours
        margin = max(0.5, abs(least) / 1000)
        least, largest = least - margin, largest + margin
    places = np.linspace(0, 1, n_bins + 1)
    edges: np.ndarray = least * (1 - places) + largest * places
    return edges
