"""The backward formulas, block by block: gradients of attention in O(T + S) memory.

With weights p, output o = Σ p v and a loss whose gradients by the output, the log-sum-exp and the
entropy of a row are g, γ and h, the gradient by a score is

    ds = p (g·v - g·o + γ + h (-ln p - 1 - E + P))        E = -Σ p ln p, P = Σ p

(for g: Dao 2022, "FlashAttention", appendix B.2; γ from ∂ log Σ exp(s) / ∂s = p). The weights are
made again from the row's maximum and sum; the log-sum-exp alone would lose their digits where
scores are large. From ds follow, by the chain rule through the stages of `scaledot.scores`,

    dbias = ds    dquery = scale · ds′ key    dkey = scale · ds′ᵀ query    dvalue = pᵀ g

with ds′ = ds (1 - (capped / softcap)²). A sink is a score without a value.
"""

from typing import Any, NamedTuple

from scaledot import arrays, online
from scaledot.problem import WHOLE, Index, Problem, assign, within
from scaledot.request import Blocks
from scaledot.results import Array
from scaledot.scores import Scores, fold_rows, matmul


class Backward(NamedTuple):
    """What the forward pass left and the gradients that come in, in the type of the sums."""

    output: Array | None
    """(*batch, *folded, T, E)."""
    row_max: Array
    """(*batch, *folded, T), like all that follow but `grad_output`: the largest score."""
    shift: Array
    """The maximum with the sink."""
    total: Array
    """The sum of exp(score - shift) with the sink."""
    grad_output: Array | None
    grad_log_sum_exp: Array | None
    grad_entropy: Array | None
    entropy: Array | None


def backward(
    problem: Problem, blocks: Blocks, known: Backward, wrt: tuple[str, ...]
) -> dict[str, Array]:
    """Return the gradients by the arguments named in `wrt`, canonical, in the type of the sums."""
    xp, device = problem.xp, arrays.device_of(problem.xp, problem.query)
    totals = {
        name: xp.zeros(tuple(getattr(problem, name).shape), dtype=problem.dtype, device=device)
        for name in wrt
    }
    for heads, part in problem.parts(blocks.heads):
        local = Backward(*(_part(x, heads) for x in known))
        for rows in part.row_blocks(blocks.rows):
            _rows(part, (*heads, rows), blocks.keys, local, totals)
    return totals


def _part(x: Array | None, heads: Index) -> Array | None:
    return None if x is None else x[(*heads, ...)]


def _rows(
    part: Problem, index: Index, n_keys: int, known: Backward, totals: dict[str, Array]
) -> None:
    """Add what one block of rows gives to the gradients."""
    xp, (*heads, rows) = part.xp, index
    here = Backward(
        *(
            None if x is None else x[(..., rows, WHOLE) if name in MATRICES else (..., rows)]
            for name, x in known._asdict().items()
        )
    )
    constant = _constant(xp, here, part.sinks)
    if "sinks" in totals and part.sinks is not None:
        grad = _sink_weight(xp, here, part.sinks) * constant
        _add(xp, totals, "sinks", (*heads, WHOLE), xp.sum(grad, axis=-1, keepdims=True))
    for keys, stages in part.walk(rows, n_keys):
        _block(part, index, keys, stages, here, constant, totals)


MATRICES = ("output", "grad_output")


def _constant(xp: Any, here: Backward, sinks: Array | None) -> Array:
    """Return what all scores of a row have in common in their gradient, (..., T)."""
    constant = xp.zeros_like(here.row_max)
    if here.grad_output is not None and here.output is not None:
        constant = constant - xp.sum(here.grad_output * here.output, axis=-1)
    if here.grad_log_sum_exp is not None:
        constant = constant + here.grad_log_sum_exp
    if here.grad_entropy is not None and here.entropy is not None:
        mass = 1.0 if sinks is None else 1.0 - _sink_weight(xp, here, sinks)
        constant = constant - here.grad_entropy * (here.entropy - mass)
    empty = here.row_max == -xp.inf
    alone = 0.0 if here.grad_log_sum_exp is None else here.grad_log_sum_exp
    return xp.where(empty, alone, constant)


