"""What is measured: one table of cases."""

from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """One call."""

    group: str
    heads: int
    groups: int
    n_queries: int
    n_keys: int
    size: int
    causal: bool = False
    batch: int = 1
    window: tuple[int | None, int | None] | None = None
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """The case in few letters."""
        heads = f"{self.heads}" if self.heads == self.groups else f"{self.heads}/{self.groups}"
        batch = f"{self.batch}×" if self.batch > 1 else ""
        length = f"{self.n_queries}"
        if self.n_queries != self.n_keys:
            length += f" of {self.n_keys}"
        words = [f"{batch}{heads}×{length}×{self.size}"]
        words += ["causal"] if self.causal else []
        words += [f"window {self.window}"] if self.window else []
        words += [self.dtype] if self.dtype != "float32" else []
        return " ".join(words)

    @property
    def flops(self) -> float:
        """Operations on visible scores: two products, each a multiplication and an addition."""
        rows = np.arange(self.n_queries, dtype=np.int64) + self.n_keys - self.n_queries
        right = 0 if self.causal else self.n_keys
        left = self.n_keys
        if self.window is not None:
            left = self.n_keys if self.window[0] is None else self.window[0]
            right = min(right, self.n_keys if self.window[1] is None else self.window[1])
        stop = np.minimum(rows + right + 1, self.n_keys)
        seen = (stop - np.maximum(rows - left, 0)).clip(0).sum()
        return float(4 * self.batch * self.heads * self.size * seen)

    @property
    def bytes(self) -> int:
        """Bytes of keys and values."""
        return (
            2 * self.batch * self.groups * self.n_keys * self.size * np.dtype(self.dtype).itemsize
        )

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return query, key and value of normal numbers."""
        rng = np.random.default_rng(0)
        shapes = [(self.batch, self.heads, self.n_queries, self.size)]
        shapes += [(self.batch, self.groups, self.n_keys, self.size)] * 2
        query, key, value = (rng.standard_normal(shape).astype(self.dtype) for shape in shapes)
        return query, key, value

    @property
    def how(self) -> dict[str, Any]:
        """The keywords of the call."""
        how: dict[str, Any] = {"causal": True} if self.causal else {}
        return how | ({"window": self.window} if self.window else {})


def _square(group: str, heads: int, n: int, size: int, **more: Any) -> list[Case]:
    """Return a case without and with the causal restriction."""
    return [Case(group, heads, heads, n, n, size, causal, **more) for causal in (False, True)]


CASES = (
    *(
        case
        for n in (512, 1024, 2048, 4096)
        for size in (64, 128)
        for case in _square("long", 4 if n == 4096 else 8, n, size)
    ),
    Case("many", 12, 12, 128, 128, 64, batch=32),
    Case("many", 12, 12, 197, 197, 64, batch=8),
    Case("many", 12, 12, 256, 256, 64, batch=8),
    Case("many", 32, 8, 512, 512, 64, causal=True),
    Case("decode", 8, 8, 1, 8192, 128),
    Case("decode", 32, 32, 1, 8192, 128),
    Case("decode", 32, 8, 1, 8192, 128),
    Case("decode", 1, 1, 1, 65536, 128),
    Case("window", 8, 8, 8192, 8192, 64, causal=True),
    Case("window", 8, 8, 8192, 8192, 64, window=(256, 0)),
    *_square("double", 8, 1024, 64, dtype="float64"),
)
