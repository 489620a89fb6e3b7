"""What can be observed of the weights: names, formulas, and how two parts of a row join.

A statistic of a row is computed from its `Moments`: sums over the keys seen so far, relative to the
largest score among them, so that two parts join at the larger one and no formula subtracts nearly
equal numbers. The obvious formulas fail where softmax is one-hot; these do not:

- the entropy is ln L + Σe·(m - s)/L with e = exp(s - m), both terms ≥ 0;
- ‖J‖² is a²(1 - a)² + Σ′p²(1 - 2p) + (Σ′p²)² + 2a²Σ′p², a the largest weight, Σ′ over the other
  keys: the sums Σ′e, Σ′e², Σ′e³ leave out the key at the maximum;
- means and spreads are kept relative to a pivot and join by Chan, Golub and LeVeque (1979).
"""

import math
from typing import Any, NamedTuple

from scaledot import online
from scaledot.arrays import device_of
from scaledot.results import Array, TopK

DEFAULT = (
    "log_sum_exp",
    "max_score",
    "argmax",
    "max_weight",
    "entropy",
    "effective_keys",
    "jacobian_norm",
    "score_mean",
    "score_std",
    "peak_product",
)
NAMES = (*DEFAULT, "distance", "received", "top_k", "weights_of")

OF_MOMENTS = (*DEFAULT[1:], "distance")
"""Those computed from a row's `Moments`."""


class Moments(NamedTuple):
    """Sums over the visible keys of a row seen so far, each (..., T)."""

    row_max: Array
    """m, the largest score; -inf without a key."""
    argmax: Array
    """Its key, the lowest on ties; any without a key."""
    total: Array
    """Σe with e = exp(s - m)."""
    surprise: Array
    """Σe·(m - s)."""
    rest: Array
    """Σ′e, over all keys but the one at the maximum."""
    rest_2: Array
    """Σ′e²."""
    rest_3: Array
    """Σ′e³."""
    distance: Array
    """Σe·abs(position of the row - position of the key)."""
    count: Array
    """Number of visible keys."""
    pivot: Array
    """A number near the products, about which they are summed."""
    offset: Array
    """The mean of the products less the pivot."""
    squares: Array
    """The sum of squared deviations of the products from their mean."""
    peak: Array
    """The largest absolute product."""


def moments(xp: Any, scores: Array, products: Array, first: int, positions: Array) -> Moments:
    """Return the moments of a block of keys.

    `scores` and `products` (scale · query · key) are (..., T, S), `first` is the number of the
    block's first key, `positions` (..., T) are those of the rows among the keys.
    """
    row_max = online.largest(xp, scores)
    if scores.shape[-1] == 0:
        nothing = xp.zeros_like(row_max)
        return Moments(row_max, *(nothing,) * (len(Moments._fields) - 1))
    visible = scores != -xp.inf
    exps = xp.where(visible, online.exponentials(xp, scores, row_max), 0.0)
    top = xp.argmax(scores, axis=-1)
    columns = xp.arange(scores.shape[-1], dtype=top.dtype, device=device_of(xp, scores))
    others = xp.where(columns == top[..., None], 0.0, exps)
    gap = xp.where(exps > 0, online.anchor(xp, row_max)[..., None] - scores, 0.0)
    away = xp.abs(positions[..., None] - xp.astype(columns + first, scores.dtype))
    return Moments(
        row_max,
        top + first,
        xp.sum(exps, axis=-1),
        xp.sum(exps * gap, axis=-1),
        xp.sum(others, axis=-1),
        xp.sum(others * others, axis=-1),
        xp.sum(others * others * others, axis=-1),
        xp.sum(exps * away, axis=-1),
        *_spread(xp, products, visible),
    )


def _spread(xp: Any, products: Array, visible: Array) -> tuple[Array, ...]:
    """Return count, pivot, offset, squares and peak of the visible products."""
    count = xp.sum(xp.astype(visible, products.dtype), axis=-1)
    n = xp.maximum(count, xp.ones_like(count))
    # The largest product as pivot: near the others where they are close to each other.
    pivot = online.anchor(xp, xp.max(xp.where(visible, products, -xp.inf), axis=-1))
    deviation = xp.where(visible, products - pivot[..., None], 0.0)
    offset = xp.sum(deviation, axis=-1) / n
    deviation = xp.where(visible, deviation - offset[..., None], 0.0)
    squares = xp.sum(deviation * deviation, axis=-1)
    peak = xp.max(xp.where(visible, xp.abs(products), 0.0), axis=-1)
    return count, pivot, offset, squares, peak


def join(xp: Any, one: Moments, other: Moments) -> Moments:
    """Return the moments of two sets of keys, those of `one` before those of `other`."""
    row_max = xp.maximum(one.row_max, other.row_max)
    first = one.row_max >= other.row_max
    a, b = (online.shrink(xp, part.row_max, row_max) for part in (one, other))

    def fallen(part: Moments, factor: Array) -> Array:
        gap = xp.where(factor > 0, online.anchor(xp, row_max) - part.row_max, 0.0)
        return factor * (part.surprise + gap * part.total)

    def rest(name: str, power: int) -> Array:
        mine, yours = getattr(one, name), getattr(other, name)
        had_key = xp.where(first, other.count > 0, one.count > 0)
        loser = xp.where(first, yours, mine) + xp.astype(had_key, mine.dtype)
        factor = xp.where(first, b, a)
        return xp.where(first, mine, yours) + loser * factor**power

    count = one.count + other.count
    share = other.count / xp.maximum(count, xp.ones_like(count))
    pivot = xp.where(one.count > 0, one.pivot, other.pivot)
    mine, yours = one.pivot - pivot + one.offset, other.pivot - pivot + other.offset
    mine, yours = xp.where(one.count > 0, mine, yours), xp.where(other.count > 0, yours, mine)
    step = yours - mine
    return Moments(
        row_max,
        xp.where(first, one.argmax, other.argmax),
        a * one.total + b * other.total,
        fallen(one, a) + fallen(other, b),
        rest("rest", 1),
        rest("rest_2", 2),
        rest("rest_3", 3),
        a * one.distance + b * other.distance,
        count,
        pivot,
        mine + step * share,
        one.squares + other.squares + step * step * one.count * share,
        xp.maximum(one.peak, other.peak),
    )


