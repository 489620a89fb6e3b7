"""What the tables beside the peers say: restrictions, small calls, errors, memory, first calls."""

import math
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measure import medians, shares
from scaledot import attend, attention, observe
from scaledot.statistics import DEFAULT


class Table(NamedTuple):
    """A table of the report."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def _normal(*shape: int, dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    """Return query, key and value of normal numbers."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(3)]


def restrictions(rounds: int) -> Table:
    """Return what each restriction costs, as a multiple of the call without it."""
    given = _normal(1, 8, 2048, 64)
    rng = np.random.default_rng(1)
    extras = {
        "nothing": {},
        "mask (T, S)": {"mask": rng.random((2048, 2048)) < 0.9},
        "bias (T, S)": {"bias": rng.standard_normal((2048, 2048)).astype(np.float32)},
        "mask (S,)": {"mask": rng.random(2048) < 0.9},
        "softcap": {"softcap": 30.0},
        "sinks": {"sinks": np.zeros(8, np.float32)},
    }
    calls = {name: (lambda how=how: attend(*given, **how)) for name, how in extras.items()}
    rows = [(name, f"{share:.2f}") for name, share in shares(calls, rounds).items()]
    title = "Restrictions, 8×2048×64, as multiples of the call without"
    return Table(title, ("with", "of the call without"), rows)


def seeing(rounds: int) -> Table:
    """Return what weights and statistics cost, as multiples of the output alone."""
    found: dict[int, dict[str, float]] = {}
    for n in (2048, 4096, 16384):
        query, key, value = _normal(1, 8, n, 64)
        calls = {"the output alone": lambda q=query, k=key, v=value: attend(q, k, v)}
        for name, wanted in STATISTICS.items():
            calls[name] = lambda q=query, k=key, v=value, w=wanted: observe(q, k, v, statistics=w)
        calls["default statistics, no value"] = lambda q=query, k=key: observe(q, k)
        if n <= 4096:
            out = np.empty_like(query), np.empty((1, 8, n, n), np.float32)
            calls["weights, into `out`"] = lambda a=(query, key, value), o=out: attention(*a, out=o)
            calls["weights, fresh"] = lambda a=(query, key, value): attention(*a)
            calls["a fresh array of their size, filled"] = lambda o=out[1]: np.full_like(o, 0)
            calls["weights, NumPy by hand"] = lambda a=(query, key, value): by_hand(*a)
        found[n] = shares(calls, rounds)
    rows = []
    for name in found[2048]:
        cells = [f"{x[name]:.2f}" if name in x else "–" for x in found.values()]
        rows.append((name, *cells))
    return Table(
        "What seeing costs, 8 heads of size 64, as multiples of the output alone",
        ("wanted", *(f"length {n}" for n in found)),
        rows,
    )


STATISTICS = {
    "default statistics": DEFAULT,
    "`received` beside them": (*DEFAULT, "received"),
    "`top_k`, k = 8": "top_k",
}


def by_hand(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return attention as one writes it in NumPy."""
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores @ value


def small(rounds: int) -> Table:
    """Return how long small calls take beside NumPy by hand."""
    rows = []
    for name, shape, dtype in (
        ("2×2", (2, 2), "float64"),
        ("8×16×64", (1, 8, 16, 64), "float32"),
        ("8×64×64", (1, 8, 64, 64), "float32"),
    ):
        given = _normal(*shape, dtype=dtype)
        found = medians(
            {
                "hand": lambda given=given: by_hand(*given),
                "attention": lambda given=given: attention(*given),
                "attend": lambda given=given: attend(*given),
                "fused": lambda given=given: attend(*given, engine="fused"),
            },
            rounds,
        )
        rows.append((name, *(f"{found[n] * 1e6:.1f}" for n in found)))
    head = (
        "heads × length × size",
        "NumPy by hand",
        "attention",
        "attend",
        'attend, engine="fused"',
    )
    return Table("Small calls, microseconds", head, rows)


def errors(rounds: int) -> Table:
    """Return the root mean square of the errors against extended precision."""
    rows = []
    for name, factor in (("normal numbers", 1), ("16 × normal numbers", 16)):
        given = [np.float32(factor) * x for x in _normal(1, 2, 2048, 64)]
        exact = np.stack([by_hand(*(x[0, h].astype(np.longdouble) for x in given)) for h in (0, 1)])

        def error(found: np.ndarray, exact: np.ndarray = exact) -> str:
            return f"{np.sqrt(np.mean((found[0] - exact) ** 2)):.2e}"

        rows.append((name, error(attend(*given)), _torch(given, error), error(by_hand(*given))))
    head = ("inputs, 2×2048×64", "scaledot", "torch", "NumPy by hand")
    return Table("Error of the output, root mean square", head, rows)


def _torch(given: list[np.ndarray], error) -> str:
    try:
        import torch
    except ImportError:
        return "–"
    attention = torch.nn.functional.scaled_dot_product_attention
    return error(attention(*map(torch.from_numpy, given)).numpy())


def memory(rounds: int) -> Table:
    """Return what a call needs beside its inputs and its output."""
    rows = []
    for name, dtype, how in (
        ("float32", "float32", {}),
        ("float16, mask (S,), lengths", "float16",
         {"mask": np.random.default_rng(0).random(65536) < 0.99, "key_lengths": 65000}),
    ):  # fmt: skip
        query = np.zeros((4, 65536, 64), dtype)
        key, value = np.zeros((1, 65536, 64), dtype), np.zeros((1, 65536, 64), dtype)
        out = np.empty_like(query)
        how = {**how, "window": (512, 0), "query_offset": 0}  # the same memory, in less time
        attend(query, key, value, out=out, **how)
        tracemalloc.start()
        attend(query, key, value, out=out, **how)
        rows.append((name, f"{tracemalloc.get_traced_memory()[1] / 2**20:.2f}"))
        tracemalloc.stop()
    return Table("Memory beside inputs and output, 4/1×65536×64", ("call", "MiB"), rows)


FIRST = """
import time
start = time.perf_counter()
import numpy as np
from scaledot import attend, attention, observe
from scaledot.statistics import DEFAULT
x, q = np.ones((8, 256, 64), np.float32), np.ones((8, 1, 64), np.float32)
for query in (x, q):
    attend(query, x, x)
    print(time.perf_counter() - start)
    start = time.perf_counter()
"""


def first_calls(rounds: int) -> Table:
    """Return how long the first calls of a process take, imports included."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"SCALEDOT_CACHE_DIR": str(Path(folder) / "cache")}
        runs = []
        for _ in range(2):
            time.sleep(0.1)
            done = subprocess.run(
                [sys.executable, "-c", FIRST],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            )
            runs.append([f"{float(line):.2f}" for line in done.stdout.split()])
    kinds = ("attend", "attend, one query")
    rows = [(kind, *seconds) for kind, *seconds in zip(kinds, *runs, strict=True)]
    return Table("First call in a process, seconds", ("call", "compiled", "from the cache"), rows)


FACTS = {
    "restrictions": restrictions,
    "seeing": seeing,
    "small": small,
    "errors": errors,
    "memory": memory,
    "first": first_calls,
}
