"""The algebra of rows seen in parts: maximum, sum and accumulator, and the product that holds NaN.

What some keys amount to for a row is the triple of the largest score m, the sum l = Σ exp(s - m)
and the accumulator Σ exp(s - m) · value. Two parts join at the larger maximum, each scaled by
exp(m - larger) (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao 2022,
"FlashAttention", section 3.1). All functions are pure and take any Array API namespace.
"""

from typing import Any, NamedTuple

from scaledot.results import Array, Part
from scaledot.scores import matmul


class Rows(NamedTuple):
    """What some keys amount to for a block of rows."""

    row_max: Array
    """(..., T): the largest score, -inf without a key."""
    row_sum: Array
    """(..., T): the sum of exp(score - row_max)."""
    acc: Array | None
    """(..., T, E): the sum of exp(score - row_max) · value, finite values only."""
    taint: Array | None
    """(..., T, E): what visible NaN and infinities add to the output; None without any."""


def anchor(xp: Any, row_max: Array) -> Array:
    """Return what to subtract from scores: the maximum, or 0 where there is none."""
    return xp.where(row_max == -xp.inf, 0.0, row_max)


def shrink(xp: Any, old: Array, new: Array) -> Array:
    """Return exp(old - new) for maxima old <= new; 0 where old is -inf."""
    return xp.exp(old - anchor(xp, new))


def largest(xp: Any, scores: Array) -> Array:
    """Return the largest score of each row, (..., T); -inf where there are no keys."""
    if scores.shape[-1] == 0:
        return xp.sum(scores, axis=-1) - xp.inf
    return xp.max(scores, axis=-1)


def exponentials(xp: Any, scores: Array, row_max: Array) -> Array:
    """Return exp(score - row_max), (..., T, S); 0 at scores of -inf unless the row holds a NaN."""
    return xp.exp(scores - anchor(xp, row_max)[..., None])


def softmax(xp: Any, scores: Array, row_max: Array, row_sum: Array) -> Array:
    """Return the weights of scores whose maximum and sum are known; 0 at every score of -inf."""
    weights = exponentials(xp, scores, row_max) / row_sum[..., None]
    return xp.where(scores == -xp.inf, 0.0, weights)


def product(xp: Any, weights: Array, value: Array, scores: Array) -> tuple[Array, Array | None]:
    """Return weights @ value of the finite values, and the taint of those that are not.

    `weights` and `scores` are (..., *F, T, S), `value` is (..., S, E); axes F that the values lack
    are folded into the rows. A weight of 0 does not silence a NaN (0 · NaN is NaN), and a visible
    one must not be silenced: so only finite values are multiplied, and NaN and infinities are
    counted where they are visible, that is where the score is not -inf. The taint is what they
    add: NaN, ±inf, or 0.
    """
    finite = xp.isfinite(value)
    if bool(xp.all(finite)):
        return matmul(xp, weights, value), None
    total = matmul(xp, weights, xp.where(finite, value, 0.0))
    visible = xp.astype(scores != -xp.inf, value.dtype)

    def seen(what: Array) -> Array:
        return matmul(xp, visible, xp.astype(what, value.dtype)) > 0

    nothing = xp.zeros_like(total)
    up = xp.where(seen(value == xp.inf), xp.inf, nothing)
    down = xp.where(seen(value == -xp.inf), -xp.inf, nothing)
    return total, xp.where(seen(xp.isnan(value)), xp.nan, up + down)


def join(xp: Any, one: Rows, other: Rows) -> Rows:
    """Return what two sets of keys amount to together."""
    row_max = xp.maximum(one.row_max, other.row_max)
    scale_one = shrink(xp, one.row_max, row_max)
    scale_other = shrink(xp, other.row_max, row_max)
    acc = one.acc
    if acc is not None:
        acc = acc * scale_one[..., None] + other.acc * scale_other[..., None]
    return Rows(
        row_max,
        one.row_sum * scale_one + other.row_sum * scale_other,
        acc,
        add(one.taint, other.taint),
    )


def add(one: Array | None, other: Array | None) -> Array | None:
    """Return the sum of two arrays, either of which may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def normaliser(xp: Any, row_max: Array, row_sum: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Return the maximum and the sum with the sink's logit taken in."""
    if sinks is None:
        return row_max, row_sum
    shift = xp.maximum(row_max, sinks)
    return shift, row_sum * shrink(xp, row_max, shift) + shrink(xp, sinks, shift)


def log_sum_exp(xp: Any, shift: Array, total: Array) -> Array:
    """Return the natural logarithm of the normaliser; -inf where nothing took part."""
    return shift + xp.log(total)


def output(xp: Any, rows: Rows, shift: Array, total: Array) -> Array:
    """Return the output of finished rows, (..., T, E); 0 where no key was visible."""
    factor = (shrink(xp, rows.row_max, shift) / total)[..., None]
    result = add(rows.acc * factor, rows.taint)
    return xp.where((rows.row_max == -xp.inf)[..., None], 0.0, result)


def merge(xp: Any, one: Rows | None, part: Part) -> Rows:
    """Return what a part amounts to, together with those before it.

    Here `acc` is an average already, so that no sum of large outputs overflows.
    """
    lse = part.log_sum_exp
    empty = (lse == -xp.inf)[..., None]
    finite = xp.isfinite(part.output)
    other = Rows(
        lse,
        xp.where(lse == -xp.inf, 0.0, xp.ones_like(lse)),
        xp.where(empty | ~finite, 0.0, part.output),
        xp.where(empty | finite, 0.0, part.output),
    )
    if one is None:
        return other
    row_max = xp.maximum(one.row_max, other.row_max)
    mine = one.row_sum * shrink(xp, one.row_max, row_max)
    yours = other.row_sum * shrink(xp, other.row_max, row_max)
    total = mine + yours
    share = xp.where(total == 0, 0.0, mine / total)[..., None]
    rest = xp.where(total == 0, 0.0, yours / total)[..., None]
    acc = one.acc * share + other.acc * rest
    return Rows(row_max, total, acc, add(one.taint, other.taint))


def softmax_over(xp: Any, z: Array, axes: tuple[int, ...]) -> Array:
    """Return the softmax over some axes, in the type of `z`; 0 at every -inf."""
    if 0 in z.shape or not axes:
        return xp.where(z == -xp.inf, 0.0, xp.exp(z - anchor(xp, z)))
    exps = xp.exp(z - anchor(xp, xp.max(z, axis=axes, keepdims=True)))
    return xp.where(z == -xp.inf, 0.0, exps / xp.sum(exps, axis=axes, keepdims=True))
