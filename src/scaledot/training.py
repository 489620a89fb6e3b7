"""A small attention model, trained with and without the scale from the same start."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scaledot import api, checks
from scaledot.tables import table

__all__ = ["Curve", "Training", "train"]


class Curve(NamedTuple):
    """How one training went, step by step; each (steps,) of float64."""

    loss: np.ndarray
    """Mean squared error of the output; 1 is reached by a model that weighs all keys alike."""
    max_weight: np.ndarray
    """Mean largest weight."""
    jacobian_norm: np.ndarray
    """Mean ‖diag p - ppᵀ‖ (Frobenius): how much gradient the softmax lets through."""
    spread: np.ndarray
    """Mean standard deviation of the scores of a query."""


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
        """Return a table: means over tenths of the training, with the scale and without."""
        names = ("loss", "weight", "grad", "spread")
        lines = [["steps", *(cell for name in names for cell in (name, "without"))]]
        for part in np.array_split(np.arange(len(self.scaled.loss)), 10):
            if len(part):
                pairs = zip(self.scaled, self.unscaled, strict=True)
                means = [f"{curve[part].mean():.3g}" for pair in pairs for curve in pair]
                lines.append([f"{part[0] + 1}-{part[-1] + 1}", *means])
        return table(lines)


class Task(NamedTuple):
    """What is drawn at each step."""

    batch: int
    n_keys: int
    n_features: int
    noise: float


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
    matrices of normal numbers that gradient descent improves.

    Without the scale the softmax is nearly one-hot from the first step on, and lets little gradient
    through; what comes through is multiplied by keys that the scale does not shrink. At a learning
    rate at which the model with the scale learns well, the rows that are not yet one-hot drive the
    scores apart, until hardly any gradient is left: the model locks. It is a lock of the learning
    rate: at a tenth of it the model without the scale learns too, though less than the other does
    at a rate that suits it.

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
        Counts that are not ints of at least 1, a seed that is not one of at least 0; a learning
        rate or noise that is not a finite number of at least 0.

    Examples
    --------
    >>> from scaledot.scaling import train
    >>> found = train(d=256)
    >>> bool(found.scaled.loss[-20:].mean() < 0.1), bool(found.unscaled.loss[-20:].mean() > 1)
    (True, True)
    """
    counts = {"d": d, "steps": steps, "n_keys": n_keys, "n_features": n_features, "batch": batch}
    for name, count in counts.items():
        checks.integer(name, count, least=1)
    rate = checks.at_least_zero("learning_rate", learning_rate)
    task = Task(batch, n_keys, n_features, checks.at_least_zero("noise", noise))
    seed = checks.integer("rng", rng, least=0)
    scaled, unscaled = (_train(scale, d, steps, rate, task, seed) for scale in (d**-0.5, 1.0))
    return Training(d, rate, scaled, unscaled)


def _train(scale: float, d: int, steps: int, rate: float, task: Task, seed: int) -> Curve:
    """Return the curve of one training."""
    generator = np.random.default_rng(seed)
    # Projected vectors have numbers of spread 1, as a model's first layers give them.
    shrink = 1 / math.sqrt(task.n_features)
    to_query, to_key = shrink * generator.normal(size=(2, task.n_features, d))
    wanted = ("max_weight", "jacobian_norm", "score_std")
    curve = np.empty((4, steps))
    for step in range(steps):
        queries, keys, values, answers = _draw(generator, task)
        query, key = queries @ to_query, keys @ to_key
        output, pull_back = api.vjp(query, key, values, wrt=("query", "key"), scale=scale)
        error = output - answers
        gradients = pull_back(2 * error / error.size)
        seen = api.observe(query, key, statistics=wanted, scale=scale)
        curve[:, step] = np.mean(error**2), *(np.mean(getattr(seen, name)) for name in wanted)
        to_query -= rate * shrink**2 * _outer(queries, gradients.query)
        to_key -= rate * shrink**2 * _outer(keys, gradients.key)
    return Curve(*curve)


def _draw(generator: np.random.Generator, task: Task) -> tuple[np.ndarray, ...]:
    """Return queries (batch, 1, ·), keys and values (batch, n_keys, ·), and the values to find."""
    examples = np.arange(task.batch)
    keys = generator.normal(size=(task.batch, task.n_keys, task.n_features))
    values = generator.normal(size=(task.batch, task.n_keys, 4))
    chosen = generator.integers(task.n_keys, size=task.batch)
    noise = task.noise * generator.normal(size=(task.batch, task.n_features))
    return (
        (keys[examples, chosen] + noise)[:, None],
        keys,
        values,
        values[examples, chosen][:, None],
    )


def _outer(features: np.ndarray, gradient: Any) -> np.ndarray:
    """Return Σ features ⊗ gradient over examples and rows, (n_features, d)."""
    flat = features.reshape(-1, features.shape[-1])
    found: np.ndarray = flat.T @ gradient.reshape(-1, gradient.shape[-1])
    return found
