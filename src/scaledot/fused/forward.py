"""Attention forward, tile by tile: output and normaliser of queries in lanes.

A tile is up to three vectors of query rows that share their keys. Its queries are transposed once
into Qᵀ [D][lanes]; then for each block of keys the scores, their restrictions, the online softmax
and the product with the values follow one another while the block is in the nearest caches.

Scores are kept in one of two units: *plain* ones are products as they are, where nothing but a
positive scale is asked of them (the exponent's factor then holds the scale); all others are
finished scores. The maximum is subtracted first and the factor applied to the difference, so that
finite scores never overflow.

Names: `its` is the record of the call, `source` that of a set of keys, `x` the thread's scratch of
floats, `at` and `bounds` what is known of the lanes, `few` a row of lanes in the type of an array,
and `one` shows a single vector; see `scaledot.fused.work`.
"""

import math

import numpy as np

from scaledot import masks
from scaledot.fused.blocks import add_block, gather, release, widen
from scaledot.fused.jit import entry, inlined, kernel
from scaledot.fused.sight import fold_add
from scaledot.fused.simd import (
    add,
    anchor,
    blank,
    fetch_add,
    fma,
    is_half,
    larger,
    loads,
    mul,
    power,
    prefetch,
    splat,
    stores,
    sub,
    tanh,
    unless,
    wide,
    width,
    within,
)
from scaledot.fused.tiles import accumulate, multiply
from scaledot.fused.work import BIAS, MASK, N_PLACES, OUT, QUERY, ROW, WEIGHTS

FULL_TILE = 3
"""Vectors of a full tile."""

visible_keys = kernel(masks.visible_keys)
"""The very function of `scaledot.masks`, on single rows."""


