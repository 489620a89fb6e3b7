"""What the machine can do at most, measured beside the cases: multiply-adds, and reading memory."""

import threading

import numpy as np

from scaledot.fused import target
from scaledot.fused.jit import entry
from scaledot.fused.simd import add, blank, loads, rank1, stores, width, zeros

KEYS, SIZE, TIMES = 24, 64, 20_000
"""Operands of 22 KiB: two threads that share a core's nearest cache keep theirs there."""


@entry
def _tiles(a, x, times):
    """Multiply tiles whose operands lie in the nearest cache."""
    like = blank(x, 3)
    lanes = width(like)
    for _ in range(times):
        for r in range(0, KEYS, 8):
            sums = zeros(8, like)
            for p in range(SIZE):
                sums = rank1(sums, a, r * SIZE + p, SIZE, loads(x, p * lanes, like))
            stores(x, (SIZE + r) * lanes, lanes, sums, like)


@entry
def _read(a, n, x):
    """Read an array, front to back."""
    total = blank(x, 8)
    for place in range(0, n, width(total)):
        total = add(total, loads(a, place, total))
    stores(x, 0, 0, total, total)


def _on_all_threads(work) -> None:
    helpers = [threading.Thread(target=work, args=(i,)) for i in range(1, target.n_threads())]
    for helper in helpers:
        helper.start()
    work(0)
    for helper in helpers:
        helper.join()


def multiply_adds():
    """Return a call, and its operations."""
    n = target.n_threads()
    a = np.random.default_rng(0).standard_normal(KEYS * SIZE).astype(np.float32)
    scratch = [np.zeros((SIZE + KEYS) * 48, np.float32) for _ in range(n)]
    lanes = 3 * target.vector_bytes() // 4
    _tiles(a, scratch[0], 1)

    def call() -> None:
        _on_all_threads(lambda i: _tiles(a, scratch[i], TIMES))

    return call, 2.0 * n * TIMES * KEYS * SIZE * lanes


def memory_read():
    """Return a call that reads memory larger than the caches, and its bytes."""
    n = target.n_threads()
    parts = [np.ones(2**26, np.float32) for _ in range(n)]
    sums = [np.zeros(256, np.float32) for _ in range(n)]
    _read(parts[0], 256, sums[0])

    def call() -> None:
        _on_all_threads(lambda i: _read(parts[i], 2**26, sums[i]))

    return call, float(n * parts[0].nbytes)
