"""Moving rows and blocks between the memory of callers and the lanes of a tile.

Where the numbers of a row lie side by side they go by vectors, as many rows at a time as a vector
has lanes, through a transposition; what is left over, or lies otherwise, goes number by number
through `few`, a row of lanes in the type of the array, so that words do the widening and rounding
everywhere. `one` shows a single vector.
"""

from scaledot.fused.jit import kernel
from scaledot.fused.simd import (
    add_bias,
    fold_larger,
    larger,
    loads,
    mul,
    scatter,
    splat,
    square,
    stores,
    tile,
    transposed,
    width,
)


@kernel
def gather(a, at, begin, start, step, n, few, x, into, lanes, one):
    """Write into[p][lane] = a[at[begin + lane] + start + p · step] for p < n."""
    whole = n // width(one) * width(one) if step == 1 else 0
    for lane in range(0, lanes, width(one)):
        for p in range(0, whole, width(one)):
            vectors = transposed(a, at, begin + lane, start + p, one)
            stores(x, into + p * lanes + lane, lanes, vectors, one)
    for p in range(whole, n):
        for lane in range(lanes):
            few[lane] = a[at[begin + lane] + start + p * step]
        for lane in range(0, lanes, width(one)):
            stores(x, into + p * lanes + lane, 0, loads(few, lane, one), one)


@kernel
def add_block(a, at, begin, start, step, n, few, x, into, scale, tops, lanes, one):
    """Write into[p][lane] = scale · into[p][lane] + a[at[begin + lane] + start + p · step].

    For p < n; -inf where `a` is. Raises `tops` to the largest of each lane.
    """
    whole = n // width(one) * width(one) if step == 1 else 0
    factor = splat(scale, one)
    for lane in range(0, lanes, width(one)):
        top = loads(x, tops + lane, one)
        for p in range(0, whole, width(one)):
            more = transposed(a, at, begin + lane, start + p, one)
            place = into + p * lanes + lane
            sums = add_bias(mul(tile(x, place, lanes, more, one), factor), more)
            stores(x, place, lanes, sums, one)
            top = fold_larger(sums, top)
        stores(x, tops + lane, 0, top, one)
    for p in range(whole, n):
        for lane in range(lanes):
            few[lane] = a[at[begin + lane] + start + p * step]
        for lane in range(0, lanes, width(one)):
            place = into + p * lanes + lane
            sums = add_bias(mul(loads(x, place, one), factor), loads(few, lane, one))
            stores(x, place, 0, sums, one)
            stores(x, tops + lane, 0, larger(sums, loads(x, tops + lane, one)), one)


@kernel
def release(x, start, factor, a, at, begin, step, n, few, lanes, one):
    """Write a[at[begin + lane] + p · step] = x[start + p · lanes + lane] · x[factor + lane]."""
    whole = n // width(one) * width(one) if step == 1 else 0
    for lane in range(0, lanes, width(one)):
        for p in range(0, whole, width(one)):
            vectors = tile(x, start + p * lanes + lane, lanes, square(one), one)
            scatter(a, at, begin + lane, p, mul(vectors, loads(x, factor + lane, one)))
    for p in range(whole, n):
        for lane in range(0, lanes, width(one)):
            numbers = loads(x, start + p * lanes + lane, one)
            stores(few, lane, 0, mul(numbers, loads(x, factor + lane, one)), one)
        for lane in range(lanes):
            a[at[begin + lane] + p * step] = few[lane]


@kernel
def widen(a, start, row, step, n_rows, n, few, x, into, one):
    """Write into[r][p] = a[start + r · row + p · step] in the type of the sums.

    Rows are written in order and may run over into the next one, the last into spare room.
    """
    for r in range(n_rows):
        for p in range(0, n, width(one)):
            if step == 1 and p + width(one) <= n:
                numbers = loads(a, start + r * row + p, one)
            else:
                for j in range(min(width(one), n - p)):
                    few[j] = a[start + r * row + (p + j) * step]
                numbers = loads(few, 0, one)
            stores(x, into + r * n + p, 0, numbers, one)
