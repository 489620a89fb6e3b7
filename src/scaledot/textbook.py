"""The definition: softmax(QKᵀ · scale) V, with all its scores in memory.

    scores  = masked(capped(query @ keyᵀ · scale) + bias)     stage by stage in `scaledot.scores`
    weights = exp(scores) / Σ exp(scores)                     over the keys, and the sink if any
    output  = weights @ value

It is what the other engines are held against, and the fastest way for a handful of scores.
"""

from typing import Any

from scaledot import online, statistics
from scaledot.problem import WHOLE, Problem
from scaledot.request import Blocks, Request, Results
from scaledot.results import Array


def run(problem: Problem, request: Request, results: Results, blocks: Blocks) -> None:
    """Fill the results from one block that holds every score, whatever its size."""
    xp = problem.xp
    rows, keys = slice(0, len(problem.rows)), slice(0, problem.key.shape[-2])
    everywhere = (WHOLE,) * len(problem.sizes)
    stages = problem.scores(rows, keys)
    scores = stages.masked
    row_max, shift, total, weights = weigh(xp, scores, problem.sinks)
    output = moments = top = None
    if request.output:
        output = online.add(*online.product(xp, weights, problem.values(keys), scores))
    if request.moments:
        moments = statistics.moments(xp, scores, stages.scaled, 0, problem.positions(rows))
    if request.top_k:
        top = statistics.candidates(xp, scores, 0, request.k)
    results.finish(
        (*everywhere, WHOLE),
        row_max=row_max,
        shift=shift,
        total=total,
        output=output,
        moments=moments,
        top=top,
        sinks=problem.sinks,
    )
    if request.weights:
        results.put("weights", (*everywhere, WHOLE, WHOLE), weights)
    if "received" in request.statistics:
        results.put("received", (*everywhere, WHOLE), xp.sum(weights, axis=-2))


def weigh(xp: Any, scores: Array, sinks: Array | None) -> tuple[Array, Array, Array, Array]:
    """Return the largest score, the maximum and the sum with the sink, and the weights.

    Only differences of scores enter the exponential, so it cannot overflow; a sink takes part in
    the sum alone. A row without a visible key has weights of 0.
    """
    row_max = online.largest(xp, scores)
    shift = row_max if sinks is None else xp.maximum(row_max, sinks)
    exps = online.exponentials(xp, scores, shift)
    total = xp.sum(exps, axis=-1)
    if sinks is not None:
        total = total + online.shrink(xp, sinks, shift)
    weights = xp.where(scores == -xp.inf, 0.0, exps / total[..., None])
    return row_max, shift, total, weights
