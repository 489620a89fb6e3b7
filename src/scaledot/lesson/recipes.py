"""The functions that lessons ask for, and the mistakes that are made in them.

Inputs are chosen so that every mistake shows: sizes that all differ tell which one was used; square
inputs let through a key that is not transposed or a sum without keepdims, which otherwise fail for
their shapes alike; scores of thousands show a maximum that was not subtracted.
"""

import math
from typing import Any

import numpy as np

from scaledot.lesson.mistakes import Family

Array = np.ndarray[Any, np.dtype[Any]]


def _draw(*shapes: tuple[int, ...], seed: int, spread: float = 1.0) -> tuple[Array, ...]:
    """Return arrays of normal numbers."""
    rng = np.random.default_rng(seed)
    return tuple(spread * rng.normal(size=shape) for shape in shapes)


SQUARE = ((4, 4), (4, 4), (4, 4))

# ------------------------------------------------------------------------------------- softmax

PEAK = ("subtracted", "kept", "of_all")
SOFTMAX = ("whole", "not_divided", "no_keepdims", "no_keepdims:sum", "no_keepdims:max")


def _softmax(z: Array, axis: int | None, peak: str = "subtracted", how: str = "whole") -> Array:
    """Return the softmax, or what the mistakes make of it."""
    if peak == "subtracted":
        z = z - z.max(axis=axis, keepdims=how not in ("no_keepdims", "no_keepdims:max"))
    elif peak == "of_all":
        z = z - z.max()
    e = np.exp(z)
    if how == "not_divided":
        return e
    weights: Array = e / e.sum(axis=axis, keepdims=how in ("whole", "no_keepdims:max"))
    return weights


def _along(z: Array, given: int = -1, *, axis: str, peak: str, softmax: str) -> Array:
    """Return the softmax along the axis that was chosen."""
    chosen = {"given": given, "last": -1, "first": 0, "all": None}[axis]
    return _softmax(z, chosen, peak, softmax)


STABLE_SOFTMAX = Family(
    axes={"axis": ("given", "last", "first", "all"), "peak": PEAK, "softmax": SOFTMAX},
    recipe=_along,
    cases=(
        (np.array([1000.0, 1001.0, 1002.0]),),
        _draw((3, 4), seed=1),
        _draw((3, 3), seed=2),
        (*_draw((3, 3), seed=3), 0),
        (np.array([[3000.0, 0.0, 1.0], [-3000.0, -3001.0, 3.0], [-2000.0, -2001.0, -2002.0]]),),
    ),
)

# ----------------------------------------------------------------------------------- attention

RETURNS = ("pair", "swapped", "output_only", "weights_only")


def _returned(output: Array, weights: Array, returns: str) -> Any:
    """Return what was chosen to be returned."""
    pair = output, weights
    return {"pair": pair, "swapped": pair[::-1], "output_only": output, "weights_only": weights}[
        returns
    ]


def _attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    key: str,
    scale: str,
    place: str,
    peak: str,
    softmax: str,
    axis: str,
    value: str,
    returns: str,
) -> Any:
    """Return attention, or what the mistakes make of it."""
    factor = {
        "sqrt_d": 1 / math.sqrt(q.shape[1]),
        "none": 1.0,
        "d": 1 / q.shape[1],
        "times": math.sqrt(q.shape[1]),
        "sqrt_length:queries": 1 / math.sqrt(len(q)),
        "sqrt_length:keys": 1 / math.sqrt(len(k)),
        "sqrt_dv": 1 / math.sqrt(v.shape[1]),
    }[scale]
    scores = q @ (k if key == "not_transposed" else k.T)
    if place == "before":
        scores = scores * factor
    along = {"keys": -1, "queries": 0, "all": None}[axis]
    weights = scores if softmax == "none" else _softmax(scores, along, peak, softmax)
    if place == "after_softmax":
        weights = weights * factor
    output = weights
    if value != "forgotten":
        output = weights @ v if value == "weighed" else weights * v
    return _returned(output * factor if place == "on_output" else output, weights, returns)


ATTENTION = Family(
    axes={
        "key": ("transposed", "not_transposed"),
        "scale": ("sqrt_d", "none", "d", "times", "sqrt_length:queries", "sqrt_length:keys",
                  "sqrt_dv"),
        "place": ("before", "after_softmax", "on_output"),
        "softmax": (*SOFTMAX, "none"),
        "peak": PEAK,
        "axis": ("keys", "queries", "all"),
        "value": ("weighed", "forgotten", "elementwise"),
        "returns": RETURNS,
    },
    recipe=_attention,
    cases=(
        _draw((3, 8), (5, 8), (5, 4), seed=1),
        _draw(*SQUARE, seed=2),
        _draw((6, 6), (6, 6), (6, 6), seed=3, spread=1.5),
        _draw(*SQUARE, seed=4, spread=60.0),
    ),
)  # fmt: skip

