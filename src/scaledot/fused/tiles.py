"""The products of tiles: queries in lanes, keys and values read as they lie.

Everything is one product, C[r, lanes] (+)= Σ_p A[r, p] · B[p, lanes]: A is read number by number in
whatever strides it has and multiplied into whole rows of B. So keys and values are never packed or
transposed, and the softmax never adds across lanes.

    scores of a block    Sᵀ = K Qᵀ       A = keys,     B = Qᵀ [D][lanes]
    output of a block    Oᵀ += Vᵀ P      A = values,   B = weights [keys][lanes]

Eight rows by three vectors hold 24 sums in registers, beside 3 vectors of B and one of A: what the
32 registers of AVX-512 take, and measured to run at the peak of the multiply-adders. B and C lie in
the thread's scratch `x`; `like` shows how many vectors a row of them has.

Keys and values come from memory or a cache far away. The product with the keys asks for what is
read next, a line or two with every step; asked for in one go before each eight rows they bring less
than half as much (measured).
"""

from scaledot.fused.jit import kernel
from scaledot.fused.simd import (
    blank,
    fma,
    fold_larger,
    loads,
    prefetch,
    rank1,
    stores,
    tile,
    width,
    zeros,
)


@kernel
def multiply(a, start, row, column, n_rows, x, b, n, c, tops, soon, like):
    """Write C[r] = Σ_p a[start + r·row + p·column] · B[p]; raise `tops` to the largest.

    `soon` are keys and values, each with a start and a row: row r of them is read soon after row r
    of `a`. As many of their columns are asked for as that has.
    """
    key, key_start, key_row, value, value_start, value_row = soon
    lanes = width(like)
    largest = loads(x, tops, like)
    r = 0
    while r + 8 <= n_rows:
        sums = zeros(8, like)
        place = start + r * row
        for part in range(8):  # asks for the row r + part, 8 numbers a step
            first, last = n * part // 8, n * (part + 1) // 8
            key_place = key_start + (r + part) * key_row - 8 * first
            value_place = value_start + (r + part) * value_row - 8 * first
            for p in range(first, last):
                prefetch(key, key_place + 8 * p)
                prefetch(value, value_place + 8 * p)
                sums = rank1(sums, a, place + p * column, row, loads(x, b + p * lanes, like))
        stores(x, c + r * lanes, lanes, sums, like)
        largest = fold_larger(sums, largest)
        r += 8
    while r < n_rows:
        sums = zeros(1, like)
        place = start + r * row
        for p in range(n):
            sums = rank1(sums, a, place + p * column, row, loads(x, b + p * lanes, like))
        stores(x, c + r * lanes, lanes, sums, like)
        largest = fold_larger(sums, largest)
        r += 1
    stores(x, tops, 0, largest, like)


@kernel
def accumulate(a, start, row, column, n_rows, x, b, n, c, joins, shrink, like):
    """Write C[r] = Σ_p a[start + r·row + p·column] · B[p], plus shrink · C[r] where it joins.

    The sum begins at 0 and joins C whole, so that rounding does not grow with the length of C.
    """
    lanes = width(like)
    factor = loads(x, shrink, like)
    r = 0
    while r + 8 <= n_rows:
        sums = zeros(8, like)
        place = start + r * row
        for p in range(n):
            sums = rank1(sums, a, place + p * column, row, loads(x, b + p * lanes, like))
        if joins:
            sums = fma(tile(x, c + r * lanes, lanes, blank(x, 8), like), factor, sums)
        stores(x, c + r * lanes, lanes, sums, like)
        r += 8
    while r < n_rows:
        sums = zeros(1, like)
        place = start + r * row
        for p in range(n):
            sums = rank1(sums, a, place + p * column, row, loads(x, b + p * lanes, like))
        if joins:
            sums = fma(loads(x, c + r * lanes, like), factor, sums)
        stores(x, c + r * lanes, lanes, sums, like)
        r += 1
