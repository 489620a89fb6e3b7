"""The output of tiles whose values hold NaN or infinities: slow, rare, and exact.

A weight of 0 does not silence a NaN (0 · NaN is NaN), so a tile that is multiplied whole is tainted
by keys that its rows do not see. Such tiles are done again here: only finite values are multiplied;
the others are added where they are visible, that is where the score is not -inf. The normaliser is
known by now and taken into the weights, so that a sum of large values, which ends here as well,
does not overflow.
"""

import math

import numpy as np

from scaledot.fused.blocks import gather, release, widen
from scaledot.fused.forward import (
    FULL_TILE,
    multiply_keys,
    place_rows,
    restrict,
    span,
    tile_of,
)
from scaledot.fused.jit import entry, kernel
from scaledot.fused.simd import blank, fetch_add, width
from scaledot.fused.work import OUT, QUERY, ROW


@entry
def run(
    counter, budget, call, heads, keyed, numbers, query, key, value, bias, mask, sinks, out, rows,
    tainted, x, at, bounds, few, few_bias, few_mask, few_out,
):  # fmt: skip
    """Do the tainted tiles again; the arguments are those of `scaledot.fused.forward.run`."""
    its, one = call[0], blank(x, 1)
    n_vectors = (its.n_folded * its.n_queries + width(one) - 1) // width(one)
    n_tiles = (n_vectors + FULL_TILE - 1) // FULL_TILE
    for _ in range(budget):
        item = fetch_add(counter, 0, 1)
        if item >= n_tiles * its.n_batches:
            return
        if tainted[item] == 0:
            continue
        batch, number = item // n_tiles, item % n_tiles
        source = keyed[batch]
        first, n = tile_of(n_tiles - 1 - number, n_tiles, n_vectors)
        lanes = n * width(one)
        place_rows(batch, first * width(one), its, heads, numbers, at, bounds, lanes)
        gather(  # a literal 0 would make a kernel of its own
            query, at, QUERY * its.full, 0 * its.full, its.query_column, its.head_size, few, x,
            its.at_queries, lanes, one,
        )  # fmt: skip
        for place in range(its.value_size * lanes):
            x[its.at_output + place] = 0.0
            x[its.at_taint + place] = 0.0
        low, high, _, _ = span(its, bounds, lanes)
        for begin in range(low, high, its.block_keys):
            n_keys = min(its.block_keys, high - begin)
            for lane in range(lanes):
                x[its.at_row_max + lane] = -np.inf
            multiply_keys(
                source, begin, n_keys, its, key, value, its.value_row, x, few, its.at_scores,
                its.at_shrink, lanes, one,
            )  # fmt: skip
            restrict(
                begin, n_keys, True, its, bias, mask, x, its.at_scores, at, bounds, few_bias,
                few_mask, lanes, one,
            )  # fmt: skip
            widen(
                value, source.value + begin * its.value_row, its.value_row, its.value_column,
                n_keys, its.value_size, few, x, its.at_values, one,
            )  # fmt: skip
            add_values(its, rows, n_keys, x, at, lanes)
        close(its, rows, x, at, lanes)
        release(
            x, its.at_output, its.at_factor, out, at, OUT * its.full, its.out_column,
            its.value_size, few_out, lanes, one,
        )  # fmt: skip


@kernel
def add_values(its, rows, n_keys, x, at, lanes):
    """Add the values of a block to the output of a tile, or to its taint where not finite."""
    n_rows = its.n_batches * its.n_folded * its.n_queries
    for lane in range(lanes):
        row = at[ROW * its.full + lane]
        shift, total = rows[n_rows + row], rows[2 * n_rows + row]
        for r in range(n_keys):
            score = x[its.at_scores + r * lanes + lane]
            if score == -np.inf:
                continue
            weight = math.exp(score * its.unit - shift) / total
            for e in range(its.value_size):
                number = x[its.at_values + r * its.value_size + e]
                if number - number == 0.0:
                    x[its.at_output + e * lanes + lane] += weight * number
                else:
                    x[its.at_taint + e * lanes + lane] += number


@kernel
def close(its, rows, x, at, lanes):
    """Add the taint to the output; a row that sees a NaN score is NaN whatever its values are."""
    n_rows = its.n_batches * its.n_folded * its.n_queries
    for lane in range(lanes):
        total = rows[2 * n_rows + at[ROW * its.full + lane]]
        for place in range(lane, its.value_size * lanes, lanes):
            x[its.at_output + place] += x[its.at_taint + place] + (total - total)
        x[its.at_factor + lane] = 1.0
