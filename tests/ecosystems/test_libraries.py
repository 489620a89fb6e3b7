"""The same numbers from every array library, and nothing but its own arrays back."""

import numpy as np
import pytest
from libraries import LIBRARIES, get, is_of, put

from scaledot import attend, attention, merge, observe, plan, softmax, vjp

ENGINES = ("textbook", "blockwise")
PAIRS = [
    (library, engine)
    for library in LIBRARIES
    for engine in (*ENGINES, "fused")
    if (library, engine) != ("strict", "fused")  # whose memory the kernels do not read
]
EPS = float(np.finfo(np.float32).eps)


def arrays(shape_query=(2, 4, 37, 8), shape_key=(2, 2, 41, 8), size=5, seed=0):
    rng = np.random.default_rng(seed)
    query = rng.standard_normal(shape_query).astype(np.float32)
    key = rng.standard_normal(shape_key).astype(np.float32)
    value = rng.standard_normal((*shape_key[:-1], size)).astype(np.float32)
    return query, key, value


def in_numpy_alone(x, index, block):
    """Write a block as the kernels' results are written: no array is copied for a part of it."""
    assert isinstance(x, np.ndarray)
    x[index] = block
    return x


def restrictions():
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((4, 1, 41)).astype(np.float32)
    bias[:, :, 7] = -np.inf
    return {
        "none": {},
        "causal": {"causal": True},
        "window": {"window": (5, 2), "query_offset": 3},
        "mask": {"mask": rng.random((2, 1, 1, 41)) > 0.4},
        "bias": {"bias": bias},
        "softcap": {"softcap": 1.5, "scale": 0.7},
        "sinks": {"sinks": rng.standard_normal(4).astype(np.float32), "causal": True},
        "lengths": {
            "key_lengths": np.array([41, 0]),
            "query_lengths": np.array([30, 37]),
            "causal": True,
        },
    }


def close(got, want, times=1):
    got, want = get(got).astype(np.float64), np.asarray(want, np.float64)
    np.testing.assert_allclose(got, want, rtol=64 * EPS * times, atol=64 * EPS * times)


@pytest.mark.parametrize("name", restrictions())
@pytest.mark.parametrize(("library", "engine"), PAIRS)
def test_every_restriction(library, engine, name):
    how = restrictions()[name]
    own = {key: put(library, x) for key, x in how.items()}
    given = arrays()
    ours = [put(library, x) for x in given]
    want = attention(*(x.astype(np.float64) for x in given), engine="textbook", **how)
    got = attention(*ours, engine=engine, **own)
    assert is_of(library, got.output)
    assert is_of(library, got.weights)
    close(got.output, want.output)
    close(got.weights, want.weights)
    close(attend(*ours, engine=engine, **own), want.output)


@pytest.mark.parametrize(("library", "engine"), PAIRS)
def test_every_statistic(library, engine, monkeypatch):
    if engine == "fused":  # in parts of some rows, which are written where they belong
        monkeypatch.setattr("scaledot.fused.engine.NOTED_BYTES", 1000)
        monkeypatch.setattr("scaledot.problem.assign", in_numpy_alone)
    given, how = arrays(), {"statistics": "all", "rows": [0, -1], "causal": True, "k": 3}
    want = observe(*(x.astype(np.float64) for x in given), engine="textbook", **how)
    got = observe(*(put(library, x) for x in given), engine=engine, **how)
    for name, mine, theirs in zip(got._fields, got, want, strict=True):
        if name == "top_k":
            np.testing.assert_array_equal(get(mine.indices), theirs.indices)
            mine, theirs = mine.values, theirs.values
        assert is_of(library, mine), name
        if name == "argmax":
            np.testing.assert_array_equal(get(mine), theirs)
        else:
            close(mine, theirs, times=8)


