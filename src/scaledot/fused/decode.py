"""Few queries over many keys, as when a model writes: lanes along the head size.

There is next to nothing to compute for each key, so what counts is that keys and values are read
once, in order, by all threads. The keys of a set are cut into parts, as many for any number of
threads; each part leaves, for each query row, its maximum, its sum and its output before division,
and the parts are joined in their order. Rows that share their keys read them together, in bundles
of four; a single row is a bundle of its own. With `rows` a pack of as many vectors as a bundle has
rows, one compiled kernel serves both.

    a part = [maxima of the rows, sums of the rows, output [rows][E]]

Values that are not finite are left to `scaledot.fused.forward`, which contains them: a part that
meets them says so, and the call is done again there.
"""

import math

import numpy as np

from scaledot.fused.forward import visible_keys
from scaledot.fused.jit import entry, inlined, kernel
from scaledot.fused.simd import (
    add,
    anchor,
    blank,
    bundle,
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
    sub,
    tile,
    width,
    zeros,
)

MOST_ROWS = 8
"""Query rows that share their keys, up to which this is faster than tiles (measured)."""
LEAST_KEYS = 64
PART_KEYS = 1024
"""Keys of a part, at least: 1 MiB of float32 keys and values of size 128."""
MOST_PARTS = 64
BLOCK = 512
"""Keys of a block: long enough that memory is read in long runs (128 and less are slower)."""
AHEAD = 64
"""Keys that are asked for before they are read, by bundles, which compute for too long to wait for
each, and by single rows where keys and values are of more than `ASKED_BYTES`."""
ASKED_BYTES = 2**27
"""A single row that asks ahead is faster where keys and values come from memory, by 10 % at 256
MiB, and slower where they lie in a cache, by 4 % at 64 MiB in one of 300 MiB (measured)."""


@entry
def run(
    counter, budget, call, heads, keyed, numbers, query, key, value, bias, mask, parts, trouble, x
):  # fmt: skip
    """Do parts, fetched one by one from the counter, until none is left or the budget is spent."""
    its, one = call[0], blank(x, 1)
    for _ in range(budget):
        item = fetch_add(counter, 0, 1)
        if item >= its.n_batches * its.n_parts:
            return
        do_part(
            item, its, heads, keyed, numbers, query, key, value, bias, mask, parts, trouble, x, one
        )


@inlined
def do_part(
    item, its, heads, keyed, numbers, query, key, value, bias, mask, parts, trouble, x, one
):
    """Take one part of the keys of a set into the sums of all its rows, bundle by bundle.

    `x` is scratch of floats: the queries [rows][D], then for one bundle two spare vectors, a spare
    vector and the scores [BLOCK][bundle].
    """
    batch = item // its.n_parts
    step = (its.n_keys + its.n_parts - 1) // its.n_parts
    begin = item % its.n_parts * step
    begin, end = seen(batch, begin, min(begin + step, its.n_keys), its, heads, numbers)
    take_queries(batch, its, heads, query, x, one)
    first = item * its.part_size
    for place in range(first, first + its.part_size):
        parts[place] = 0.0
    for row in range(its.n_bundles * its.bundle):
        parts[first + row] = -np.inf
    for block in range(begin, end, BLOCK):
        n = min(BLOCK, end - block)
        for number in range(its.n_bundles):
            do_block(
                batch, block, n, number * its.bundle, its, heads, keyed, numbers, key, value, bias,
                mask, x, parts, first, one,
            )  # fmt: skip
    for row in range(its.n_folded * its.n_queries):
        sums = first + its.n_bundles * its.bundle
        finite = parts[sums + row] * 0.0
        output = sums + its.n_bundles * its.bundle + row * its.value_size
        for e in range(its.value_size):
            finite += parts[output + e] * 0.0
        if finite != 0.0:
            trouble[0] = 1


