"""From queries and keys to scores: the stages, in the one order they have.

scale → softcap → bias → masks, by select and never by adding a large number. What the softmax takes
is called a *score*; a key is *visible* where all restrictions allow it and its score is not -inf.
"""

import math
from typing import Any, NamedTuple

from scaledot.results import Array


class Scores(NamedTuple):
    """The stages of the scores of some queries and keys, each (..., T, S)."""

    scaled: Array
    """scale · query · key."""
    capped: Array
    """softcap · tanh(scaled / softcap), where a cap is asked for."""
    biased: Array
    """capped + bias."""
    masked: Array
    """What the softmax takes: -inf where a restriction forbids the key."""


def scores(
    xp: Any,
    query: Array,
    key: Array,
    *,
    scale: float,
    softcap: float | None = None,
    bias: Array | None = None,
    visible: Array | None = None,
) -> Scores:
    """Return the scores of queries (..., *F, T, D) and keys (..., S, D), stage by stage.

    Axes F that the keys lack (a group of heads, say) are folded into the rows, so that no library
    copies keys for them. `bias` and `visible` broadcast to (..., *F, T, S). The product is scaled,
    not the query: scaling the query first costs accuracy.
    """
    scaled = matmul(xp, query, xp.matrix_transpose(key)) * scale
    capped = scaled if softcap is None else softcap * xp.tanh(scaled / softcap)
    biased = capped if bias is None else _add_bias(xp, capped, bias)
    masked = biased if visible is None else xp.where(visible, biased, -xp.inf)
    return Scores(scaled, capped, biased, masked)


def _add_bias(xp: Any, capped: Array, bias: Array) -> Array:
    """Return capped + bias; a bias of -inf masks, so that not even NaN comes through it."""
    return xp.where(bias == -xp.inf, -xp.inf, capped + bias)


def matmul(xp: Any, left: Array, right: Array) -> Array:
    """Return (..., *F, T, N) @ (..., N, S): axes F that the right side lacks are further rows."""
    n_folded = left.ndim - right.ndim
    if n_folded == 0:
        return xp.matmul(left, right)
    rows = xp.matmul(fold_rows(xp, left, n_folded), right)
    axes = left.shape[right.ndim - 2 : -1]
    return xp.reshape(rows, (*rows.shape[:-2], *axes, right.shape[-1]))


def fold_rows(xp: Any, x: Array, n_folded: int) -> Array:
    """Return (..., *F, T, D) as (..., F·T, D), where F are `n_folded` axes."""
    if n_folded == 0:
        return x
    place = x.ndim - 2 - n_folded
    n_rows = math.prod(x.shape[place:-1])
    return xp.reshape(x, (*x.shape[:place], n_rows, x.shape[-1]))
