"""The lesson's exercise: dot products spread with √d, and what attention makes of two queries."""

import numpy as np

from scaledot import attention


def spread_of_scores(sizes, digits=1):
    """Print d, the spread of 10,000 dot products of random vectors, and that divided by √d."""
    rng = np.random.default_rng(0)
    for d in sizes:
        q, k = rng.normal(size=(2, 10_000, d))
        s = (q * k).sum(axis=-1)
        print(d, s.std().round(1), (s / np.sqrt(d)).std().round(digits))


if __name__ == "__main__":
    spread_of_scores((4, 1024))

    Q = np.array([[1.0, 1.0], [0.0, 2.0]])
    K = np.array([[1.0, 0.0], [0.0, 1.0]])
    V = np.array([[10.0, 0.0], [0.0, 10.0]])
    output, weights = attention(Q, K, V)
    print(output.round(3))