@inlined
def seen(batch, begin, end, its, heads, numbers):
    """Return those of some keys that some row may see."""
    low, high = end, begin
    for row in range(its.n_folded * its.n_queries):
        head = heads[batch * its.n_folded + row % its.n_folded]
        start, stop = visible_keys(
            numbers[row // its.n_folded], head.query_offset, its.left, its.right, head.n_keys,
            head.n_queries,
        )  # fmt: skip
        if stop > start:
            low, high = min(low, max(start, begin)), max(high, min(stop, end))
    return low, high


@inlined
def take_queries(batch, its, heads, query, x, one):
    """Copy the query rows of a set of keys to the scratch, zeros where a bundle has no row."""
    zero = splat(0.0, one)
    for row in range(its.n_bundles * its.bundle):
        is_row = row < its.n_folded * its.n_queries
        head = heads[batch * its.n_folded + row % its.n_folded]
        start = head.query + row // its.n_folded * its.query_row
        for p in range(0, its.head_size, width(one)):
            numbers = loads(query, start + p, one) if is_row else zero
            stores(x, row * its.head_size + p, 0, numbers, one)


@inlined
def do_block(
    batch, block, n, row, its, heads, keyed, numbers, key, value, bias, mask, x, parts, first, one
):  # fmt: skip
    """Take one block of keys into the sums of the rows of a bundle, from `row` on."""
    n_padded = its.n_bundles * its.bundle
    spare = n_padded * its.head_size
    scores = spare + 3 * width(one)
    source = keyed[batch]
    start = source.key + block * its.key_row
    if its.bundle == 1:
        multiply(block, start, n, its, key, x, row * its.head_size, scores, one, one)
    else:
        multiply(block, start, n, its, key, x, row * its.head_size, scores, bundle(one), one)
    for member in range(min(its.bundle, its.n_folded * its.n_queries - row)):
        head = heads[batch * its.n_folded + (row + member) % its.n_folded]
        query = (row + member) // its.n_folded
        restrict(block, n, query, numbers[query], member, its, head, bias, mask, x, scores)
    output = first + 2 * n_padded + row * its.value_size
    weigh(n, its, x, scores, spare, parts, first + row, first + n_padded + row, output, one)
    start = source.value + block * its.value_row
    if its.bundle == 1:
        accumulate(start, n, its, value, x, scores, parts, output, one, zeros(8, one), one)
    else:
        rows, four = bundle(one), zeros(4, one)
        accumulate(start, n, its, value, x, scores, parts, output, rows, four, one)


@kernel
def multiply(block, start, n, its, key, x, query, scores, rows, one):
    """Write the products of a block of keys with a bundle of queries; -inf behind the last.

    A vector holds the products of some keys with all queries of the bundle. The last keys are done
    together with those before them, which may be those of another block (their products go to the
    spare vector before the scores, or are written twice), or, where there are none, with those
    behind them.
    """
    step, asks = width(one) // its.bundle, its.asks
    for done in range(0, n, step):
        r = max(min(done, n - step), -block)
        sums = square(one)
        for p in range(0, its.head_size, width(one)):
            numbers = tile(x, query + p, its.head_size, rows, one)
            sums = dots(sums, numbers, key, start + r * its.key_row + p, its.key_row)
            if asks:
                for i in range(step):
                    prefetch(key, start + (r + i + AHEAD) * its.key_row + p)
        stores(x, scores + r * its.bundle, 0, fold_rows(sums), one)
    for r in range(n, (n + step - 1) // step * step):
        for member in range(its.bundle):
            x[scores + r * its.bundle + member] = -np.inf


@inlined
def restrict(block, n, query, number, member, its, head, bias, mask, x, scores):
    """Take the products of a row to scores: scale, softcap, bias, masks."""
    start, stop = visible_keys(
        number, head.query_offset, its.left, its.right, head.n_keys, head.n_queries
    )
    if its.is_plain and its.has_mask == 0 and start <= block and block + n <= stop:
        return
    for r in range(n):
        score = x[scores + r * its.bundle + member]
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
        x[scores + r * its.bundle + member] = score


@inlined
def weigh(n, its, x, scores, spare, parts, maxima, sums, output, one):
    """Turn the scores of a bundle into weights; shrink its sums and output so far to match."""
    lanes, end = width(one), scores + n * its.bundle
    shrinks = spare + lanes
    for lane in range(lanes):
        x[spare + lane] = parts[maxima + lane % its.bundle]
    old = loads(x, spare, one)
    largest = old
    for place in range(scores, end, lanes):
        largest = larger(loads(x, place, one), largest)
    stores(x, spare, 0, largest, one)
    for row in range(its.bundle):
        top = x[spare + row]
        for lane in range(row, lanes, its.bundle):
            if x[spare + lane] > top:
                top = x[spare + lane]
        parts[maxima + row] = top
        for lane in range(row, lanes, its.bundle):
            x[spare + lane] = top
    low = anchor(loads(x, spare, one))
    exponent, least = splat(its.exponent, one), splat(its.least, one)
    stores(x, shrinks, 0, power(sub(old, low), exponent, least), one)
    total = splat(0.0, one)
    for place in range(scores, end, lanes):
        weights = power(sub(loads(x, place, one), low), exponent, least)
        stores(x, place, 0, weights, one)
        total = add(total, weights)
    stores(x, spare, 0, total, one)
    for row in range(its.bundle):
        shrink = x[shrinks + row]
        parts[sums + row] *= shrink
        for lane in range(row, lanes, its.bundle):
            parts[sums + row] += x[spare + lane]
        if shrink != 1.0:
            for e in range(0, its.value_size, lanes):
                place = output + row * its.value_size + e
                stores(parts, place, 0, mul(loads(parts, place, one), splat(shrink, one)), one)


@inlined
def accumulate(start, n, its, value, x, weights, parts, output, rows, many, one):
    """Add the values of a block, by their weights, to the output of a bundle.

    As many columns go together as registers hold sums of, eight vectors of a single row, four of a
    bundle: the fewer times a row of values is come back to, the better memory is read.
    """
    done = 0 * n  # a literal 0 would make a kernel of its own
    done = add_columns(done, start, n, its, value, x, weights, parts, output, rows, many)
    four = zeros(4, one)  # enough to hide the latency of the adders
    done = add_columns(done, start, n, its, value, x, weights, parts, output, rows, four)
    add_columns(done, start, n, its, value, x, weights, parts, output, rows, one)


@kernel
def add_columns(done, start, n, its, value, x, weights, parts, output, rows, like):
    """Do columns from the done ones on, as many at a time as `like` has; return how many are."""
    asks, line = its.asks, width(blank(x, 1))
    while done + width(like) <= its.value_size:
        sums = tile(parts, output + done, its.value_size, rows, like)
        for r in range(n):
            place = start + r * its.value_row + done
            if asks:
                for ahead in range(0, width(like), line):
                    prefetch(value, place + AHEAD * its.value_row + ahead)
            numbers = loads(value, place, like)
            sums = rank1(sums, x, weights + r * its.bundle, 1, numbers)
        stores(parts, output + done, its.value_size, sums, like)
        done += width(like)
    return done


@entry
def join(call, heads, parts, sinks, out, rows, x):
    """Join the parts of all rows in their order, take the sinks in, and write the results."""
    its, one = call[0], blank(x, 1)
    n_rows, n_padded = its.n_folded * its.n_queries, its.n_bundles * its.bundle
    n_all = its.n_batches * n_rows
    for number in range(n_all):
        batch, row = number // n_rows, number % n_rows
        query, folded = row // its.n_folded, row % its.n_folded
        head = batch * its.n_folded + folded
        first = batch * its.n_parts * its.part_size
        top = parts[first + row]
        for part in range(1, its.n_parts):
            top = max(top, parts[first + part * its.part_size + row])
        low = 0.0 if top == -np.inf else top
        for e in range(0, its.value_size, width(one)):
            stores(x, e, 0, blank(x, 1), one)
        row_sum = 0.0
        for part in range(its.n_parts):
            place = first + part * its.part_size
            factor = math.exp2((parts[place + row] - low) * its.exponent)
            row_sum += parts[place + n_padded + row] * factor
            place += 2 * n_padded + row * its.value_size
            for e in range(0, its.value_size, width(one)):
                more = mul(loads(parts, place + e, one), splat(factor, one))
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
        if its.has_rows:
            at = head * its.n_queries + query
            rows[at], rows[n_all + at], rows[2 * n_all + at] = row_max, shift, total
        if its.has_output:
            factor = 0.0 if row_sum == 0.0 else factor / total
            place = heads[head].out + query * its.out_row
            for e in range(0, its.value_size, width(one)):
                stores(out, place + e, 0, mul(loads(x, e, one), splat(factor, one)), one)
