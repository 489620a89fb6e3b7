"""Any array library, in O(T + S) memory: block by block, with an online softmax.

Rows go by blocks, and for each block of rows the keys do; what the blocks amount to is joined by
`scaledot.online` and `scaledot.statistics`. Blocks that no row sees are skipped by their intervals.
Where weights are wanted one by one, a second walk over the keys makes them from the known sums.
"""

from typing import NamedTuple

from scaledot import online, statistics
from scaledot.online import Rows
from scaledot.problem import Index, Problem
from scaledot.request import Blocks, Request, Results
from scaledot.results import Array, TopK
from scaledot.scores import Scores
from scaledot.statistics import Moments


class Seen(NamedTuple):
    """What a block of rows has seen of its keys."""

    rows: Rows
    moments: Moments | None
    top: TopK | None


def run(problem: Problem, request: Request, results: Results, blocks: Blocks) -> None:
    """Fill the results block by block."""
    for heads, part in problem.parts(blocks.heads):
        for rows in part.row_blocks(blocks.rows):
            _run_rows(part, request, results, (*heads, rows), blocks.keys)


def _run_rows(part: Problem, request: Request, results: Results, index: Index, n_keys: int) -> None:
    """Finish one block of rows."""
    xp, rows = part.xp, index[-1]
    seen: Seen | None = None
    for keys, stages in part.walk(rows, n_keys):
        block = _see(part, request, rows, keys, stages)
        seen = block if seen is None else _join(part, request, seen, block)
    assert seen is not None
    row_max = seen.rows.row_max
    shift, total = online.normaliser(xp, row_max, seen.rows.row_sum, part.sinks)
    output = None
    if request.output:
        output = online.output(xp, seen.rows, shift, total)
        if not bool(xp.all(xp.isfinite(seen.rows.acc))):
            output = _average(part, rows, n_keys, shift, total, output)
    results.finish(
        index,
        row_max=row_max,
        shift=shift,
        total=total,
        output=output,
        moments=seen.moments,
        top=seen.top,
        sinks=part.sinks,
    )
    if request.normalised:
        _run_weights(part, request, results, index, n_keys, shift, total)


def _average(
    part: Problem, rows: slice, n_keys: int, shift: Array, total: Array, output: Array
) -> Array:
    """Return the output by weights that are normalised first: sums of large values overflowed."""
    xp, average, taint = part.xp, part.xp.zeros_like(output), None
    for keys, stages in part.walk(rows, n_keys):
        weights = online.softmax(xp, stages.masked, shift, total)
        block, more = online.product(xp, weights, part.values(keys), stages.masked)
        average, taint = average + block, online.add(taint, more)
    return online.add(average, taint)


def _run_weights(
    part: Problem,
    request: Request,
    results: Results,
    index: Index,
    n_keys: int,
    shift: Array,
    total: Array,
) -> None:
    """Write the weights of one block of rows, and add up what each key receives of them."""
    xp, (*heads, rows) = part.xp, index
    done = 0
    for keys, stages in part.walk(rows, n_keys):
        weights = online.softmax(xp, stages.masked, shift, total)
        if request.weights:
            results.put_zeros("weights", (*index, slice(done, keys.start)))
            results.put("weights", (*index, keys), weights)
            done = keys.stop
        if "received" in request.statistics:
            results.add("received", (*heads, keys), xp.sum(weights, axis=-2))
    if request.weights:
        results.put_zeros("weights", (*index, slice(done, part.key.shape[-2])))


def _see(part: Problem, request: Request, rows: slice, keys: slice, stages: Scores) -> Seen:
    """Return what one block amounts to."""
    xp, scores = part.xp, stages.masked
    row_max = online.largest(xp, scores)
    exps = online.exponentials(xp, scores, row_max)
    acc = taint = moments = top = None
    if request.output:
        acc, taint = online.product(xp, exps, part.values(keys), scores)
    if request.moments:
        positions = part.positions(rows)
        moments = statistics.moments(xp, scores, stages.scaled, keys.start, positions)
    if request.top_k:
        top = statistics.candidates(xp, scores, keys.start, request.k)
    return Seen(Rows(row_max, xp.sum(exps, axis=-1), acc, taint), moments, top)


def _join(part: Problem, request: Request, one: Seen, other: Seen) -> Seen:
    """Return what two blocks amount to, the keys of `one` before those of `other`."""
    xp = part.xp
    moments = top = None
    if one.moments is not None and other.moments is not None:
        moments = statistics.join(xp, one.moments, other.moments)
    if one.top is not None and other.top is not None:
        top = statistics.join_candidates(xp, one.top, other.top, request.k)
    return Seen(online.join(xp, one.rows, other.rows), moments, top)
