"""Every case of cases/reports.json: a public report, and what is right for it."""

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import oracle
from scaledot import attend, attention, observe, vjp

CASES = json.loads((Path(__file__).parent / "cases" / "reports.json").read_text("utf-8"))["cases"]
ARRAYS = ("query", "key", "value", "mask", "bias", "sinks")
POSITIONS = ("key_lengths", "query_lengths", "query_offset")


def array(spec):
    """The array that a spec of the file stands for."""
    shape, dtype = tuple(spec["shape"]), spec["dtype"]
    exact = {"bool": np.bool_, "int64": np.int64}.get(dtype, np.float64)
    values = np.empty(shape, exact)
    values[...] = filled(spec, shape)
    for index, value in spec.get("set", []):
        values[tuple(selected(element) for element in index)] = number(value)
    if dtype == "bfloat16":
        return values.astype(np.float32).astype(ml_dtypes.bfloat16)
    return values.astype(dtype)


def filled(spec, shape):
    """The entries before any of them is set apart."""
    if "data" in spec:
        return np.array([number(x) for x in spec["data"]]).reshape(shape)
    if "fill" in spec:
        return number(spec["fill"])
    if "arange" in spec:
        start, step = spec["arange"]
        return start + step * np.arange(math.prod(shape)).reshape(shape)
    if "normal" in spec:
        return spec.get("times", 1) * np.random.RandomState(spec["normal"]).standard_normal(shape)
    i, j = np.indices(shape)[-2:]
    if "distance" in spec:
        factor = np.asarray(spec["distance"])
        return (factor[:, None, None] if factor.ndim else factor) * (i - j)
    left, right = (math.inf if side is None else side for side in spec["band"])
    inside = (i - left <= j) & (j <= i + right)
    return np.where(inside, number(spec.get("inside", True)), number(spec.get("outside", False)))


def number(x):
    return float(x) if isinstance(x, str) else x


def selected(element):
    """An int, null for the whole axis, or [start, stop]."""
    if element is None:
        return slice(None)
    return slice(*element) if isinstance(element, list) else element


def call(case):
    """The arrays and keywords of a case."""
    how = dict(case["call"])
    for name in ARRAYS:
        if name in how:
            how[name] = array(how[name])
    for name in POSITIONS:
        if isinstance(how.get(name), list):
            how[name] = np.array(how[name], np.int64)
    if "window" in how:
        how["window"] = tuple(how["window"])
    return [how.pop(name) for name in ("query", "key", "value")], how


def check(case, name, got):
    """Hold one result against what the case wants of it."""
    spec = case["expect"].get(name)
    if spec is None:
        return
    got = np.asarray(got)
    assert got.shape == tuple(spec["shape"]), name
    if "dtype" in spec:
        assert got.dtype.name == spec["dtype"], name
    at = spec.get("at", slice(None))
    if "data" in spec:
        want = np.array([number(x) for x in spec["data"]], np.float64)
    else:
        want = np.full(got.size, number(spec["fill"]), np.float64)
    got = got.ravel()[at].astype(np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite], name)
    allowed = case["atol"] + case["rtol"] * np.abs(want[finite])
    off = np.abs(got[finite] - want[finite])
    assert (off <= allowed).all(), f"{name}: off by {off.max()}"
    if name == "weights":
        assert not got[want == 0].any(), "a weight of 0 is exactly 0"


@pytest.fixture(params=[c for c in CASES if "expect" in c], ids=lambda case: case["id"])
def case(request):
    return request.param


def test_oracle(case):
    """The oracle is held against the same cases, so that nobody has to take its word."""
    arrays, how = call(case)
    want = oracle.attend(*arrays, **how, described=False)
    dtype = np.dtype(case["expect"]["output"].get("dtype", "float64"))
    check(case, "output", want.output.astype(dtype))
    check(case, "weights", want.weights)
    check(case, "log_sum_exp", want.log_sum_exp)


def test_attention(case, any_engine):
    arrays, how = call(case)
    output, weights = attention(*arrays, **how, engine=any_engine)
    check(case, "output", output)
    check(case, "weights", weights)
    assert not np.asarray(output, np.float64)[~(weights != 0).any(axis=-1)].any()


def test_attend(case, any_engine):
    arrays, how = call(case)
    check(case, "output", attend(*arrays, **how, engine=any_engine))


def test_observe(case, any_engine):
    arrays, how = call(case)
    observed = observe(*arrays, **how, statistics="log_sum_exp", engine=any_engine)
    check(case, "output", observed.output)
    check(case, "log_sum_exp", observed.log_sum_exp)


@pytest.mark.parametrize(
    "case", [c for c in CASES if "grad_output" in c], ids=lambda case: case["id"]
)
def test_gradients(case, any_engine):
    arrays, how = call(case)
    output, pullback = vjp(*arrays, **how, engine=any_engine)
    check(case, "output", output)
    gradients = pullback(array(case["grad_output"]))
    for name in ("query", "key", "value", "bias"):
        check(case, f"grad_{name}", getattr(gradients, name))
    weights = attention(*arrays, **how).weights
    unseen_queries = ~(weights != 0).any(axis=-1)
    assert not gradients.query[unseen_queries].any()
    unseen_keys = ~per_key_head(weights, gradients.key.shape).any(axis=-1)
    assert not gradients.key[unseen_keys].any()
    assert not gradients.value[unseen_keys].any()
    if gradients.bias is not None and gradients.bias.shape == weights.shape:
        assert not gradients.bias[weights == 0].any()


def per_key_head(weights, shape):
    """Which queries of the group give a key any weight: (..., G, S, H // G · T)."""
    seen = np.moveaxis(weights != 0, -1, -2)  # (..., H, S, T)
    if seen.ndim == 2:
        return seen
    grouped = seen.reshape(*seen.shape[:-3], shape[-3], -1, *seen.shape[-2:])
    return np.moveaxis(grouped, -3, -2).reshape(*seen.shape[:-3], shape[-3], seen.shape[-2], -1)


@pytest.mark.parametrize("case", [c for c in CASES if "raises" in c], ids=lambda case: case["id"])
@pytest.mark.parametrize("function", [attention, attend, observe, vjp], ids=lambda f: f.__name__)
def test_refused(case, function, any_engine):
    arrays, how = call(case)
    wanted = {"TypeError": TypeError, "ValueError": ValueError}[case["raises"]]
    with pytest.raises(wanted) as refusal:
        function(*arrays, **how, engine=any_engine)
    for mention in case.get("message_mentions", []):
        assert mention.lower() in str(refusal.value).lower()