def _sink_weight(xp: Any, here: Backward, sinks: Array) -> Array:
    """Return the weight that the sink takes, (..., T)."""
    weight = online.shrink(xp, sinks, here.shift) / here.total
    return xp.where(here.shift == -xp.inf, 0.0, weight)


def _block(
    part: Problem,
    index: Index,
    keys: slice,
    stages: Scores,
    here: Backward,
    constant: Array,
    totals: dict[str, Array],
) -> None:
    """Add what one block of scores gives to the gradients."""
    xp, (*heads, rows), scores = part.xp, index, stages.masked
    weights = online.softmax(xp, scores, here.shift, here.total)
    n_folded = part.query.ndim - part.key.ndim
    batch = tuple(heads[: part.key.ndim - 2])
    if "value" in totals and here.grad_output is not None:
        grad = _transposed(xp, weights, here.grad_output, scores, n_folded)
        _add(xp, totals, "value", (*batch, keys, WHOLE), grad)
    if not totals.keys() & {"query", "key", "bias"}:
        return
    slope = _slope(part, keys, scores, weights, here, constant)
    if "bias" in totals:
        _add(xp, totals, "bias", (*heads, rows, keys), slope)
    if part.frame.softcap is not None:
        bend = 1.0 - (stages.capped / part.frame.softcap) ** 2
        slope = xp.where(scores == -xp.inf, 0.0, slope * bend)  # 0 · NaN of a masked key is NaN
    slope = slope * part.frame.scale
    if "query" in totals:
        key = arrays.convert(xp, part.key[..., keys, :], part.dtype)
        grad = online.add(*online.product(xp, slope, key, scores))
        _add(xp, totals, "query", (*heads, rows, WHOLE), grad)
    if "key" in totals:
        query = arrays.convert(xp, part.query[..., rows, :], part.dtype)
        grad = _transposed(xp, slope, query, scores, n_folded)
        _add(xp, totals, "key", (*batch, keys, WHOLE), grad)


def _slope(
    part: Problem, keys: slice, scores: Array, weights: Array, here: Backward, constant: Array
) -> Array:
    """Return the gradient by the scores of a block: exactly 0 where a key is not visible."""
    xp = part.xp
    slope = constant[..., None]
    if here.grad_output is not None:
        slope = slope + matmul(xp, here.grad_output, xp.matrix_transpose(part.values(keys)))
    if here.grad_entropy is not None:
        minus_log = (here.shift[..., None] - scores) + xp.log(here.total)[..., None]
        slope = slope + here.grad_entropy[..., None] * (minus_log - 1.0)
    return xp.where((scores == -xp.inf) | (weights == 0), 0.0, weights * slope)


def _transposed(xp: Any, left: Array, right: Array, scores: Array, n_folded: int) -> Array:
    """Return leftᵀ @ right for (..., *F, T, S) and (..., *F, T, D), summed over F: (..., S, D)."""
    rows, seen = (xp.matrix_transpose(fold_rows(xp, x, n_folded)) for x in (left, scores))
    return online.add(*online.product(xp, rows, fold_rows(xp, right, n_folded), seen))


def _add(xp: Any, totals: dict[str, Array], name: str, index: Index, block: Array) -> None:
    """Add a block to a total, summed over the axes in which the total broadcasts."""
    total = totals[name]
    spread = tuple(
        axis for axis, size in enumerate(total.shape) if size == 1 and block.shape[axis] != 1
    )
    if spread:
        block = xp.sum(block, axis=spread, keepdims=True)
    place = within(index, tuple(total.shape))
    totals[name] = assign(total, place, total[place] + block)