@entry
def run(
    counter, budget, call, heads, keyed, numbers, query, key, value, bias, mask, sinks, out, rows,
    tainted, x, at, bounds, few, few_bias, few_mask, few_out,
):  # fmt: skip
    """Do tiles, fetched one by one from the counter, until none is left or the budget is spent.

    Tiles count from the last rows of a set of keys to the first: under causal the last are the
    heavy ones, and light ones balance the threads at the end. A tile whose output is not finite is
    noted in `tainted`, for `scaledot.fused.contain`, and at its end that there is one.
    """
    its, one = call[0], blank(x, 1)
    n_vectors = (its.n_folded * its.n_queries + width(one) - 1) // width(one)
    n_tiles = (n_vectors + FULL_TILE - 1) // FULL_TILE
    for _ in range(budget):
        item = fetch_add(counter, 0, 1)
        if item >= n_tiles * its.n_batches:
            return
        batch, number = item // n_tiles, item % n_tiles
        if its.by_rows:
            batch, number = item % its.n_batches, item // its.n_batches
        source = keyed[batch]
        first, n = tile_of(n_tiles - 1 - number, n_tiles, n_vectors)
        lanes = n * width(one)
        place_rows(batch, first * width(one), its, heads, numbers, at, bounds, lanes)
        ahead(query, at, QUERY * its.full, 0, its.query_column, its.head_size, lanes)
        ahead(out, at, OUT * its.full, 0, its.out_column, its.value_size, lanes)
        gather(  # a literal 0 would make a kernel of its own
            query, at, QUERY * its.full, 0 * its.full, its.query_column, its.head_size, few, x,
            its.at_queries, lanes, one,
        )  # fmt: skip
        low, high, all_from, all_to = span(its, bounds, lanes)
        clear(its, high <= low, x, lanes, one)
        # Equal blocks, in whole rows of a tile: a short last one would cost as much as a long one.
        n_blocks = max(1, (high - low + its.block_keys - 1) // its.block_keys)
        step = max(8, ((high - low + n_blocks - 1) // n_blocks + 7) // 8 * 8)
        for begin in range(low, high, step):
            n_keys = min(step, high - begin)
            is_partial = begin < all_from or begin + n_keys > all_to
            score(
                source, begin, n_keys, is_partial, its, key, value, bias, mask, x, at, bounds,
                few, few_bias, few_mask, lanes, one,
            )  # fmt: skip
            if its.has_output:
                add_values(
                    source, begin, n_keys, begin > low, its, value, x, few, its.at_scores, lanes,
                    one,
                )  # fmt: skip
        finish(its, sinks, rows, x, at, lanes)
        if its.has_output == 0:
            continue
        if not is_finite(x, its.at_output, its.value_size * lanes, its.at_shrink, one):
            tainted[batch * n_tiles + number] = 1
            tainted[n_tiles * its.n_batches] = 1
        release(
            x, its.at_output, its.at_factor, out, at, OUT * its.full, its.out_column,
            its.value_size, few_out, lanes, one,
        )  # fmt: skip


@kernel
def tile_of(tile, n_tiles, n_vectors):
    """Return the first vector of a tile and how many it has: 3, the last ones 2 rather than 1."""
    n_full = n_vectors - 2 * n_tiles
    if n_full < 0:  # a single vector
        return 0, 1
    if tile < n_full:
        return tile * FULL_TILE, FULL_TILE
    return n_full * FULL_TILE + (tile - n_full) * 2, 2


@inlined
def place_rows(batch, first, its, heads, numbers, at, bounds, lanes):
    """Note where the rows of a tile lie and which keys they see.

    Rows of heads that share keys alternate: row g is query g // n_folded of head g % n_folded, so
    that the rows of a tile are near each other. Lanes beyond the last row repeat it.
    """
    n = min(lanes, its.n_folded * its.n_queries - first)
    for start in range(min(n, its.n_folded)):  # head by head, whose numbers stay in registers
        query = (first + start) // its.n_folded
        number = batch * its.n_folded + (first + start) % its.n_folded
        head = heads[number]
        query_place = head.query + query * its.query_row
        out_place = head.out + query * its.out_row
        bias_place = head.bias + query * its.bias_row
        mask_place = head.mask + query * its.mask_row
        weights_place = head.weights + query * its.weights_row
        row = number * its.n_queries + query
        query_offset, n_keys, n_queries = head.query_offset, head.n_keys, head.n_queries
        for lane in range(start, n, its.n_folded):
            at[QUERY * its.full + lane] = query_place
            at[OUT * its.full + lane] = out_place
            at[ROW * its.full + lane] = row
            at[BIAS * its.full + lane] = bias_place
            at[MASK * its.full + lane] = mask_place
            at[WEIGHTS * its.full + lane] = weights_place
            low, high = visible_keys(
                numbers[query], query_offset, its.left, its.right, n_keys, n_queries
            )
            bounds[lane] = low
            bounds[its.full + lane] = high
            query, row = query + 1, row + 1
            query_place, out_place = query_place + its.query_row, out_place + its.out_row
            bias_place, mask_place = bias_place + its.bias_row, mask_place + its.mask_row
            weights_place += its.weights_row
    for lane in range(n, lanes):
        for section in range(0, N_PLACES * its.full, its.full):
            at[section + lane] = at[section + n - 1]
        bounds[lane] = bounds[n - 1]
        bounds[its.full + lane] = bounds[its.full + n - 1]


@kernel
def clear(its, is_blind, x, lanes, one):
    """Begin the sums of a tile; its output too if no row sees a key."""
    nothing, zero = splat(-np.inf, one), splat(0.0, one)
    for lane in range(0, lanes, width(one)):
        stores(x, its.at_row_max + lane, 0, nothing, one)
        stores(x, its.at_row_sum + lane, 0, zero, one)
    if is_blind:
        for place in range(0, its.value_size * lanes, width(one)):
            stores(x, its.at_output + place, 0, zero, one)


@inlined
def span(its, bounds, lanes):
    """Return the keys that some row sees, low to high, and those that all rows see."""
    low, high, all_from, all_to = its.n_keys, 0, 0, its.n_keys
    for lane in range(lanes):
        start, stop = bounds[lane], bounds[its.full + lane]
        if stop > start:
            low, high = min(low, start), max(high, stop)
        all_from, all_to = max(all_from, start), min(all_to, stop)
    return low, high, all_from, all_to


@inlined
def score(
    source, begin, n, is_partial, its, key, value, bias, mask, x, at, bounds, few, few_bias,
    few_mask, lanes, one,
):  # fmt: skip
    """Turn a block of keys into weights, relative to the maximum so far, and add them up."""
    for lane in range(0, lanes, width(one)):
        stores(x, its.at_shrink + lane, 0, loads(x, its.at_row_max + lane, one), one)
    multiply_keys(
        source, begin, n, its, key, value, its.value_row, x, few, its.at_scores, its.at_row_max,
        lanes, one,
    )  # fmt: skip
    if is_partial or its.has_mask or its.is_plain == 0:
        # the maxima of products include keys that are not visible, or lie in another unit
        forget_maxima(its, x, lanes, one)
        restrict(
            begin, n, is_partial, its, bias, mask, x, its.at_scores, at, bounds, few_bias,
            few_mask, lanes, one,
        )  # fmt: skip
    exponent, least = splat(its.exponent, one), splat(its.least, one)
    for lane in range(0, lanes, width(one)):
        low = anchor(loads(x, its.at_row_max + lane, one))
        shrink = power(sub(loads(x, its.at_shrink + lane, one), low), exponent, least)
        total = splat(0.0, one)
        for place in range(its.at_scores + lane, its.at_scores + n * lanes, lanes):
            weights = power(sub(loads(x, place, one), low), exponent, least)
            stores(x, place, 0, weights, one)
            total = add(total, weights)
        before = loads(x, its.at_row_sum + lane, one)
        stores(x, its.at_row_sum + lane, 0, fma(before, shrink, total), one)
        stores(x, its.at_shrink + lane, 0, shrink, one)


@inlined
def multiply_keys(
    source, begin, n, its, key, value, value_row, x, few, scores, tops, lanes, one
):  # fmt: skip
    """Write the products of a block of keys with the queries of the tile.

    The values of the block are asked for, in rows `value_row` apart: 0 where they are not read.
    """
    start, row, column = source.key + begin * its.key_row, its.key_row, its.key_column
    following = start + 8 * row
    if is_half(key):
        following = start + n * row  # the block itself is read at once
        widen(key, start, row, column, n, its.head_size, few, x, its.at_keys, one)
        start, row, column = its.at_keys, its.head_size, 1
    soon = (key, following, its.key_row, value, source.value + begin * value_row, value_row)
    keys = wide(key, x)
    size, queries = its.head_size, its.at_queries
    if lanes == 3 * width(one):
        three = blank(x, 3)
        multiply(keys, start, row, column, n, x, queries, size, scores, tops, soon, three)
    elif lanes == 2 * width(one):
        two = blank(x, 2)
        multiply(keys, start, row, column, n, x, queries, size, scores, tops, soon, two)
    else:
        multiply(keys, start, row, column, n, x, queries, size, scores, tops, soon, one)


@inlined
def add_values(source, begin, n, joins, its, value, x, few, weights, lanes, one):
    """Write the output of the tile: the values of a block, by their weights, and what it joins."""
    start, row, column = source.value + begin * its.value_row, its.value_row, its.value_column
    if is_half(value):
        widen(value, start, row, column, n, its.value_size, few, x, its.at_values, one)
        start, row, column = its.at_values, its.value_size, 1
    values = wide(value, x)
    if lanes == 3 * width(one):
        accumulate(
            values, start, column, row, its.value_size, x, weights, n, its.at_output,
            joins, its.at_shrink, blank(x, 3),
        )  # fmt: skip
    elif lanes == 2 * width(one):
        accumulate(
            values, start, column, row, its.value_size, x, weights, n, its.at_output,
            joins, its.at_shrink, blank(x, 2),
        )  # fmt: skip
    else:
        accumulate(
            values, start, column, row, its.value_size, x, weights, n, its.at_output,
            joins, its.at_shrink, one,
        )  # fmt: skip


@inlined
def restrict(
    begin, n, is_partial, its, bias, mask, x, scores, at, bounds, few_bias, few_mask, lanes, one
):  # fmt: skip
    """Take products to scores, in their order: scale, softcap, bias, masks; raise the maxima."""
    if its.is_plain == 0 and (its.softcap > 0 or its.has_bias == 0):
        cap(n, its, x, scores, lanes, one)
    if its.has_bias:
        ahead(bias, at, BIAS * its.full, (begin + n) * its.bias_column, its.bias_column, n, lanes)
        forget_maxima(its, x, lanes, one)
        add_block(
            bias, at, BIAS * its.full, begin * its.bias_column, its.bias_column, n, few_bias, x,
            scores, its.scale if its.softcap == 0 else 1.0, its.at_row_max, lanes, one,
        )  # fmt: skip
    if its.has_mask:
        gather(
            mask, at, MASK * its.full, begin * its.mask_column, its.mask_column, n, few_mask, x,
            its.at_forbidden, lanes, one,
        )  # fmt: skip
    if its.has_mask or is_partial:
        forget_maxima(its, x, lanes, one)
        hide(begin, n, is_partial, its, x, scores, bounds, lanes, one)


@kernel
def forget_maxima(its, x, lanes, one):
    """Take the maxima back to those before this block."""
    for lane in range(0, lanes, width(one)):
        stores(x, its.at_row_max + lane, 0, loads(x, its.at_shrink + lane, one), one)


@kernel
def cap(n, its, x, products, lanes, one):
    """Scale the products of a block and cap them; raise the maxima."""
    scale, most = splat(its.scale, one), splat(its.softcap, one)
    uncap = splat(1.0 / its.softcap, one)
    for lane in range(0, lanes, width(one)):
        top = loads(x, its.at_row_max + lane, one)
        for place in range(products + lane, products + n * lanes, lanes):
            scores = mul(loads(x, place, one), scale)
            if its.softcap > 0:
                scores = mul(tanh(mul(scores, uncap)), most)
            stores(x, place, 0, scores, one)
            top = larger(scores, top)
        stores(x, its.at_row_max + lane, 0, top, one)


@kernel
def hide(begin, n, is_partial, its, x, block, bounds, lanes, one):
    """Write -inf over the scores that a mask or the bounds of a row forbid; raise the maxima."""
    for lane in range(0, lanes, width(one)):
        top = loads(x, its.at_row_max + lane, one)
        for r in range(n):
            place = r * lanes + lane
            scores = loads(x, block + place, one)
            if its.has_mask:
                scores = unless(scores, loads(x, its.at_forbidden + place, one))
            if is_partial:
                scores = within(scores, begin + r, bounds, lane, its.full)
            stores(x, block + place, 0, scores, one)
            top = larger(scores, top)
        stores(x, its.at_row_max + lane, 0, top, one)


@inlined
def ahead(a, at, begin, start, step, n, lanes):
    """Ask for numbers of the rows of a tile, which lie far apart, before they are used."""
    if step != 1:
        return
    for lane in range(lanes):
        for p in range(0, n, 16):
            prefetch(a, at[begin + lane] + start + p)


@inlined
def finish(its, sinks, rows, x, at, lanes):
    """Take the sinks in, write maxima and sums of the rows, and note what finishes their output."""
    n_rows = its.n_batches * its.n_folded * its.n_queries
    for lane in range(lanes):
        row = at[ROW * its.full + lane]
        row_max = x[its.at_row_max + lane] * its.unit
        row_sum = x[its.at_row_sum + lane]
        shift, total, factor = row_max, row_sum * 1.0, 1.0
        if its.has_sinks:
            sink = sinks[row // its.n_queries] * 1.0
            if sink > row_max or sink != sink:
                shift = sink
            if shift != -np.inf:
                factor = math.exp(row_max - shift)
                total = total * factor + math.exp(sink - shift)
        if its.has_rows:
            rows[row] = row_max
            rows[n_rows + row] = shift
            rows[2 * n_rows + row] = total
        x[its.at_factor + lane] = 0.0 if row_sum == 0.0 else factor / total


@kernel
def is_finite(x, start, n, spare, one):
    """Tell whether n numbers, a multiple of a vector's, are all finite; writes a spare vector."""
    zero, many = splat(0.0, one), blank(x, 8)
    sums, whole = many, n // width(many) * width(many)
    for place in range(start, start + whole, width(many)):  # no sum waits for the one before
        sums = fma(loads(x, place, many), zero, sums)
    found = fold_add(sums, zero)
    for place in range(start + whole, start + n, width(one)):
        found = fma(loads(x, place, one), zero, found)
    stores(x, spare, 0, found, one)
    total = 0.0
    for lane in range(width(one)):
        total += x[spare + lane]
    return total == 0.0
