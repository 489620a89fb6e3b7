"""Which keys a query sees: one interval of keys a row, and the blocks it leaves to do.

Causal, window, lengths and offset leave each row one interval of keys. It stands here once, as a
function of integers; no mask of T × S is ever made of it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

UNBOUNDED = 2**61
"""More tokens beside a query than any sequence has; small enough that sums stay within int64."""


def sides(window: tuple[int | None, int | None], causal: bool) -> tuple[int, int]:
    """Return how many keys a query sees on its left and right; causal is no key on the right.

    Examples
    --------
    >>> sides((4, 0), causal=False)
    (4, 0)
    >>> sides((4, 2), causal=True)
    (4, 0)
    >>> sides((None, None), causal=False) == (UNBOUNDED, UNBOUNDED)
    True
    """
    left, right = (UNBOUNDED if side is None else min(side, UNBOUNDED) for side in window)
    return left, 0 if causal else right


def visible_keys(
    row: Any, query_offset: Any, left: Any, right: Any, n_keys: Any, n_queries: Any
) -> tuple[Any, Any]:
    """Return the half-open interval ``start, stop`` of the keys that a row may see.

    All arguments are ints, or int64 arrays that broadcast. Row ``i`` stands at position
    ``i + query_offset`` among the keys and sees ``left`` keys before and ``right`` keys behind it.
    A row at or beyond `n_queries` is padding and sees none. ``0 <= start <= stop <= n_keys``.

    The same function serves arrays of rows and compiled loops over single ones.

    Examples
    --------
    Two queries, five keys, causal: the last query sees the last key.

    >>> start, stop = visible_keys(np.arange(2), 3, UNBOUNDED, 0, 5, 2)
    >>> start.tolist(), stop.tolist()
    ([0, 0], [4, 5])
    """
    position = row + query_offset
    stop = np.maximum(np.minimum(position + right + 1, n_keys) * (row < n_queries), 0)
    start = np.minimum(np.maximum(position - left, 0), stop)
    return start, stop


def key_blocks(
    start: np.ndarray, stop: np.ndarray, block_keys: int
) -> Iterator[tuple[slice, bool]]:
    """Yield the blocks of keys that some row sees, and whether some row does not see all of it.

    `start` and `stop` are the intervals of the rows. Blocks are trimmed to the keys that are seen;
    empty ones are not yielded.
    """
    seen = stop > start
    if not seen.any():
        return
    first, last = int(start[seen].min()), int(stop[seen].max())
    all_from, all_to = int(start.max()), int(stop.min())
    for begin in range(first, last, block_keys):
        end = min(begin + block_keys, last)
        yield slice(begin, end), begin < all_from or end > all_to