# -------------------------------------------------------------------------------------- causal


def _causal(q: Array, k: Array, v: Array, *, mask: str, scale: str, returns: str) -> Any:
    """Return attention of which query i sees the keys up to i, or what the mistakes make of it."""
    size = q.shape[1]
    scores = q @ k.T * {"sqrt_d": 1 / math.sqrt(size), "none": 1.0, "d": 1 / size}[scale]
    query, key = np.indices(scores.shape)
    sees = {
        "strict": key < query,
        "strict:finite": key < query,
        "future": key >= query,
        "future:strict": key > query,
        "future:finite": key > query,
    }.get(mask, key <= query)
    if mask == "zero_scores":
        scores = scores * sees
    elif mask.endswith(":finite"):
        scores = np.where(sees, scores, -1e9)
    elif mask not in ("none", "after_softmax"):
        scores = np.where(sees, scores, -np.inf)
    weights = _softmax(scores, -1)
    if mask == "after_softmax":
        weights = weights * sees
    return _returned(weights @ v, weights, returns)


CAUSAL = Family(
    axes={
        "mask": ("past", "none", "strict", "strict:finite", "future", "future:strict",
                 "future:finite", "zero_scores", "after_softmax"),
        "scale": ("sqrt_d", "none", "d"),
        "returns": RETURNS,
    },
    recipe=_causal,
    cases=(
        _draw((2, 2), (2, 2), (2, 2), seed=1),
        _draw((5, 8), (5, 8), (5, 4), seed=2),
        _draw((4, 4), (4, 4), (4, 4), seed=3, spread=30.0),
    ),
)  # fmt: skip

# --------------------------------------------------------------------------------------- merge


def _merge(
    one: Array,
    log_one: Array,
    other: Array,
    log_other: Array,
    *,
    shares: str,
    total: str,
    peak: str,
    returns: str,
) -> Any:
    """Return two halves joined, (T, E) and (T,), or what the mistakes make of it."""
    top = np.maximum(log_one, log_other) if peak == "subtracted" else np.zeros_like(log_one)
    exp_one, exp_other = np.exp(log_one - top), np.exp(log_other - top)
    left, right = {
        "by_exp": (exp_one / (exp_one + exp_other), exp_other / (exp_one + exp_other)),
        "halves": (np.full_like(top, 0.5), np.full_like(top, 0.5)),
        "ones": (np.ones_like(top), np.ones_like(top)),
        "by_log": (log_one / (log_one + log_other), log_other / (log_one + log_other)),
        "crossed": (exp_other / (exp_one + exp_other), exp_one / (exp_one + exp_other)),
        "not_divided": (exp_one, exp_other),
    }[shares]
    output = left[:, None] * one + right[:, None] * other
    log_sum = {
        "log_of_sum": top + np.log(exp_one + exp_other),
        "sum": log_one + log_other,
        "largest": np.maximum(log_one, log_other),
        "mean": (log_one + log_other) / 2,
        "no_log": np.exp(log_one) + np.exp(log_other),
    }[total]
    return {"pair": (output, log_sum), "swapped": (log_sum, output), "output_only": output}[returns]


MERGE = Family(
    axes={
        "shares": ("by_exp", "halves", "ones", "by_log", "crossed", "not_divided"),
        "total": ("log_of_sum", "sum", "largest", "mean", "no_log"),
        "peak": ("subtracted", "kept"),
        "returns": ("pair", "swapped", "output_only"),
    },
    recipe=_merge,
    cases=(
        _draw((3, 2), (3,), (3, 2), (3,), seed=1),
        _draw((4, 4), (4,), (4, 4), (4,), seed=2, spread=3.0),
        (*_draw((2, 3), seed=3), np.array([1000.0, -1000.0]),
         *_draw((2, 3), seed=4), np.array([1001.0, -1002.0])),
    ),
)  # fmt: skip

FAMILIES = {
    "attention": ATTENTION,
    "softmax": STABLE_SOFTMAX,
    "causal_attention": CAUSAL,
    "merge": MERGE,
}
"""Families by the name that an exercise gives its `bank`."""
