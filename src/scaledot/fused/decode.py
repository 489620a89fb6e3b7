"""Few queries over many keys, as when a model writes: lanes along the head size.

There is next to nothing to compute for each key, so what counts is that keys and values are read
once, in order, by all threads. The keys of a set are cut into parts, as many for any number of
threads; each part leaves, for each query row, its maximum, its sum and its output before division,
and the parts are joined in their order. All heads of a group read a key together.

    a row of a part = [maximum, sum, output...]

Values that are not finite are left to `scaledot.fused.forward`, which contains them: a part that
meets them says so, and the call is done again there.
"""

import math

import numpy as np

from scaledot.fused.forward import visible_keys
from scaledot.fused.jit import entry, inlined
from scaledot.fused.simd import (
    add,
    blank,
    dots,
    fetch_add,
    fold_rows,
    larger,
    loads,
    mul,
    power,
    prefetch,
    rank1,
    splat,
    square,
    stores,
    tile,
    width,
    zeros,
)

MOST_ROWS = 8
"""Query rows that share their keys, up to which this is faster than tiles (measured)."""
PART_KEYS = 1024
"""Keys of a part, at least: 1 MiB of float32 keys and values of size 128."""
MOST_PARTS = 64
BLOCK = 64
"""Keys of a block: their values are 32 KiB at size 128, which stay in the nearest cache."""


@entry
def run(
    counter, budget, call, heads, keyed, query, key, value, bias, mask, parts, trouble, x
):  # fmt: skip
    """Do parts, fetched one by one from the counter, until none is left or the budget is spent.

    `x` is scratch of floats: the queries [rows][D], a spare vector, the scores [rows][BLOCK], with
    a spare vector before each row.
    """
    its, one = call[0], blank(x, 1)
    n_rows = its.n_folded * its.n_queries
    for _ in range(budget):
        item = fetch_add(counter, 0, 1)
        if item >= its.n_batches * its.n_parts:
            return
        batch = item // its.n_parts
        step = (its.n_keys + its.n_parts - 1) // its.n_parts
        begin = item % its.n_parts * step
        end = min(begin + step, its.n_keys)
        begin, end = seen(batch, begin, end, n_rows, its, heads)
        take_queries(batch, n_rows, its, heads, query, x, one)
        first = item * n_rows * its.part_size
        for row in range(n_rows):
            place = first + row * its.part_size
            parts[place] = -np.inf
            for e in range(1, its.part_size):
                parts[place + e] = 0.0
        for block in range(begin, end, BLOCK):
            n = min(BLOCK, end - block)
            do_block(batch, block, n, n_rows, its, heads, keyed, key, value, bias, mask, x, parts,
                     first)  # fmt: skip
        for place in range(first, first + n_rows * its.part_size):
            number = parts[place]
            if number - number != 0.0 and number != -np.inf:
                trouble[0] = 1


@inlined
def seen(batch, begin, end, n_rows, its, heads):
    """Return those of some keys that some row may see."""
    low, high = end, begin
    for row in range(n_rows):
        head = heads[batch * its.n_folded + row % its.n_folded]
        start, stop = visible_keys(
            row // its.n_folded, head.query_offset, its.left, its.right, head.n_keys,
            head.n_queries,
        )  # fmt: skip
        if stop > start:
            low, high = min(low, max(start, begin)), max(high, min(stop, end))
    return low, high


@inlined
def take_queries(batch, n_rows, its, heads, query, x, one):
    """Copy the query rows of a set of keys to the scratch, in the type of the sums."""
    for row in range(n_rows):
        head = heads[batch * its.n_folded + row % its.n_folded]
        start = head.query + row // its.n_folded * its.query_row
        for p in range(0, its.head_size, width(one)):
            stores(x, row * its.head_size + p, 0, loads(query, start + p, one), one)


