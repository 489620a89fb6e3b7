"""What is observed of the scores and weights, tile by tile: `scaledot.statistics` in vectors.

The blocks of a tile go as in `scaledot.fused.forward`. Beside its sums, a tile keeps the moments of
`scaledot.statistics.Moments`, with the same formulas, row by row in lanes:

- the key at the running maximum is *lifted* out of its block before the exponentials are summed, so
  that rest, rest_2 and rest_3 are sums of the others and no subtraction is needed;
- products are summed about a number near them, the mean so far, and joined block by block.

Where weights are wanted one by one, a second phase makes them of the exponentials: kept from the
first where those of a tile fit the cache beside the keys, else made again. Each block is relative
to the maximum at its time, which one factor a row makes up for.
"""

import numpy as np

from scaledot.fused.blocks import gather, release
from scaledot.fused.forward import (
    FULL_TILE,
    add_values,
    clear,
    finish,
    forget_maxima,
    is_finite,
    multiply_keys,
    place_rows,
    restrict,
    span,
    tile_of,
)
from scaledot.fused.jit import entry, kernel
from scaledot.fused.sight import (
    above,
    absolute,
    at_least,
    bottom,
    displaced,
    div,
    fold_add,
    lanes_above,
    lowest,
    mark,
    same,
    scatter_add,
    seen,
    sink,
    steps,
    stream,
    tag,
    untag,
    weigh,
)
from scaledot.fused.simd import (
    add,
    anchor,
    blank,
    fetch_add,
    fma,
    fold_larger,
    fold_rows,
    larger,
    loads,
    mul,
    power,
    scatter,
    splat,
    square,
    stores,
    sub,
    tile,
    width,
)
from scaledot.fused.work import MOMENTS, OUT, QUERY, RECEIVED, ROW, ROWS, WEIGHTS

KEPT_TOPS = 8
"""Largest scores of each row that are in registers while a block is looked through."""
N_ROWS = len(ROWS)
N_MOMENTS = len(MOMENTS)


