"""Moving rows and blocks between the memory of callers and the lanes of a tile.

Where the numbers of a row lie side by side they go by vectors, as many rows at a time as a vector
has lanes, through a transposition; what is left over, or lies otherwise, goes number by number
through `few`, a row of lanes in the type of the array, so that words do the widening and rounding
everywhere. `one` shows a single vector.
"""

from scaledot.fused.jit import kernel
from scaledot.fused.simd import loads, mul, scatter, square, stores, tile, transposed, width


@kernel
def gather(a, at, begin, start, step, n, few, x, into, lanes, one):
    """Write into[p][lane] = a[at[begin + lane] + start + p · step] for p < n."""
    done = 0
    if step == 1:
        while done + width(one) <= n:
            for lane in range(0, lanes, width(one)):
                vectors = transposed(a, at, begin + lane, start + done, one)
                stores(x, into + done * lanes + lane, lanes, vectors, one)
            done += width(one)
    for p in range(done, n):
        for lane in range(lanes):
            few[lane] = a[at[begin + lane] + start + p * step]
        for lane in range(0, lanes, width(one)):
            stores(x, into + p * lanes + lane, 0, loads(few, lane, one), one)


@kernel
def spread(a, start, step, n, few, x, into, lanes, one):
    """Write into[p][lane] = a[start + p · step] for p < n: one row for all lanes."""
    for p in range(n):
        for lane in range(width(one)):
            few[lane] = a[start + p * step]
        number = loads(few, 0, one)
        for lane in range(0, lanes, width(one)):
            stores(x, into + p * lanes + lane, 0, number, one)


@kernel
def release(x, start, factor, a, at, begin, step, n, few, lanes, one):
    """Write a[at[begin + lane] + p · step] = x[start + p · lanes + lane] · x[factor + lane]."""
    done = 0
    if step == 1:
        while done + width(one) <= n:
            for lane in range(0, lanes, width(one)):
                vectors = tile(x, start + done * lanes + lane, lanes, square(one), one)
                scatter(a, at, begin + lane, done, mul(vectors, loads(x, factor + lane, one)))
            done += width(one)
    for p in range(done, n):
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