def finish(xp: Any, sums: Moments, sinks: Array | None) -> dict[str, Array]:
    """Return the statistics of finished rows, by name; a row that sees NaN or +inf has NaN in all.

    With a sink, p = e·exp(m - m′)/L′, where m′ and L′ have taken the sink's logit in; without one
    m′ = m and L′ = Σe.
    """
    shift, total = online.normaliser(xp, sums.row_max, sums.total, sinks)
    down = online.shrink(xp, sums.row_max, shift)
    largest = down / total
    taken = 0.0 if sinks is None else online.shrink(xp, sinks, shift)
    others = (down * sums.rest + taken) / total  # 1 - a, without the subtraction
    rest_2, rest_3 = sums.rest_2 * largest**2, sums.rest_3 * largest**3
    jacobian = (largest * others) ** 2 + (rest_2 - 2 * rest_3)
    jacobian = jacobian + rest_2 * (rest_2 + 2 * largest * largest)
    fall = online.anchor(xp, shift) - online.anchor(xp, sums.row_max)
    entropy = largest * (sums.total * (xp.log(total) + fall) + sums.surprise)
    found = {
        "max_score": sums.row_max,
        "max_weight": largest,
        "entropy": xp.where(largest == 0, 0.0, entropy),
        "effective_keys": sums.total**2 / (1 + sums.rest_2),
        "jacobian_norm": xp.sqrt(jacobian),
        "score_mean": sums.pivot + sums.offset,
        "score_std": xp.sqrt(sums.squares / sums.count),
        "peak_product": sums.peak,
        "distance": sums.distance / sums.total,
        "argmax": sums.argmax,
    }
    return _mend(xp, found, sums.row_max)


WITHOUT_A_KEY = {
    "max_weight": 0.0,
    "entropy": 0.0,
    "effective_keys": 0.0,
    "jacobian_norm": 0.0,
    "score_mean": math.nan,
    "score_std": math.nan,
    "distance": math.nan,
    "argmax": -1,
}
"""What a statistic is in a row without a visible key, where its formula does not say so."""


def _mend(xp: Any, found: dict[str, Array], row_max: Array) -> dict[str, Array]:
    """Return statistics that are also right in rows that see no key, or a NaN or +inf score."""
    empty, unsound = row_max == -xp.inf, is_unsound(xp, row_max)
    if bool(xp.any(empty)):
        found = found | {n: xp.where(empty, x, found[n]) for n, x in WITHOUT_A_KEY.items()}
    if bool(xp.any(unsound)):
        found = {n: xp.where(unsound, -1 if n == "argmax" else xp.nan, x) for n, x in found.items()}
    return found


def is_unsound(xp: Any, row_max: Array) -> Array:
    """Tell which rows see a NaN or +inf score."""
    return xp.isnan(row_max) | (row_max == xp.inf)


# ---------------------------------------------------------------------------------------- top k


def candidates(xp: Any, scores: Array, first: int, k: int) -> TopK:
    """Return the k largest scores of each row and their keys, the lowest key first among equals."""
    order = xp.argsort(-scores, axis=-1, stable=True)[..., :k]
    return TopK(xp.take_along_axis(scores, order, axis=-1), order + first)


def join_candidates(xp: Any, one: TopK, other: TopK, k: int) -> TopK:
    """Return the k largest scores of two sets of keys, those of `one` before those of `other`."""
    scores = xp.concat((one.values, other.values), axis=-1)
    indices = xp.concat((one.indices, other.indices), axis=-1)
    order = xp.argsort(-scores, axis=-1, stable=True)[..., :k]
    return TopK(
        xp.take_along_axis(scores, order, axis=-1), xp.take_along_axis(indices, order, axis=-1)
    )


def finish_candidates(
    xp: Any, found: TopK, k: int, row_max: Array, shift: Array, total: Array
) -> TopK:
    """Return the weights of k candidates; 0 and -1 where a row has fewer visible keys."""
    scores, indices = found
    n_missing = k - scores.shape[-1]
    if n_missing:
        none = xp.zeros_like(xp.stack((row_max,) * n_missing, axis=-1))
        scores = xp.concat((scores, none - xp.inf), axis=-1)
        indices = xp.concat((indices, xp.astype(none, indices.dtype)), axis=-1)
    weights, missing = online.softmax(xp, scores, shift, total), scores == -xp.inf
    unsound = is_unsound(xp, row_max)[..., None]
    if bool(xp.any(missing)) or bool(xp.any(unsound)):
        weights = xp.where(unsound, xp.nan, weights)
        indices = xp.where(missing | unsound, -1, indices)
    return TopK(weights, indices)