@inlined
def do_block(
    batch, block, n, n_rows, its, heads, keyed, key, value, bias, mask, x, parts, first
):  # fmt: skip
    """Take one block of keys into the sums of all rows of a part."""
    one = blank(x, 1)
    spare = n_rows * its.head_size
    for row in range(n_rows):
        scores = spare + width(one) + row * (BLOCK + width(one)) + width(one)
        start = keyed[batch].key + block * its.key_row
        ahead = keyed[batch].value + block * its.value_row if row == 0 else -1
        multiply(block, start, n, its, key, x, row * its.head_size, scores, value, ahead, one)
        head = heads[batch * its.n_folded + row % its.n_folded]
        restrict(block, n, row // its.n_folded, its, head, bias, mask, x, scores)
        place = first + row * its.part_size
        shrink = weigh(n, its, x, scores, spare, parts, place, one)
        start = keyed[batch].value + block * its.value_row
        accumulate(start, n, shrink, its, value, x, scores, parts, place + 2, one)


@inlined
def multiply(block, start, n, its, key, x, query, scores, value, ahead, one):
    """Write the products of a block of keys with a query, as many keys at once as lanes.

    The last keys are done together with those before them, which may be those of another block
    (their products go to the spare vector before the scores, or are written twice), or, where
    there are none, with those behind them. The values that follow, from `ahead` on, are fetched
    meanwhile.
    """
    for done in range(0, n, width(one)):
        r = max(min(done, n - width(one)), -block)
        sums = square(one)
        for p in range(0, its.head_size, width(one)):
            numbers = loads(x, query + p, one)
            sums = dots(sums, numbers, key, start + r * its.key_row + p, its.key_row)
            if ahead >= 0 and p < its.value_size:
                for i in range(min(width(one), n - done)):
                    prefetch(value, ahead + (done + i) * its.value_row + p)
        stores(x, scores + r, 0, fold_rows(sums), one)


@inlined
def restrict(block, n, query, its, head, bias, mask, x, scores):
    """Take the products of a row to scores: scale, softcap, bias, masks; -inf behind the last."""
    start, stop = visible_keys(
        query, head.query_offset, its.left, its.right, head.n_keys, head.n_queries
    )
    for r in range(n, BLOCK):
        x[scores + r] = -np.inf
    if its.is_plain and its.has_mask == 0 and start <= block and block + n <= stop:
        return
    for r in range(n):
        score = x[scores + r]
        if its.is_plain == 0:
            score = score * its.scale
            if its.softcap > 0:
                score = math.tanh(score / its.softcap) * its.softcap
            if its.has_bias:
                more = bias[head.bias + query * its.bias_row + (block + r) * its.bias_column]
                score = -np.inf if more == -np.inf else score + more
        at = head.mask + query * its.mask_row + (block + r) * its.mask_column
        if its.has_mask and mask[at] == 0:
            score = -np.inf
        if block + r < start or block + r >= stop:
            score = -np.inf
        x[scores + r] = score


@inlined
def weigh(n, its, x, scores, spare, parts, place, one):
    """Turn the scores of a row into weights; return what its sums so far shrink by."""
    old = parts[place]
    largest = splat(old, one)
    for r in range(0, n, width(one)):
        largest = larger(loads(x, scores + r, one), largest)
    stores(x, spare, 0, largest, one)
    top = old
    for lane in range(width(one)):
        if x[spare + lane] > top:
            top = x[spare + lane]
    low = 0.0 if top == -np.inf else top
    exponent, least = splat(its.exponent, one), splat(its.least, one)
    stores(x, spare, 0, power(splat(old - low, one), exponent, least), one)
    shrink = x[spare]
    total = blank(x, 1)
    for r in range(0, n, width(one)):
        weights = power(add(loads(x, scores + r, one), splat(-low, one)), exponent, least)
        stores(x, scores + r, 0, weights, one)
        total = add(total, weights)
    stores(x, spare, 0, total, one)
    row_sum = parts[place + 1] * shrink
    for lane in range(width(one)):
        row_sum += x[spare + lane]
    parts[place] = top
    parts[place + 1] = row_sum
    return shrink


@inlined
def accumulate(start, n, shrink, its, value, x, weights, parts, output, one):
    """Add the values of a block, by their weights, to the output of a row.

    Eight vectors are summed together, enough to hide the latency of the adders.
    """
    done = 0
    eight = zeros(8, one)
    while done + 8 * width(one) <= its.value_size:
        sums = mul(tile(parts, output + done, 8, one), splat(shrink, one))
        for r in range(n):
            numbers = loads(value, start + r * its.value_row + done, eight)
            sums = rank1(sums, x, weights + r, 0, numbers)
        stores(parts, output + done, 0, sums, eight)
        done += 8 * width(one)
    while done < its.value_size:
        sums = mul(loads(parts, output + done, one), splat(shrink, one))
        for r in range(n):
            sums = rank1(
                sums, x, weights + r, 0, loads(value, start + r * its.value_row + done, one)
            )
        stores(parts, output + done, 0, sums, one)
        done += width(one)


@entry
def join(call, heads, parts, sinks, out, rows, x):
    """Join the parts of all rows in their order, take the sinks in, and write the results."""
    its, one = call[0], blank(x, 1)
    n_rows = its.n_folded * its.n_queries
    n_all = its.n_batches * n_rows
    for number in range(n_all):
        batch, row = number // n_rows, number % n_rows
        query, folded = row // its.n_folded, row % its.n_folded
        head = batch * its.n_folded + folded
        first = (batch * its.n_parts * n_rows + row) * its.part_size
        step = n_rows * its.part_size
        top = parts[first]
        for part in range(1, its.n_parts):
            if parts[first + part * step] > top:
                top = parts[first + part * step]
        low = 0.0 if top == -np.inf else top
        for e in range(0, its.value_size, width(one)):
            stores(x, e, 0, blank(x, 1), one)
        row_sum = 0.0
        for part in range(its.n_parts):
            place = first + part * step
            factor = math.exp2((parts[place] - low) * its.exponent)
            row_sum += parts[place + 1] * factor
            for e in range(0, its.value_size, width(one)):
                more = mul(loads(parts, place + 2 + e, one), splat(factor, one))
                stores(x, e, 0, add(loads(x, e, one), more), one)
        row_max = top * its.unit
        shift, total, factor = row_max, row_sum, 1.0
        if its.has_sinks:
            sink = sinks[head] * 1.0
            if sink > row_max or sink != sink:
                shift = sink
            if shift != -np.inf:
                factor = math.exp(row_max - shift)
                total = total * factor + math.exp(sink - shift)
        at = head * its.n_queries + query
        rows[at], rows[n_all + at], rows[2 * n_all + at] = row_max, shift, total
        if its.has_output:
            factor = 0.0 if row_sum == 0.0 else factor / total
            place = heads[head].out + query * its.out_row
            for e in range(0, its.value_size, width(one)):
                stores(out, place + e, 0, mul(loads(x, e, one), splat(factor, one)), one)
