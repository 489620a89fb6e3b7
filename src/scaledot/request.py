"""What a call asks of an engine, and the results that the engine fills block of rows by block."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scaledot import arrays, online, statistics
from scaledot.problem import WHOLE, Canvas, Index, Problem
from scaledot.results import Array, TopK
from scaledot.statistics import Moments

RESIDUALS = ("row_max", "shift", "total")
"""Per row: the largest score; the maximum and the sum of exponentials with the sink."""


class Blocks(NamedTuple):
    """How much an engine takes at once."""

    heads: int
    rows: int
    keys: int
    threads: int = 0
    """At most so many threads of this library; 0 for all usable CPUs."""


@dataclass(frozen=True)
class Request:
    """What is wanted of a call."""

    output: bool = True
    weights: bool = False
    statistics: tuple[str, ...] = ()
    k: int = 8
    residuals: bool = False
    """The maxima and the sum of each row as well, for gradients."""

    @property
    def more(self) -> bool:
        """Whether more is wanted than the output and what normalises it."""
        return self.weights or any(name != "log_sum_exp" for name in self.statistics)

    @property
    def moments(self) -> bool:
        """Whether a row's moments are needed."""
        return any(name in statistics.OF_MOMENTS for name in self.statistics)

    @property
    def top_k(self) -> bool:
        """Whether the largest weights are needed."""
        return "top_k" in self.statistics

    @property
    def normalised(self) -> bool:
        """Whether weights are needed one by one, once their sum is known."""
        return self.weights or "received" in self.statistics


class Results:
    """The results of one call, by name; each block of rows is finished once."""

    def __init__(
        self,
        problem: Problem,
        request: Request,
        dtype: Any,
        out: Mapping[str, Array],
        *,
        on_host: bool = False,
    ) -> None:
        n_rows, n_keys = len(problem.rows), problem.key.shape[-2]
        self._xp = np if on_host else problem.xp
        self._problem = problem
        self._request = request
        self.given = frozenset(out)
        """Those whose memory is the caller's."""
        self._canvases: dict[str, Canvas] = {}

        def place(name: str, *tail: int, dtype: Any = None) -> None:
            self._canvases[name] = problem.canvas(
                *tail, dtype=dtype, out=out.get(name), on_host=on_host
            )

        if request.output:
            assert problem.value is not None
            place("output", n_rows, problem.value.shape[-1], dtype=dtype)
        if request.weights:
            place("weights", n_rows, n_keys, dtype=dtype)
        if request.residuals:
            for name in RESIDUALS:
                place(name, n_rows)
        for name in request.statistics:
            if name == "received":
                place(name, n_keys)
                self.put(name, (WHOLE,) * len(problem.sizes) + (WHOLE,), self._zero())
            elif name == "top_k":
                k = min(request.k, n_keys)
                place("top_k.values", n_rows, k)
                place("top_k.indices", n_rows, k, dtype=arrays.index_dtype(problem.xp))
            elif name != "weights_of":
                place(
                    name, n_rows, dtype=arrays.index_dtype(problem.xp) if name == "argmax" else None
                )

    def _zero(self) -> Array:
        if self._xp is np:
            return np.zeros(())
        xp, query = self._xp, self._problem.query
        return xp.zeros((), dtype=self._problem.dtype, device=arrays.device_of(xp, query))

    def view(self, name: str) -> Array:
        """Return the canonical view of a result, to be written where it can be."""
        return self._canvases[name].view

    def put(self, name: str, index: Index, block: Array) -> None:
        """Write a block of a result."""
        self._canvases[name].put(index, block)

    def put_zeros(self, name: str, index: Index) -> None:
        """Write zeros in place of a block."""
        self._canvases[name].put(index, self._zero())

    def add(self, name: str, index: Index, block: Array) -> None:
        """Add a block to a result."""
        self._canvases[name].add(index, block)

    def finish(
        self,
        index: Index,
        *,
        row_max: Array,
        shift: Array,
        total: Array,
        output: Array | None = None,
        moments: Moments | None = None,
        top: TopK | None = None,
        sinks: Array | None = None,
    ) -> None:
        """Write all that is known of a block of rows once it has seen its keys.

        `row_max` is the largest score; `shift` and `total` are the maximum and the sum with the
        sink.
        """
        xp, request = self._xp, self._request
        if output is not None:
            self.put("output", (*index, WHOLE), output)
        if request.residuals:
            for name, x in zip(RESIDUALS, (row_max, shift, total), strict=True):
                self.put(name, index, x)
        if "log_sum_exp" in request.statistics:
            self.put("log_sum_exp", index, online.log_sum_exp(xp, shift, total))
        if moments is not None:
            found = statistics.finish(xp, moments, sinks)
            for name in request.statistics:
                if name in found:
                    self.put(name, index, found[name])
        if top is not None:
            k = min(request.k, self._problem.key.shape[-2])
            top = statistics.finish_candidates(xp, top, k, row_max, shift, total)
            self.put("top_k.values", (*index, WHOLE), top.values)
            self.put("top_k.indices", (*index, WHOLE), top.indices)

    def whole(self) -> dict[str, Any]:
        """Return the results in the caller's shapes, by name."""
        xp, device = self._problem.xp, arrays.device_of(self._problem.xp, self._problem.query)
        found: dict[str, Any] = {name: canvas.whole() for name, canvas in self._canvases.items()}
        if xp is not self._xp and arrays.is_immutable(self._problem.query):
            found = {name: xp.asarray(x, device=device) for name, x in found.items()}
        if self._request.top_k:
            found["top_k"] = TopK(found.pop("top_k.values"), found.pop("top_k.indices"))
        return found
