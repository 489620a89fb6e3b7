"""The effect of the scale: what dividing by √d does to the softmax and to its gradient.

A dot product of two random vectors is a sum of d independent terms, so its variance grows like d
and its spread like √d. Large scores pile the softmax on one key, where its Jacobian, and with it
the gradient, vanishes; divided by √d the scores keep a spread of about 1 at every d (Vaswani et al.
2017, "Attention Is All You Need", section 3.2.1, footnote 4).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scaledot import api, checks
from scaledot.diagnosis import Diagnosis, diagnose
from scaledot.findings import Finding
from scaledot.heads import SATURATED, Head, Thresholds
from scaledot.tables import table
from scaledot.training import Curve, Training, train

__all__ = [
    "Curve",
    "Diagnosis",
    "Finding",
    "Head",
    "Study",
    "StudyRow",
    "Thresholds",
    "Training",
    "diagnose",
    "study",
    "train",
]

ScaleOfSize = Callable[[int], float]

SCALES: dict[str, ScaleOfSize] = {
    "none": lambda d: 1.0,
    "1/sqrt(d)": lambda d: 1 / math.sqrt(d),
    "1/d": lambda d: 1 / d,
}
"""Scales that `study` knows by name."""


class StudyRow(NamedTuple):
    """What one scale does at one size d; means are over the query rows."""

    d: int
    scale: str
    factor: float
    """What the scale is at this d."""
    spread: float
    """Standard deviation of the scaled products of the drawn pairs."""
    predicted: float
    """What theory says of it: factor · √d."""
    entropy: float
    """Mean entropy of the weights, in nats."""
    entropy_share: float
    """That entropy as a share of its largest value, ln n_keys."""
    max_weight: float
    """Mean largest weight."""
    effective_keys: float
    """Mean number of keys that count, (Σp)²/Σp²."""
    jacobian_norm: float
    """Mean ‖diag p - ppᵀ‖ (Frobenius): how much gradient the softmax lets through."""
    saturated: float
    """Share of rows whose largest weight is at least the threshold."""


@dataclass(frozen=True)
class Study:
    """The result of `study`: ``print`` shows it as a table."""

    rows: tuple[StudyRow, ...]
    n_pairs: int
    n_keys: int
    saturated: float
    """The threshold of `StudyRow.saturated`."""

    def __iter__(self) -> Iterator[StudyRow]:
        """Go through the rows: the sizes in their order, and at each the scales."""
        return iter(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, as JSON takes it."""
        return {
            "n_pairs": self.n_pairs,
            "n_keys": self.n_keys,
            "saturated": self.saturated,
            "rows": [row._asdict() for row in self.rows],
        }

    def __str__(self) -> str:
        """Return the table.

        Spread of the scores, measured and by theory; means of the entropy, its share of ln n_keys,
        the largest weight, the effective keys and the norm of the Jacobian; saturated rows.
        """
        head = ("d", "scale", "spread", "theory", "entropy", "of max", "weight", "keys", "grad",
                "one-hot")  # fmt: skip
        cells = [
            (
                f"{row.d}",
                row.scale,
                f"{row.spread:.2f}",
                f"{row.predicted:.2f}",
                f"{row.entropy:.3f}",
                f"{row.entropy_share:.0%}",
                f"{row.max_weight:.3f}",
                f"{row.effective_keys:.1f}",
                f"{row.jacobian_norm:.4f}",
                f"{row.saturated:.0%}",
            )
            for row in self.rows
        ]
        return table((head, *cells), left=(1,))


def study(
    dims: Sequence[int] = (4, 16, 64, 256, 1024),
    n_pairs: int = 10_000,
    n_keys: int = 128,
    scales: Sequence[str | ScaleOfSize] = ("none", "1/sqrt(d)", "1/d"),
    rng: int | np.random.Generator | None = 0,
    *,
    saturated: float = SATURATED,
) -> Study:
    """Measure what scales do to the scores of random vectors, and to their softmax.

    Parameters
    ----------
    dims : ints
        Sizes d of the vectors.
    n_pairs : int
        Pairs of a query and a key that are drawn at each d for the spread of their products. The
        queries are also the rows of the softmax.
    n_keys : int
        Keys that each row weighs.
    scales : names or functions
        "none", "1/sqrt(d)", "1/d", or a function of d that returns the factor.
    rng : int, numpy.random.Generator or None
        Seed or generator. At each d in its order `rng.normal(size=(2, n_pairs, d))` draws the
        pairs; keys of the softmax come from generators spawned of it, and do not disturb them.
    saturated : float
        Largest weight from which on a row counts as saturated.

    Returns
    -------
    Study
        A row for each d and scale.

    Raises
    ------
    TypeError, ValueError
        Sizes or counts that are not ints of at least 1; an unknown scale, or one that is not
        finite at a size; a seed that is not one; a threshold that is not a number of at least 0.

    Examples
    --------
    >>> from scaledot.scaling import study
    >>> found = study(dims=(4, 1024), scales=("none", "1/sqrt(d)"), n_keys=16)
    >>> [(row.d, row.scale, round(row.spread, 1)) for row in found]
    [(4, 'none', 2.0), (4, '1/sqrt(d)', 1.0), (1024, 'none', 32.0), (1024, '1/sqrt(d)', 1.0)]
    """
    sizes = [checks.integer("dims", d, least=1) for d in checks.several("dims", dims)]
    n_pairs = checks.integer("n_pairs", n_pairs, least=1)
    n_keys = checks.integer("n_keys", n_keys, least=1)
    chosen = [_named(scale) for scale in checks.several("scales", scales)]
    factors = [
        [checks.real(f"scale {name} at d = {d}", function(d)) for name, function in chosen]
        for d in sizes
    ]
    saturated = checks.at_least_zero("saturated", saturated)
    generator = np.random.default_rng(checks.seed("rng", rng))
    rows: list[StudyRow] = []
    for d, its_factors, spawned in zip(sizes, factors, generator.spawn(len(sizes)), strict=True):
        query, partner = generator.normal(size=(2, n_pairs, d))
        products = (query * partner).sum(axis=-1)
        key = spawned.normal(size=(n_keys, d))
        for (name, _), factor in zip(chosen, its_factors, strict=True):
            rows.append(_row(d, name, factor, products, query, key, saturated))
    return Study(tuple(rows), n_pairs, n_keys, saturated)


def _named(scale: str | ScaleOfSize) -> tuple[str, ScaleOfSize]:
    """Return a scale with its name."""
    if callable(scale):
        return getattr(scale, "__name__", repr(scale)), scale
    return scale, SCALES[checks.choice("scale", scale, tuple(SCALES))]


def _row(
    d: int,
    name: str,
    factor: float,
    products: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    saturated: float,
) -> StudyRow:
    """Return what one scale does at one d."""
    wanted = ("entropy", "max_weight", "effective_keys", "jacobian_norm")
    seen = api.observe(query, key, statistics=wanted, scale=factor)
    entropy = _mean(seen.entropy)
    most = math.log(len(key))
    return StudyRow(
        d=d,
        scale=name,
        factor=factor,
        spread=float(np.std(products * factor)),
        predicted=abs(factor) * math.sqrt(d),
        entropy=entropy,
        entropy_share=entropy / most if most else 1.0,
        max_weight=_mean(seen.max_weight),
        effective_keys=_mean(seen.effective_keys),
        jacobian_norm=_mean(seen.jacobian_norm),
        saturated=_mean(np.asarray(seen.max_weight) >= saturated),
    )


def _mean(x: Any) -> float:
    """Return the mean of what was observed."""
    return float(np.mean(x))
