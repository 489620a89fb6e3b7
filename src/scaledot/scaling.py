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
from scaledot.diagnosis import Diagnosis, Finding, Head, Thresholds, diagnose

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
SATURATED = 0.99
"""The largest weight from which on a row counts as saturated: the norm of its Jacobian is then at
most 0.0198, 4 % of the 0.5 of an even choice between two keys."""


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
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        return "\n".join(_line(line, widths) for line in (head, *cells))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of the table: names to the left, numbers to the right."""
    placed = [
        cell.ljust(width) if place == 1 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(placed).rstrip()


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
        finite at a size.

    Examples
    --------
    >>> from scaledot.scaling import study
    >>> found = study(dims=(4, 1024), scales=("none", "1/sqrt(d)"), n_keys=16)
    >>> [(row.d, row.scale, round(row.spread, 1)) for row in found]
    [(4, 'none', 2.0), (4, '1/sqrt(d)', 1.0), (1024, 'none', 32.0), (1024, '1/sqrt(d)', 1.0)]
    """
    sizes = [checks.integer("dims", d, least=1) for d in dims]
    n_pairs = checks.integer("n_pairs", n_pairs, least=1)
    n_keys = checks.integer("n_keys", n_keys, least=1)
    chosen = [_named(scale) for scale in scales]
    generator = np.random.default_rng(rng)
    rows: list[StudyRow] = []
    for d, spawned in zip(sizes, generator.spawn(len(sizes)), strict=True):
        query, partner = generator.normal(size=(2, n_pairs, d))
        products = (query * partner).sum(axis=-1)
        key = spawned.normal(size=(n_keys, d))
        for name, function in chosen:
            factor = checks.real(f"scale {name} at d = {d}", function(d))
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


def _outer(features: np.ndarray, gradient: Any) -> np.ndarray:
    """Return Σ features ⊗ gradient over examples and rows, (n_features, d)."""
    found: np.ndarray = np.einsum("bnf,bnd->fd", features, gradient)
    return found


def _mean(x: Any) -> float:
    """Return the mean of what was observed."""
    return float(np.mean(x))


# ------------------------------------------------------------------------------------- training


class Curve(NamedTuple):
    """How one training went, step by step; each (steps,) of float64."""

    loss: np.ndarray
    """Mean squared error of the output; 1 is reached by a model that weighs all keys alike."""
    gradient: np.ndarray
    """Norm of the gradient by both projections."""
    max_weight: np.ndarray
    """Mean largest weight."""


@dataclass(frozen=True)
class Training:
    """The result of `train`: ``print`` shows both curves at some steps."""

    d: int
    learning_rate: float
    scaled: Curve
    """With the scale 1/√d."""
    unscaled: Curve
    """With the scale 1, from the same start on the same data."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, as JSON takes it."""
        curves = {"scaled": self.scaled, "unscaled": self.unscaled}
        return {
            "d": self.d,
            "learning_rate": self.learning_rate,
            **{
                name: {part: x.tolist() for part, x in curve._asdict().items()}
                for name, curve in curves.items()
            },
        }

    def __str__(self) -> str:
        """Return a table: means over tenths of the training."""
        head = ("steps", "", "loss with 1/sqrt(d)", "without", "largest weight with", "without")
        lines: list[tuple[str, ...]] = [head]
        for part in np.array_split(np.arange(len(self.scaled.loss)), 10):
            if len(part):
                means = (
                    curve[part].mean()
                    for pair in zip(self.scaled, self.unscaled, strict=True)
                    for curve in pair
                )
                loss, loss_without, _, _, weight, weight_without = means
                cells = (loss, loss_without, weight, weight_without)
                span = f"{part[0] + 1}-{part[-1] + 1}"
                lines.append((span, "", *(f"{cell:.3f}" for cell in cells)))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(_line(line, widths) for line in lines)


def train(
    d: int = 1024,
    steps: int = 200,
    *,
    learning_rate: float = 10.0,
    n_keys: int = 16,
    n_features: int = 16,
    batch: int = 16,
    noise: float = 0.3,
    rng: int = 0,
) -> Training:
    """Train a small attention model with and without the scale 1/√d, from the same start.

    The task is to look up: a query is one of the keys with some noise, and the output should be the
    value of that key. The model projects n_features numbers of query and key to d numbers each, by
    matrices of normal numbers that gradient descent improves. Without the scale nearly all weight
    is on one random key from the first step on, little gradient comes through the softmax, and the
    loss stays where it is.

    Parameters
    ----------
    d : int
        Size of the projected vectors, those that are multiplied.
    steps : int
        Steps of plain gradient descent, each on fresh data.
    learning_rate : float
        Factor of the gradient, the same for both.
    n_keys, n_features, batch : int
        Keys of an example, numbers of a query or key, examples of a step.
    noise : float
        Standard deviation of what is added to the key to make the query, whose own is 1.
    rng : int
        Seed of the start and of the data.

    Returns
    -------
    Training
        Both curves.

    Raises
    ------
    TypeError, ValueError
        Counts that are not ints of at least 1.

    Examples
    --------
    >>> from scaledot.scaling import train
    >>> found = train()
    >>> bool(found.scaled.loss[-20:].mean() < 0.1), bool(found.unscaled.loss[-20:].mean() > 1)
    (True, True)
    """
    counts = {"d": d, "steps": steps, "n_keys": n_keys, "n_features": n_features, "batch": batch}
    for name, count in counts.items():
        checks.integer(name, count, least=1)
    curves = [
        _train(scale, d, steps, learning_rate, (batch, n_keys, n_features), noise, rng)
        for scale in (1 / math.sqrt(d), 1.0)
    ]
    return Training(d, learning_rate, *curves)


def _train(
    scale: float,
    d: int,
    steps: int,
    learning_rate: float,
    shape: tuple[int, int, int],
    noise: float,
    rng: int,
) -> Curve:
    """Return the curve of one training."""
    generator = np.random.default_rng(rng)
    batch, n_keys, n_features = shape
    examples = np.arange(batch)
    # Projected vectors have numbers of spread 1, as a model's first layers give them.
    to_query, to_key = generator.normal(size=(2, n_features, d)) / math.sqrt(n_features)
    curve = np.empty((3, steps))
    for step in range(steps):
        keys, values = generator.normal(size=shape), generator.normal(size=(batch, n_keys, 4))
        chosen = generator.integers(n_keys, size=batch)
        queries = keys[examples, chosen] + noise * generator.normal(size=(batch, n_features))
        query, key = (queries @ to_query)[:, None], keys @ to_key
        output, pull_back = api.vjp(query, key, values, wrt=("query", "key"), scale=scale)
        error = output[:, 0] - values[examples, chosen]
        gradients = pull_back(2 * error[:, None] / error.size)
        by_query = _outer(queries[:, None], gradients.query) / math.sqrt(n_features)
        by_key = _outer(keys, gradients.key) / math.sqrt(n_features)
        seen = api.observe(query, key, statistics="max_weight", scale=scale)
        norm = math.hypot(float(np.linalg.norm(by_query)), float(np.linalg.norm(by_key)))
        curve[:, step] = _mean(error**2), norm, _mean(seen.max_weight)
        to_query -= learning_rate / math.sqrt(n_features) * by_query
        to_key -= learning_rate / math.sqrt(n_features) * by_key
    return Curve(*curve)