@entry
def run(
    counter, budget, call, heads, keyed, numbers, query, key, value, bias, mask, sinks, out, rows,
    tainted, weights, received, argmax, tops, top_keys, x, at, bounds, few, few_bias, few_mask,
    few_out, few_weights,
):  # fmt: skip
    """Do turns, fetched one by one from the counter, until none is left or the budget is spent.

    A turn is some tiles of a set of keys, which one thread does in their order, so that what keys
    receive is summed in one order for any number of threads.
    """
    its, one = call[0], blank(x, 1)
    n_vectors = (its.n_folded * its.n_queries + width(one) - 1) // width(one)
    n_tiles = (n_vectors + FULL_TILE - 1) // FULL_TILE
    a_turn = (n_tiles + its.n_turns - 1) // its.n_turns
    for _ in range(budget):
        item = fetch_add(counter, 0, 1)
        if item >= its.n_turns * its.n_batches:
            return
        batch, turn = item // its.n_turns, item % its.n_turns
        source = keyed[batch]
        for number in range(turn * a_turn, min((turn + 1) * a_turn, n_tiles)):
            first, n = tile_of(n_tiles - 1 - number, n_tiles, n_vectors)
            first *= width(one)
            lanes = n * width(one)
            place_rows(batch, first, its, heads, numbers, at, bounds, lanes)
            gather(  # a literal 0 would make a kernel of its own
                query, at, QUERY * its.full, 0 * its.full, its.query_column, its.head_size, few,
                x, its.at_queries, lanes, one,
            )  # fmt: skip
            low, high, all_from, all_to = span(its, bounds, lanes)
            if high <= low:
                low = high = 0
            # Blocks begin where vectors of weights do, the first one perhaps before key 0.
            edge = low if high == 0 else (low - its.lead) // width(one) * width(one) + its.lead
            clear(its, high <= edge, x, lanes, one)
            begin_rows(item, first, its, heads, numbers, x, at, lanes, one)
            n_blocks = max(1, (high - edge + its.block_keys - 1) // its.block_keys)
            step = max(1, (high - edge + n_blocks - 1) // n_blocks) + width(one) - 1
            step = step // width(one) * width(one)
            for phase in range(its.n_phases):
                for start in range(edge, high, step):
                    begin = max(start, 0)
                    n_keys = min(start + step, high) - begin
                    block = its.at_scores
                    if its.keeps:
                        block += (begin - edge) * lanes
                    note = its.at_block_max + (start - edge) // step * lanes
                    if phase == 0 or its.keeps == 0:
                        is_partial = begin < all_from or begin + n_keys > all_to
                        is_restricted = is_partial or its.has_mask != 0 or its.is_plain == 0
                        hides = is_restricted or n_keys % 4 != 0
                        keep_maxima(its.at_row_max, its.at_shrink, x, lanes, one)
                        multiply_keys(
                            source, begin, n_keys, its, key, value, its.value_row * (1 - phase), x,
                            few, block, its.at_row_max, lanes, one,
                        )  # fmt: skip
                        if phase == 0 and hides:
                            keep_products(n_keys, block, its, x, lanes, one)
                        if is_restricted:
                            forget_maxima(its, x, lanes, one)
                            restrict(
                                begin, n_keys, is_partial, its, bias, mask, x, block, at, bounds,
                                few_bias, few_mask, lanes, one,
                            )  # fmt: skip
                        pad(n_keys, block, its, x, lanes, one)
                        if phase == 0 and its.k > 0:
                            take_top(begin, n_keys, block, its, x, lanes, one)
                        if phase == 0 and its.has_moments:
                            measure(n_keys, block, hides, its, x, lanes, one)
                            lift(begin, block, its, x, at, argmax, lanes, one)
                        exponents(begin, n_keys, block, phase, its, x, lanes, one)
                        if phase == 0 and its.has_moments:
                            put_back(begin, block, its, x, lanes, one)
                        if its.n_phases == 2:
                            keep_maxima(its.at_row_max, note, x, lanes, one)
                    if phase == 0 and its.has_output:
                        add_values(
                            source, begin, n_keys, start > edge, its, value, x, few, block, lanes,
                            one,
                        )  # fmt: skip
                    if phase == 1:
                        find_gain(note, first, its, x, lanes, one)
                        if its.has_weights:
                            write(
                                begin, n_keys, block, its, x, at, weights, few_weights, lanes, one
                            )
                        if its.has_received:
                            receive(begin, n_keys, block, item, first, its, x, at, received,
                                    lanes, one)  # fmt: skip
                if phase == 0:
                    finish(its, sinks, rows, x, at, lanes)
                    finish_moments(its, rows, x, at, lanes)
                    write_top(its, x, at, tops, top_keys, lanes)
            if its.has_weights:
                write_zeros(0, max(edge, 0), its, at, weights, lanes, one)
                write_zeros(high, its.n_keys, its, at, weights, lanes, one)
            if its.has_output:
                if not is_finite(x, its.at_output, its.value_size * lanes, its.at_shrink, one):
                    tainted[batch * n_tiles + number] = 1
                    tainted[n_tiles * its.n_batches] = 1
                release(
                    x, its.at_output, its.at_factor, out, at, OUT * its.full, its.out_column,
                    its.value_size, few_out, lanes, one,
                )  # fmt: skip


# -------------------------------------------------------------------------------------- moments


@kernel
def begin_rows(item, first, its, heads, numbers, x, at, lanes, one):
    """Begin the moments of a tile, and note what else is known of its rows."""
    for place in range(its.at_grown, its.at_grown + 3 * its.full):
        x[place] = 0.0
    for place in range(its.at_rest, its.at_rest + N_MOMENTS * its.full):
        x[place] = 0.0
    for place in range(its.at_tops, its.at_tops + max(its.k, KEPT_TOPS) * its.full):
        x[place] = -np.inf
    last = its.n_folded * its.n_queries - 1
    for lane in range(lanes):
        row = min(first + lane, last)
        query, folded = row // its.n_folded, row % its.n_folded
        number = item // its.n_turns * its.n_folded + folded
        x[its.at_position + lane] = numbers[query] + heads[number].query_offset
        at[RECEIVED * its.full + lane] = (item * its.n_folded + folded) * its.n_keys


@kernel
def keep_maxima(start, into, x, lanes, one):
    """Copy the maxima of the rows."""
    for lane in range(0, lanes, width(one)):
        stores(x, into + lane, 0, loads(x, start + lane, one), one)


@kernel
def keep_products(n, block, its, x, lanes, one):
    """Copy the products of a block, which are about to become scores."""
    if its.has_moments:
        for place in range(0, n * lanes, width(one)):
            stores(x, its.at_products + place, 0, loads(x, block + place, one), one)


@kernel
def pad(n, block, its, x, lanes, one):
    """Add hidden keys to a block, so that it has a multiple of four."""
    for place in range(n * lanes, (n + 3) // 4 * 4 * lanes, width(one)):
        stores(x, block + place, 0, splat(-np.inf, one), one)
        stores(x, its.at_products + place, 0, splat(0.0, one), one)


@kernel
def measure(n, block, hides, its, x, lanes, one):
    """Take the products of a block into their moments; note where a new maximum stands.

    Four keys go together, each with sums of its own, so that no sum waits for the one before.
    """
    products = its.at_products if hides else block
    scale, zero, unit = splat(its.scale, one), splat(0.0, one), splat(1.0, one)
    four = blank(x, 4)
    for lane in range(0, lanes, width(one)):
        top, n_before = loads(x, its.at_row_max + lane, one), loads(x, its.at_count + lane, one)
        pivot, offset = loads(x, its.at_pivot + lane, one), loads(x, its.at_offset + lane, one)
        if lanes_above(unit, n_before) != 0:
            highest = splat(-np.inf, one)
            for place in range(lane, lane + n * lanes, lanes):
                product = mul(loads(x, products + place, one), scale)
                product = seen(product, loads(x, block + place, one), splat(-np.inf, one))
                highest = larger(product, highest)
            pivot = same(n_before, zero, anchor(highest), pivot)
        less = sub(zero, pivot)
        total = squares = peaks = four
        sums, sums_2, n_seen = zero, zero, zero
        peak = loads(x, its.at_peak + lane, one)
        one_by_one = hides
        if not hides:
            for place in range(block + lane, block + lane + n * lanes, 4 * lanes):
                product = tile(x, place, lanes, four, one)
                away = fma(product, scale, less)
                total, squares = add(total, away), fma(away, away, squares)
                peaks = larger(absolute(product), peaks)
            # A product of -inf is a score of -inf, which is masked.
            is_infinite = same(fold_larger(peaks, zero), splat(np.inf, one), unit, zero)
            one_by_one = lanes_above(is_infinite, zero) != 0
        if one_by_one:
            for place in range(lane, lane + n * lanes, lanes):
                product, score = loads(x, products + place, one), loads(x, block + place, one)
                away = seen(fma(product, scale, less), score, zero)
                sums, sums_2 = add(sums, away), fma(away, away, sums_2)
                peak = larger(seen(absolute(product), score, zero), peak)
                n_seen = add(n_seen, seen(unit, score, zero))
        else:
            sums, sums_2 = fold_add(total, zero), fold_add(squares, zero)
            peak, n_seen = fold_larger(peaks, peak), splat(1.0 * n, one)
        n_all = add(n_before, n_seen)
        away = div(sums, larger(n_seen, unit))
        infinity = splat(np.inf, one)
        deviation = larger(zero, sub(sums_2, mul(sums, away)))
        deviation = same(sums_2, infinity, infinity, deviation)  # not inf - inf
        share, away = div(n_seen, larger(n_all, unit)), sub(away, offset)
        deviation = fma(mul(away, mul(n_before, share)), away, deviation)
        deviation = add(loads(x, its.at_squares + lane, one), deviation)
        stores(x, its.at_squares + lane, 0, deviation, one)
        # The pivot follows the mean; what its rounding leaves stays in the offset.
        offset = fma(away, share, offset)
        mean = seen(add(pivot, offset), pivot, pivot)  # once -inf, always -inf
        offset = seen(sub(offset, sub(mean, pivot)), mean, zero)
        stores(x, its.at_pivot + lane, 0, mean, one)
        stores(x, its.at_offset + lane, 0, offset, one)
        stores(x, its.at_count + lane, 0, n_all, one)
        stores(x, its.at_peak + lane, 0, peak, one)
        old = loads(x, its.at_shrink + lane, one)
        if lanes_above(top, old) != 0:
            find(n, block, its, x, lane, lanes, one)
        stores(x, its.at_grown + lane, 0, same(top, old, zero, unit), one)
        stores(x, its.at_gap + lane, 0, seen(sub(top, old), old, zero), one)


@kernel
def find(n, block, its, x, lane, lanes, one):
    """Note where in a block the maxima of a vector of rows stand: of equal scores the first."""
    top, four = loads(x, its.at_row_max + lane, one), blank(x, 4)
    # Keys are numbered downwards from 0, so that the first one is the largest number.
    found, keys = splat(-1e9, four), sub(four, steps(four))
    for place in range(block + lane, block + lane + n * lanes, 4 * lanes):
        score = tile(x, place, lanes, four, one)
        found = larger(same(score, top, keys, found), found)
        keys = sub(keys, splat(4.0, one))
    found = fold_larger(found, splat(-1e9, one))
    stores(x, its.at_candidate + lane, 0, sub(splat(0.0, one), found), one)


@kernel
def lift(begin, block, its, x, at, argmax, lanes, one):
    """Take each new maximum out of its block: the sums of the block are those of the others."""
    for first in range(0, lanes, width(one)):
        grown = lanes_above(loads(x, its.at_grown + first, one), splat(0.0, one))
        while grown != 0:
            lane = first + lowest(grown)
            grown &= grown - 1
            r = int(x[its.at_candidate + lane])
            argmax[at[ROW * its.full + lane]] = begin + r
            x[block + r * lanes + lane] = -np.inf


@kernel
def put_back(begin, block, its, x, lanes, one):
    """Put the maxima that were lifted back, as the exponential of 0."""
    for first in range(0, lanes, width(one)):
        grown = lanes_above(loads(x, its.at_grown + first, one), splat(0.0, one))
        while grown != 0:
            lane = first + lowest(grown)
            grown &= grown - 1
            r = int(x[its.at_candidate + lane])
            x[block + r * lanes + lane] = 1.0
            x[its.at_distance + lane] += abs(x[its.at_position + lane] - (begin + r))


@kernel
def exponents(begin, n, block, phase, its, x, lanes, one):
    """Turn the scores of a block into exponentials, relative to the maximum so far; sum them."""
    exponent, least, zero = splat(its.exponent, one), splat(its.least, one), splat(0.0, one)
    two = blank(x, 2)
    for lane in range(0, lanes, width(one)):
        low = anchor(loads(x, its.at_row_max + lane, one))
        shrink = power(sub(loads(x, its.at_shrink + lane, one), low), exponent, least)
        stores(x, its.at_shrink + lane, 0, shrink, one)
        position = sub(loads(x, its.at_position + lane, one), splat(1.0 * begin, one))
        total = rest_2 = rest_3 = surprise = distance = two
        keys = steps(two)
        for place in range(block + lane, block + lane + n * lanes, 2 * lanes):
            score = tile(x, place, lanes, two, one)
            fall = sub(score, low)
            weight = power(fall, exponent, least)
            total = add(total, weight)
            if its.has_moments:
                weight_2 = mul(weight, weight)
                rest_2 = add(rest_2, weight_2)
                rest_3 = fma(weight_2, weight, rest_3)
                surprise = fma(weight, at_least(fall, least), surprise)
            if its.has_distance:
                away = absolute(sub(keys, position))
                distance = fma(weight, away, distance)
                keys = add(keys, splat(2.0, one))
            if its.n_phases == 2:
                weight = mark(weight, score)
            stores(x, place, lanes, weight, one)
        if phase == 1:
            continue
        grown = loads(x, its.at_grown + lane, one)
        before = loads(x, its.at_row_sum + lane, one)
        # low - low: a row that sees +inf has no sum, though its maximum was lifted out.
        total = fold_add(total, sub(low, low))
        stores(x, its.at_row_sum + lane, 0, add(fma(before, shrink, total), grown), one)
        if its.has_moments:
            before = add(loads(x, its.at_rest + lane, one), grown)
            fallen = loads(x, its.at_surprise + lane, one)
            fallen = mul(fma(loads(x, its.at_gap + lane, one), before, fallen), shrink)
            stores(x, its.at_rest + lane, 0, fma(before, shrink, total), one)
            stores(x, its.at_surprise + lane, 0, sub(fallen, fold_add(surprise, zero)), one)
            shrink_2 = mul(shrink, shrink)
            before = add(loads(x, its.at_rest_2 + lane, one), grown)
            rest_2 = fma(before, shrink_2, fold_add(rest_2, zero))
            stores(x, its.at_rest_2 + lane, 0, rest_2, one)
            before = add(loads(x, its.at_rest_3 + lane, one), grown)
            rest_3 = fma(before, mul(shrink_2, shrink), fold_add(rest_3, zero))
            stores(x, its.at_rest_3 + lane, 0, rest_3, one)
            before = loads(x, its.at_distance + lane, one)
            distance = fma(before, shrink, fold_add(distance, zero))
            stores(x, its.at_distance + lane, 0, distance, one)


@kernel
def finish_moments(its, rows, x, at, lanes):
    """Write the moments of the rows; the maximum of a row that sees a NaN is NaN."""
    if its.has_moments == 0 and its.k == 0:
        return
    n_rows = its.n_batches * its.n_folded * its.n_queries
    for lane in range(lanes):
        row = at[ROW * its.full + lane]
        row_sum = x[its.at_row_sum + lane]
        if row_sum != row_sum:
            rows[row] = np.nan
        if its.has_moments:
            x[its.at_surprise + lane] *= its.unit
            x[its.at_peak + lane] *= abs(its.scale)
            for i in range(N_MOMENTS):
                rows[(N_ROWS + i) * n_rows + row] = x[its.at_rest + i * its.full + lane]


# -------------------------------------------------------------------------------- largest weights


@kernel
def take_top(begin, n, block, its, x, lanes, one):
    """Take the scores of a block that are among the largest of their rows.

    The lists are columns of lanes, descending. Most vectors of scores hold none that is large
    enough; one that does sinks into the lists of all its rows at once, behind scores that are
    equal. The first eight of the lists are in registers meanwhile.
    """
    eight, four = blank(x, KEPT_TOPS), blank(x, 4)
    for lane in range(0, lanes, width(one)):
        held = tile(x, its.at_tops + lane, its.full, eight, one)
        held_keys = tile(x, its.at_tags + lane, its.full, eight, one)
        least = its.at_tops + (its.k - 1) * its.full + lane
        for start in range(0, n, 4):
            scores = tile(x, block + start * lanes + lane, lanes, four, one)
            highest = fold_larger(scores, splat(-np.inf, one))
            lowest_held = bottom(held) if its.k <= KEPT_TOPS else loads(x, least, one)
            if lanes_above(highest, lowest_held) == 0:
                continue
            for r in range(start, start + 4):
                score, key = loads(x, block + r * lanes + lane, one), tag(begin + r, one)
                if its.k > KEPT_TOPS:
                    take_more(score, key, held, held_keys, lane, its, x, one)
                held_keys = sink(held, held_keys, score, key)
                held = sink(held, held, score, score)
        stores(x, its.at_tops + lane, its.full, held, one)
        stores(x, its.at_tags + lane, its.full, held_keys, one)


@kernel
def take_more(score, key, held, held_keys, lane, its, x, one):
    """Let what a score displaces from the first of the lists move into their rest, or itself."""
    falling = displaced(held, held, score, score)
    falling_key = displaced(held, held_keys, score, key)
    for i in range(KEPT_TOPS * its.full, its.k * its.full, its.full):
        place, place_key = its.at_tops + i + lane, its.at_tags + i + lane
        other, other_key = loads(x, place, one), loads(x, place_key, one)
        stores(x, place, 0, above(score, other, falling, other), one)
        stores(x, place_key, 0, above(score, other, falling_key, other_key), one)
        falling = above(score, other, other, falling)
        falling_key = above(score, other, other_key, falling_key)


@kernel
def write_top(its, x, at, tops, top_keys, lanes):
    """Write the lists of the rows."""
    for lane in range(lanes):
        first = at[ROW * its.full + lane] * its.k
        for i in range(its.k):
            tops[first + i] = x[its.at_tops + i * its.full + lane]
            top_keys[first + i] = untag(x, its.at_tags + i * its.full + lane)


# -------------------------------------------------------------------------------------- weights


@kernel
def find_gain(note, first, its, x, lanes, one):
    """Find what makes weights of a block's exponentials; 0 in lanes that repeat the last row.

    Their own follows behind it, since their rows are written too.
    """
    exponent, least = splat(its.exponent, one), splat(its.least, one)
    for lane in range(0, lanes, width(one)):
        low = anchor(loads(x, its.at_row_max + lane, one))
        fall = power(sub(loads(x, note + lane, one), low), exponent, least)
        gain = mul(fall, loads(x, its.at_factor + lane, one))
        stores(x, its.at_gain + lane, 0, gain, one)
        stores(x, its.at_gain + its.full + lane, 0, gain, one)
    for lane in range(its.n_folded * its.n_queries - first, lanes):
        x[its.at_gain + lane] = 0.0


@kernel
def write(begin, n, block, its, x, at, weights, few, lanes, one):
    """Write the weights of a block to their rows."""
    first, last = whole_lines(begin, begin + n, its, one)
    gains = its.at_gain + its.full
    for lane in range(0, lanes, width(one)):
        gain = loads(x, gains + lane, one)
        for p in range(first - begin, last - begin, width(one)):
            vectors = tile(x, block + p * lanes + lane, lanes, square(one), one)
            vectors = weigh(vectors, gain)
            if its.streams:
                stream(weights, at, WEIGHTS * its.full + lane, begin + p, vectors)
            else:
                scatter(weights, at, WEIGHTS * its.full + lane, begin + p, vectors)
    for p in range(n):
        if first <= begin + p < last:
            continue
        for lane in range(0, lanes, width(one)):
            exponentials = loads(x, block + p * lanes + lane, one)
            stores(few, lane, 0, weigh(exponentials, loads(x, gains + lane, one)), one)
        for lane in range(lanes):
            place = at[WEIGHTS * its.full + lane] + (begin + p) * its.weights_column
            weights[place] = few[lane]


@kernel
def write_zeros(start, stop, its, at, weights, lanes, one):
    """Write weights of 0 for keys that no row of a tile sees."""
    first, last = whole_lines(start, stop, its, one)
    nothing = square(one)
    for lane in range(0, lanes, width(one)):
        for p in range(first, last, width(one)):
            if its.streams:
                stream(weights, at, WEIGHTS * its.full + lane, p, nothing)
            else:
                scatter(weights, at, WEIGHTS * its.full + lane, p, nothing)
    for lane in range(lanes):
        place = at[WEIGHTS * its.full + lane]
        for p in range(start, first):
            weights[place + p * its.weights_column] = 0
        for p in range(last, stop):
            weights[place + p * its.weights_column] = 0


@kernel
def whole_lines(start, stop, its, one):
    """Return the part of some keys whose weights are whole lines of memory: none in odd strides."""
    first = min(start + (its.lead - start) % width(one), stop)
    if its.weights_column != 1:
        return first, first
    return first, first + (stop - first) // width(one) * width(one)


@kernel
def receive(begin, n, block, item, first, its, x, at, received, lanes, one):
    """Add the weights of a block to what its keys receive."""
    whole = n // width(one) * width(one)
    for p in range(0, whole, width(one)):
        place = item * its.n_keys + begin + p
        if its.n_folded == 1:
            total = loads(received, place, one)
            for lane in range(0, lanes, width(one)):
                vectors = tile(x, block + p * lanes + lane, lanes, square(one), one)
                vectors = weigh(vectors, loads(x, its.at_gain + lane, one))
                total = add(total, fold_rows(vectors))
            stores(received, place, 0, total, one)
        else:
            for lane in range(0, lanes, width(one)):
                vectors = tile(x, block + p * lanes + lane, lanes, square(one), one)
                vectors = weigh(vectors, loads(x, its.at_gain + lane, one))
                scatter_add(received, at, RECEIVED * its.full + lane, begin + p, vectors)
    for p in range(whole, n):
        for lane in range(0, lanes, width(one)):
            exponentials = loads(x, block + p * lanes + lane, one)
            stores(
                x, its.at_products + lane, 0,
                weigh(exponentials, loads(x, its.at_gain + lane, one)), one,
            )  # fmt: skip
        for lane in range(lanes):
            place = at[RECEIVED * its.full + lane] + begin + p
            received[place] += x[its.at_products + lane]