@pytest.mark.parametrize(("library", "engine"), PAIRS)
def test_gradients(library, engine):
    rng = np.random.default_rng(2)
    given = arrays()
    bias = rng.standard_normal((4, 1, 41)).astype(np.float32)
    sinks = rng.standard_normal(4).astype(np.float32)
    how = {"bias": bias, "sinks": sinks, "causal": True, "softcap": 3.0}
    grad = rng.standard_normal((2, 4, 37, 5)).astype(np.float32)
    row_grad = rng.standard_normal((2, 4, 37)).astype(np.float32)

    def run(convert, engine):
        own = {name: convert(x) if isinstance(x, np.ndarray) else x for name, x in how.items()}
        output, pullback = vjp(*map(convert, given), engine=engine, **own)
        gradients = pullback(
            convert(grad), log_sum_exp=convert(row_grad), entropy=convert(row_grad)
        )
        return output, *gradients

    want = run(lambda x: x.astype(np.float64), "textbook")
    got = run(lambda x: put(library, x), engine)
    for mine, theirs in zip(got, want, strict=True):
        assert is_of(library, mine)
        close(mine, theirs, times=32)


@pytest.mark.parametrize("library", LIBRARIES)
def test_nan_stays_where_it_is_seen(library):
    query, key, value = arrays((5, 4), (5, 4), 3)
    value[3, 1] = np.nan
    for engine in ENGINES:
        output = get(
            attend(*(put(library, x) for x in (query, key, value)), causal=True, engine=engine)
        )
        expected = np.zeros((5, 3), bool)
        expected[3:, 1] = True
        np.testing.assert_array_equal(np.isnan(output), expected)


@pytest.mark.parametrize("library", LIBRARIES)
def test_softmax_and_merge(library):
    z = np.array([[1e4, 0.0, -np.inf], [-np.inf, -np.inf, -np.inf]], np.float32)
    got = softmax(put(library, z))
    assert is_of(library, got)
    np.testing.assert_array_equal(get(got), [[1, 0, 0], [0, 0, 0]])
    query, key, value = arrays()
    whole = observe(query, key, value, engine="textbook")
    parts = []
    for part in (slice(0, 10), slice(10, 41)):
        seen = observe(*(put(library, x) for x in (query, key[:, :, part], value[:, :, part])))
        parts.append((seen.output, seen.log_sum_exp))
    merged = merge(parts)
    assert is_of(library, merged.output)
    close(merged.output, whole.output)
    close(merged.log_sum_exp, whole.log_sum_exp)


@pytest.mark.parametrize("library", LIBRARIES)
def test_integers_become_the_default_real_type(library):
    ones = put(library, np.ones((2, 3), np.int64))
    output = attend(ones, ones, ones)
    assert is_of(library, output)
    assert output.dtype == (put(library, np.ones(1)) * 1.0).dtype or library != "strict"
    np.testing.assert_array_equal(get(output), np.ones((2, 3)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_lists_join_an_array_of_the_library(library):
    ones = put(library, np.ones((2, 3), np.float32))
    output = attend(ones, [[1.0, 1.0, 1.0]], [[4.0]])
    assert is_of(library, output)
    np.testing.assert_array_equal(get(output), [[4], [4]])


@pytest.mark.parametrize("library", LIBRARIES)
def test_two_libraries_are_refused(library):
    theirs = put(library, np.ones((2, 3), np.float32))
    ours = np.ones((2, 3), np.float32)
    with pytest.raises(TypeError, match="one library"):
        attend(theirs, ours, ours)
    with pytest.raises(TypeError, match=r"`mask`|one library"):
        attend(theirs, theirs, theirs, mask=np.ones((2, 2), bool))


def test_two_foreign_libraries_are_refused():
    one, other = (put(library, np.ones((2, 3), np.float32)) for library in ("torch", "jax"))
    with pytest.raises(TypeError, match=r"`query` is of torch, `key` of jax"):
        plan(one, other, other)


@pytest.mark.parametrize("library", LIBRARIES)
def test_zero_sizes(library):
    for engine in ENGINES:
        for shape_query, shape_key in (((2, 3), (0, 3)), ((0, 3), (2, 3)), ((2, 0), (3, 0))):
            query, key, _ = arrays(shape_query, shape_key)
            value = np.ones((shape_key[0], 2), np.float32)
            got = attention(*(put(library, x) for x in (query, key, value)), engine=engine)
            want = attention(query, key, value, engine="textbook")
            np.testing.assert_array_equal(get(got.output), want.output)
            np.testing.assert_array_equal(get(got.weights), want.weights)


def test_the_fused_engine_says_whose_memory_it_does_not_read():
    ones = put("strict", np.ones((2, 60, 8), np.float32))
    assert plan(ones, ones, ones).engine == "blockwise"
    with pytest.raises(ValueError, match="the arrays are not in CPU memory"):
        attend(ones, ones, ones, engine="fused")
