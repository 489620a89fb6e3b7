"""The numbers that figures show, computed by the package itself."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from scaledot import api, scaling
from scaledot.lesson.recipes import FAMILIES
from scaledot.scaling import Training

Array = np.ndarray[Any, np.dtype[Any]]

SIZES = tuple(2**n for n in range(13))
"""Sizes d of the slider: 1 to 4096."""
N_PAIRS, N_KEYS, D_V = 4_000, 16, 64
FACTORS: Mapping[str, Callable[[int], float]] = {
    "1/sqrt(d)": lambda d: 1 / math.sqrt(d),
    "none": lambda d: 1.0,
    "1/d": lambda d: 1 / d,
    "sqrt(d)": math.sqrt,
    "1/sqrt(n)": lambda d: 1 / math.sqrt(N_KEYS),
    "1/sqrt(d_v)": lambda d: 1 / math.sqrt(D_V),
}
"""Scales of a figure: the right one, and those of mistakes."""

QUERY = np.array([[1.0, 1.0], [0.0, 2.0]])
KEY = np.array([[1.0, 0.0], [0.0, 1.0]])
VALUE = np.array([[10.0, 0.0], [0.0, 10.0]])


class Spread(NamedTuple):
    """What one scale does at one size."""

    scores: Array
    """Scaled products of random pairs, (N_PAIRS,)."""
    measured: float
    """Their standard deviation."""
    predicted: float
    """What theory says of it, factor · √d."""
    weights: Array
    """One row of weights, (N_KEYS,)."""
    entropy: float
    """Its entropy, in nats."""
    gradient: float
    """The norm of its Jacobian, ‖diag p - ppᵀ‖: how much gradient the softmax lets through."""


@cache
def _drawn() -> tuple[dict[int, Array], Array, Array]:
    """Return products of random pairs by size, a query and keys of the largest size.

    A smaller size takes the first numbers of the larger, so that moving the size adds terms to the
    same sums.
    """
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(1, SIZES[-1])), rng.normal(size=(N_KEYS, SIZES[-1]))
    parts: dict[int, list[Array]] = {d: [] for d in SIZES}
    for _ in range(N_PAIRS // 500):  # 500 pairs of the largest size are 33 MB
        left, right = rng.normal(size=(2, 500, SIZES[-1]))
        terms = left * right
        for d in SIZES:
            parts[d].append(terms[:, :d].sum(axis=-1))
    return {d: np.concatenate(part) for d, part in parts.items()}, query, key


@lru_cache(maxsize=4 * len(SIZES))
def spread(d: int, scale: str) -> Spread:
    """Return what a scale does at a size of `SIZES`."""
    products, query, key = _drawn()
    factor = FACTORS[scale](d)
    scores = products[d] * factor
    # `textbook` is named so that no kernel is compiled for sixteen scores
    seen = api.observe(
        query[:, :d],
        key[:, :d],
        statistics=("entropy", "jacobian_norm", "weights_of"),
        rows=[0],
        scale=factor,
        engine="textbook",
    )
    return Spread(
        scores=scores,
        measured=float(scores.std()),
        predicted=factor * math.sqrt(d),
        weights=np.asarray(seen.weights_of)[0],
        entropy=float(np.asarray(seen.entropy)[0]),
        gradient=float(np.asarray(seen.jacobian_norm)[0]),
    )


_TRAINED: list[Training] = []
_TRAINS = threading.Lock()


def training() -> Training:
    """Return the training with and without the scale; it takes some seconds, once."""
    with _TRAINS:
        if not _TRAINED:
            _TRAINED.append(scaling.train())
    return _TRAINED[0]


def trained() -> bool:
    """Say whether `training` returns at once."""
    return bool(_TRAINED)


def small_weights(*, causal: bool = False) -> tuple[Array, Array]:
    """Return output and weights of the small arrays of the exercise."""
    output, weights = api.attention(QUERY, KEY, VALUE, causal=causal, engine="textbook")
    return np.asarray(output), np.asarray(weights)


# ------------------------------------------------------------------ mistakes, on small arrays

_SMALL = {"Q": QUERY, "K": KEY, "V": VALUE}
_MATRIX = np.array([[0.0, 1.0], [3.0, 3.0]])
_HALVES = {"o1": VALUE[:1], "l1": np.array([1.0]), "o2": VALUE[1:], "l2": np.array([3.0])}

EXAMPLES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "attention": (
        _SMALL,
        _SMALL | {"K": np.array([[1.0, 1.0], [0.0, 1.0]])},
        _SMALL | {"Q": np.array([[1.0, 1.0], [0.0, 2000.0]])},
    ),
    "causal_attention": (_SMALL,),
    "softmax": (
        {"z": _MATRIX, "eksen": -1},
        {"z": _MATRIX, "eksen": 0},
        {"z": np.array([[0.0, 1.0], [1000.0, 1001.0]]), "eksen": -1},
    ),
    "merge": (
        _HALVES,
        _HALVES | {"l1": np.array([1000.0]), "l2": np.array([1002.0])},
    ),
}
"""Arguments by family, the simplest first; a mistake is shown on the first that it changes."""


class Compared(NamedTuple):
    """What a function returns as it should, and with a mistake."""

    arguments: Mapping[str, Any]
    right: tuple[Array, ...]
    wrong: tuple[Array, ...]


def compared(family: str, mistake: str) -> Compared | None:
    """Return what a mistake does to the first example that it changes; None if it changes none.

    The mistake is named "axis.value", by the choices of the family.
    """
    axes, recipe = FAMILIES[family].axes, FAMILIES[family].recipe
    choice = {axis: values[0] for axis, values in axes.items()}
    axis, _, value = mistake.partition(".")
    for example in EXAMPLES[family]:
        arguments = example.values()
        with np.errstate(all="ignore"):  # some of the mistakes are overflows
            right = _several(recipe(*arguments, **choice))
            wrong = _several(recipe(*arguments, **choice | {axis: value}))
        if not all(map(np.allclose, wrong, right)):
            return Compared(example, right, wrong)
    return None


def _several(returned: Any) -> tuple[Array, ...]:
    """Return results as a tuple, one of them too."""
    return returned if isinstance(returned, tuple) else (returned,)


def visible(family: str) -> Iterator[str]:
    """Go through the mistakes that change an example, but for those in what is returned."""
    for axis, values in FAMILIES[family].axes.items():
        for value in values[1:]:
            if axis != "returns" and compared(family, f"{axis}.{value}"):
                yield f"{axis}.{value}"
