"""From a caller's arguments to a plan and a problem, and from there to results."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np

from scaledot import arrays, blockwise, checks, planning, textbook
from scaledot.layout import Layout
from scaledot.masks import UNBOUNDED
from scaledot.planning import BESIDE, POSITIONS, Plan, Signature
from scaledot.problem import Problem
from scaledot.request import Request, Results
from scaledot.results import Array


class How(TypedDict, total=False):
    """The keywords that all functions share; `scaledot.attention` explains them."""

    mask: Array
    bias: Array
    causal: bool
    query_offset: Any
    window: tuple[int | None, int | None] | None
    key_lengths: Any
    query_lengths: Any
    scale: float | None
    softcap: float | None
    sinks: Array
    engine: str | None
    threads: int | None


class Call(NamedTuple):
    """One call, checked and planned."""

    xp: Any
    plan: Plan
    problem: Problem
    given: dict[str, Array]
    """The caller's arrays by name, as arrays of their library."""

    def run(
        self, request: Request, *, dtype: str | None = None, out: Mapping[str, Array] | None = None
    ) -> dict[str, Any]:
        """Return the results asked for, by name; the output and weights in a type, or in `out`."""
        return self._run(self.problem, request, dtype or self.plan.dtype, out or {})

    def weights_of(self, rows: np.ndarray) -> Array:
        """Return the weights of some query rows, in the type of the sums."""
        request = Request(output=False, weights=True)
        problem = self.problem.of_rows(rows)
        return self._run(problem, request, self.plan.sum_dtype, {})["weights"]

    def entropy(self) -> Array:
        """Return the entropy of each row."""
        asked = Request(output=False, statistics=("entropy",))
        return self.run(asked)["entropy"]

    def _run(
        self, problem: Problem, request: Request, dtype: str, out: Mapping[str, Array]
    ) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # -inf - -inf and the like have a meaning here
            on_host = self.plan.engine == "fused"
            results = Results(problem, request, self.dtype(dtype), out, on_host=on_host)
            _engine(self.plan.engine)(problem, request, results, self.plan.blocks)
            return results.whole()

    def dtype(self, name: str) -> Any:
        """Return the library's type of a name."""
        return arrays.dtype_of(self.xp, name, tuple(self.given.values()))

    def out(self, name: str, out: Array | None, *tail: int) -> dict[str, Array]:
        """Return the place for a result, checked, under the name of the result."""
        if out is None:
            return {}
        shape = self.problem.layout.shape(*tail)
        arrays.check_out(self.xp, "out", out, shape, self.plan.dtype, self.given)
        return {name: out}

    def spread(self, x: Array, n_tail: int) -> Array:
        """Return a canonical view of an array in a result's shape."""
        return self.problem.layout.spread(self.xp, x, n_tail)

    def incoming(self, grads: Mapping[str, Array | None]) -> dict[str, Array | None]:
        """Return incoming gradients, checked, canonical and in the type of the sums."""
        xp, given = arrays.adopt({"query": self.given["query"], **grads})
        del given["query"]
        n_queries = self.problem.query.shape[-2]
        size = self.given["value"].shape[-1]
        found: dict[str, Array | None] = dict.fromkeys(grads)
        for name, x in given.items():
            tail = (n_queries, size) if name == "grad_output" else (n_queries,)
            shape = self.problem.layout.shape(*tail)
            checks.gradient(name, tuple(x.shape), arrays.type_name(x), shape)
            found[name] = self.spread(arrays.convert(xp, x, self.problem.dtype), len(tail))
        return found

    def as_arguments(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Return canonical gradients in the shapes and types of the arguments."""
        layout, found = self.problem.layout, {}
        for name, total in totals.items():
            x = self.given[name]
            kind = arrays.type_name(x)
            if kind not in checks.FLOATS:
                kind = self.plan.dtype
            gather = layout.gather_keys if name in ("key", "value") else layout.gather
            total = gather(self.xp, total, tuple(x.shape))
            found[name] = arrays.fresh(self.xp, total, self.dtype(kind))
        return found


def _engine(name: str) -> Any:
    """Return what runs an engine; the fused one is loaded when it is first needed."""
    if name == "fused":
        from scaledot.fused import engine

        return engine.run
    return textbook.run if name == "textbook" else blockwise.run


def prepare(
    query: Array,
    key: Array,
    value: Array | None,
    how: Mapping[str, Any],
    *,
    positions: bool = False,
) -> Call:
    """Check a call and plan it.

    `positions`: more than its restrictions needs to know where the queries stand.
    """
    named: dict[str, Any] = {"query": query, "key": key, "value": value}
    numbers: dict[str, np.ndarray] = {}
    scalars: dict[str, Any] = {}
    for name, x in how.items():
        checks.option(name)
        if x is None and name != "causal":
            continue
        if name in BESIDE:
            named[name] = x
        elif name in POSITIONS:
            numbers[name] = _numbers(name, x)
        else:
            scalars[name] = SCALARS[name](x)
    if query is None or key is None:
        checks.not_an_array("key" if key is None else "query", None)
    xp, given = arrays.adopt(named)
    kinds: dict[str, Any] = {
        name: (tuple(x.shape), x.dtype) for name, x in (given | numbers).items()
    }
    on_cpu = arrays.on_cpu(xp, given["query"])
    its = Signature(xp, on_cpu, positions, **kinds, **scalars)
    plan = planning.plan(its)
    return Call(xp, plan, _problem(xp, plan, given, numbers), given)


SCALARS: dict[str, Callable[[Any], Any]] = {
    "causal": lambda x: checks.flag("causal", x),
    "window": checks.window,
    "scale": lambda x: checks.real("scale", x),
    "softcap": checks.softcap,
    "engine": lambda x: checks.choice("engine", x, planning.ENGINES),
    "threads": lambda x: checks.integer("threads", x, least=1),
}
"""The keywords that are not arrays, and what reads them or refuses them."""


def _numbers(name: str, x: Any) -> np.ndarray:
    """Return lengths or offsets of any library as a NumPy array, of whatever type they are."""
    if type(x) is int:
        return np.asarray(x)
    if isinstance(x, list | tuple) and not x:
        return np.empty(0, np.int64)
    _, adopted = arrays.adopt({name: x})
    return arrays.on_host(adopted[name])


def _problem(
    xp: Any, plan: Plan, given: Mapping[str, Array], numbers: Mapping[str, np.ndarray]
) -> Problem:
    """Return the canonical problem of a call."""
    frame, layout = plan.frame, plan.frame.layout
    value, mask, bias, sinks = (given.get(name) for name in ("value", *BESIDE))
    if sinks is not None:
        sinks = layout.spread(xp, arrays.clamp(xp, sinks, frame.dtype), 0)[..., None]
    return Problem(
        frame,
        layout.sizes,
        layout.spread(xp, given["query"]),
        layout.spread_keys(xp, given["key"]),
        None if value is None else layout.spread_keys(xp, value),
        None if mask is None else layout.spread(xp, mask),
        None if bias is None else layout.spread(xp, bias),
        sinks,
        frame.rows,
        *_positions(layout, numbers, len(frame.rows), frame.n_keys),
        restricted=bool(numbers) or frame.left < UNBOUNDED or frame.right < UNBOUNDED,
    )


def _positions(
    layout: Layout, numbers: Mapping[str, np.ndarray], n_queries: int, n_keys: int
) -> tuple[Any, Any, Any]:
    """Return query offset, key lengths and query lengths, refused where out of range."""
    if not numbers:
        return n_keys - n_queries, n_keys, n_queries
    limit = checks.POSITION_LIMIT
    for name, low, high, what in (
        ("key_lengths", 0, n_keys, "the number of keys"),
        ("query_lengths", 0, n_queries, "the number of queries"),
        ("query_offset", -limit, limit, "in tokens"),
    ):
        x = numbers.get(name)
        if x is not None and x.size:
            checks.position_range(name, int(x.min()), int(x.max()), low, high, what)

    def known(name: str, default: int) -> np.ndarray:
        return np.asarray(numbers.get(name, default)).astype(np.int64)

    key_lengths, query_lengths = known("key_lengths", n_keys), known("query_lengths", n_queries)
    if "query_offset" in numbers:
        offset = known("query_offset", 0)
    elif "key_lengths" in numbers and "query_lengths" in numbers:
        offset = key_lengths - query_lengths
    else:
        offset = np.asarray(n_keys - n_queries)

    def place(x: np.ndarray) -> Any:
        return layout.spread(np, x[..., None], 0)[..., None] if x.ndim else int(x)

    return place(offset), place(key_lengths), place(query_lengths)


def chosen_rows(rows: Sequence[int] | Array, n_queries: int) -> np.ndarray:
    """Return row numbers as an int64 array; negative ones count from the end."""
    found = _numbers("rows", list(rows) if isinstance(rows, range) else rows)
    checks.row_numbers(found.shape, arrays.type_name(found))
    found = found.astype(np.int64)
    if found.size:
        least, most = int(found.min()), int(found.max())
        checks.position_range(
            "rows", least, most, -n_queries, n_queries - 1, f"for {n_queries} queries"
        )
    return np.where(found < 0, found + n_queries, found)
