"""What is the fused engine's own: words and their twins, tile edges, threads, bounds, the cache."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from scaledot import attend, attention, observe, plan, planning, vjp

pytest.importorskip("numba", reason="Numba has no wheels for this platform")

from scaledot.fused import contain, decode, forward, launch, simd, tables, target, threads

WIDTHS = target.VECTOR_BYTES
ROWS = (1, 15, 16, 17, 31, 33, 47, 48, 49, 63, 95, 96, 97, 145)


def run(code, **environment):
    """Run code in a fresh process and return what it prints."""
    env = {name: x for name, x in os.environ.items() if not name.startswith(("SCALEDOT", "NUMBA"))}
    env |= {name: str(x) for name, x in environment.items() if x is not None}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def draw(*shapes, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def close(got, want, times=1):
    eps = np.finfo(got.dtype).eps
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=32 * eps * times)


# ---------------------------------------------------------------------------------------- words

WORDS = """
    import numpy as np
    from numba import njit
    from scaledot.fused import simd
    from scaledot.fused.simd import *

    @njit
    def forms(x, y, z, out, n, bias):
        like = blank(x, 2)
        step = width(like)
        for i in range(0, n, step):
            a, b = loads(x, i, like), loads(y, i, like)
            stores(out, 0 * n + i, 0, add(a, b), like)
            stores(out, 1 * n + i, 0, sub(a, b), like)
            stores(out, 2 * n + i, 0, mul(a, b), like)
            stores(out, 3 * n + i, 0, larger(a, b), like)
            stores(out, 4 * n + i, 0, anchor(a), like)
            stores(out, 5 * n + i, 0, add_bias(a, b), like)
            stores(out, 6 * n + i, 0, unless(a, loads(z, i, like)), like)
            stores(out, 7 * n + i, 0, tanh(a), like)
            scale, low = splat(1.5, like), splat(-bias / 1.5, like)
            stores(out, 8 * n + i, 0, power(a, scale, low), like)

    for dtype in (np.float32, np.float64):
        n = 1 << 12
        rng = np.random.default_rng(0)
        x = (rng.standard_normal(n) * 10).astype(dtype)
        y = (rng.standard_normal(n) * 10).astype(dtype)
        x[:6] = 0, -0.0, np.inf, -np.inf, np.nan, -1e-30
        y[:4] = np.nan, -np.inf, -np.inf, 1
        x[100:200] = -np.abs(x[100:200]) * 20
        x[x > 60] = 60
        z = (rng.random(n) > 0.5).astype(dtype)
        out = np.empty(9 * n, dtype)
        bias = 1023 if dtype == np.float64 else 127
        forms(x, y, z, out, n, bias)
        got = out.reshape(9, n)
        with np.errstate(all="ignore"):
            want = [
                w.twin(*args)[0]
                for w, args in (
                    (add, ((x,), (y,))), (sub, ((x,), (y,))), (mul, ((x,), (y,))),
                    (larger, ((x,), (y,))), (anchor, ((x,),)), (add_bias, ((x,), (y,))),
                    (unless, ((x,), (z,))), (tanh, ((x,),)),
                )
            ]
        for mine, theirs in zip(got[:7], want[:7]):
            np.testing.assert_array_equal(mine, theirs)
        ulp = np.finfo(dtype).eps
        np.testing.assert_allclose(got[7], want[7], rtol=4 * ulp, atol=0)
        t = x.astype(np.longdouble) * 1.5
        with np.errstate(all="ignore"):
            right = np.exp2(np.maximum(t, -bias))
        normal = ~(t < 2 - bias) & np.isfinite(t)
        np.testing.assert_allclose(
            got[8][normal].astype(np.longdouble), right[normal], rtol=1.0 * ulp, atol=0
        )
        assert got[8][3] == 0 and np.isnan(got[8][4])
        assert not got[8][t < -bias - 1].any()
    print("ok")
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_words_are_their_twins(width):
    assert run(WORDS, SCALEDOT_VECTOR_BYTES=width) == "ok"


MOVES = """
    import numpy as np
    from numba import njit
    from scaledot.fused.simd import *

    @njit
    def moves(a, at, out, rows, acc_in, acc_out):
        like = blank(rows, 1)
        scatter(out, at, 0, 3, transposed(a, at, 0, 2, like))
        scatter(out, at, 0, 3 + width(like), tile(rows, 1, 2 * width(like), square(like), like))
        three = blank(rows, 3)
        sums = tile(acc_in, 0, width(three), blank(rows, 8), three)
        sums = rank1(sums, rows, 5, 7, loads(rows, 11, three))
        stores(acc_out, 0, width(three), sums, three)
        stores(acc_out, 8 * width(three), 0, fold_larger(sums, three), three)
        queries = tile(rows, 2, 9, bundle(like), like)
        stores(acc_out, 9 * width(three), 0, fold_rows(dots(square(like), queries, a, 3, 7)), like)

    all_kinds = {np.float32: (np.float32, np.int16, np.uint16), np.float64: (np.float64,)}
    for sums, kinds in all_kinds.items():
        n = VECTOR_BYTES // np.dtype(sums).itemsize
        rng = np.random.default_rng(1)
        rows = rng.standard_normal(40 * n).astype(sums)
        for kind in kinds:
            a = narrow(rng.standard_normal(100 * n).astype(sums), np.dtype(kind))
            at = rng.permutation(n).astype(np.int64) * 5 * n
            results = []
            for dialect in ("words", "twins"):
                out = np.zeros(100 * n, kind)
                acc = np.arange(24 * n).astype(sums)
                acc_out = np.zeros(28 * n, sums)
                if dialect == "words":
                    moves(a, at, out, rows, acc, acc_out)
                else:
                    like = blank.twin(rows, 1)
                    scatter.twin(out, at, 0, 3, transposed.twin(a, at, 0, 2, like))
                    turned = tile.twin(rows, 1, 2 * n, square.twin(like), like)
                    scatter.twin(out, at, 0, 3 + n, turned)
                    three = blank.twin(rows, 3)
                    sums_ = tile.twin(acc, 0, 3 * n, blank.twin(rows, 8), three)
                    sums_ = rank1.twin(sums_, rows, 5, 7, loads.twin(rows, 11, three))
                    stores.twin(acc_out, 0, 3 * n, sums_, three)
                    stores.twin(acc_out, 24 * n, 0, fold_larger.twin(sums_, three), three)
                    queries = tile.twin(rows, 2, 9, bundle.twin(like), like)
                    products = dots.twin(square.twin(like), queries, a, 3, 7)
                    stores.twin(acc_out, 27 * n, 0, fold_rows.twin(products), like)
                results.append((out, acc_out))
            np.testing.assert_array_equal(results[0][0], results[1][0])
            np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-5)
    halves = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, np.nan, np.inf, -np.inf, 3.4e38, 1e-40], "f")
    import ml_dtypes
    np.testing.assert_array_equal(
        narrow(halves, np.dtype(np.uint16)), halves.astype(ml_dtypes.bfloat16).view(np.uint16)
    )
    print("ok")
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_moves_are_their_twins(width):
    assert run(MOVES, SCALEDOT_VECTOR_BYTES=width) == "ok"


# ---------------------------------------------------------------------------------- the engine


@pytest.mark.parametrize("how", [{}, {"causal": True}, {"window": (20, 3)}], ids=str)
@pytest.mark.parametrize("n_keys", ROWS)
@pytest.mark.parametrize("n_queries", ROWS)
def test_tile_edges(n_queries, n_keys, how):
    query, key, value = draw((2, n_queries, 5), (2, n_keys, 5), (2, n_keys, 3))
    exact = (x.astype(np.float64) for x in (query, key, value))
    close(
        attend(query, key, value, engine="fused", **how), attend(*exact, engine="textbook", **how)
    )


@pytest.mark.parametrize("size", [0, 1, 3, 7, 8, 15, 16, 17, 80, 160, 257])
@pytest.mark.parametrize("value_size", [0, 1, 3, 8, 17, 257])
def test_any_head_and_value_size(size, value_size):
    query, key, value = draw((2, 50, size), (2, 60, size), (2, 60, value_size))
    exact = (x.astype(np.float64) for x in (query, key, value))
    close(attend(query, key, value, engine="fused"), attend(*exact, engine="textbook"))


@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (6, 1), (7, 1), (8, 2), (32, 8)])
def test_groups_share_tiles(heads):
    many, few = heads
    query, key, value = draw((2, many, 23, 8), (2, few, 40, 8), (2, few, 40, 8))
    exact = [x.astype(np.float64) for x in (query, key, value)]
    how = {"causal": True, "sinks": np.linspace(-1, 1, many)}
    close(
        attend(query, key, value, engine="fused", **how), attend(*exact, engine="textbook", **how)
    )


@pytest.mark.parametrize("heads", [2, 3, 6])
def test_rows_of_a_bias_that_all_heads_share_go_together(heads):
    """Tiles go row by row through all heads; 288 rows are 6, 12 or 24 of them."""
    query, key, value = draw((heads, 288, 8), (heads, 70, 8), (heads, 70, 8))
    (bias,) = draw((288, 70), seed=9)
    assert plan(query, key, value, bias=bias).engine == "fused"
    for how in ({"bias": bias}, {"mask": bias > 0}):
        out = np.full(query.shape, np.nan, np.float32)
        attend(query, key, value, out=out, **how)
        want = attend(
            *(x.astype(np.float64) for x in (query, key, value)), engine="textbook", **how
        )
        close(out, want)


# ------------------------------------------------------------------------------------ decoding


def restrictions(n_queries, n_keys):
    rng = np.random.default_rng(5)
    bias = rng.standard_normal((n_queries, n_keys))
    bias[:, 3] = -np.inf
    return {
        "none": {},
        "causal": {"causal": True},
        "window": {"window": (20, 0)},
        "early": {"causal": True, "query_offset": 3},
        "softcap": {"softcap": 2.0},
        "bias": {"bias": bias},
        "half-bias": {"bias": bias.astype(np.float16)},
        "mask": {"mask": rng.random((n_queries, n_keys)) > 0.3},
        "nothing": {"mask": np.zeros((1, n_keys), bool)},
        "sinks": {"sinks": 1.0},
        "lengths": {"key_lengths": np.array([5, n_keys]), "query_offset": 2},
    }


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", restrictions(1, 1000))
@pytest.mark.parametrize(("heads", "n_queries"), [((4, 4), 1), ((8, 2), 2), ((2, 1), 3)])
def test_few_queries(heads, n_queries, name, dtype):
    many, few = heads
    for n_keys in (64, 77, 2100):
        how = restrictions(n_queries, n_keys)[name]
        query, key, value = draw(
            (2, many, n_queries, 32), (2, few, n_keys, 32), (2, few, n_keys, 208), dtype=dtype
        )
        exact = [x.astype(np.float64) for x in (query, key, value)]
        got = observe(query, key, value, statistics="log_sum_exp", engine="fused", **how)
        want = observe(*exact, statistics="log_sum_exp", engine="textbook", **how)
        close(got.output, want.output)
        close(got.log_sum_exp, want.log_sum_exp, times=8)


def test_few_queries_and_values_that_are_not_finite():
    query, key, value = draw((2, 1, 32), (2, 500, 32), (2, 500, 32))
    value[0, 100, 3], value[0, 400, 5], value[1, 499, 7] = np.nan, np.inf, np.nan
    got = attend(query, key, value, engine="fused")
    want = attend(query, key, value, engine="textbook")
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    hidden = attend(query, key, value, causal=True, query_offset=99, engine="fused")
    assert np.isfinite(hidden).all()


@pytest.mark.parametrize("size", [1, 3, 8, 11, 16])
@pytest.mark.parametrize("n", [10, 20, 40])
def test_a_value_that_is_not_finite_is_met_in_any_column(n, size):
    for column in range(size):
        query, key, value = draw((1, n, 8), (1, n, 8), (1, n, size))
        value[0, -1, column] = np.inf  # of weight 0 where it is not seen
        got = attend(query, key, value, causal=True, engine="fused")
        want = attend(query, key, value, causal=True, engine="textbook")
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
        assert not np.isnan(got).any()


def test_rows_that_see_no_key_are_zero_whatever_came_before(monkeypatch):
    query, key, value = draw((1, 48, 16), (1, 48, 16), (1, 48, 16))
    attend(query, key, np.full_like(value, np.inf), engine="fused", threads=1)  # in the scratch
    monkeypatch.setattr(contain, "run", None)  # nothing is to be contained
    for function in (attend, lambda *given, **how: attention(*given, **how).output):
        got = function(query, key, value, key_lengths=0, engine="fused", threads=1)
        np.testing.assert_array_equal(got, 0)


@pytest.mark.parametrize("how", [{}, {"causal": True}, {"key_lengths": 0}])
def test_what_lies_in_the_scratch_from_before_does_not_matter(how, monkeypatch):
    given = draw((1, 60, 16), (1, 60, 16), (1, 60, 16))
    for function in (attend, attention, observe):
        want = function(*given, threads=1, **how)
        with monkeypatch.context() as only:
            launch._local.scratch[0][...] = np.nan
            only.setattr(contain, "run", None)  # nothing is to be contained
            got = function(*given, threads=1, **how)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_decoding_step_is_its_row():
    query, key, value = draw((4, 200, 64), (4, 200, 64), (4, 200, 64))
    whole = attend(query, key, value, causal=True, engine="fused")
    for step in (63, 64, 150, 199):
        one = attend(query[:, step : step + 1], key[:, : step + 1], value[:, : step + 1],
                     causal=True, engine="fused")  # fmt: skip
        close(one, whole[:, step : step + 1].astype(np.float64))


def test_decoding_has_the_same_bits_for_any_number_of_threads():
    query, key, value = draw((2, 1, 64), (2, 20_000, 64), (2, 20_000, 64))
    whole = [attend(query, key, value, threads=n) for n in (1, 2, 3, 8)]
    for other in whole[1:]:
        np.testing.assert_array_equal(other, whole[0])


def test_asking_ahead_changes_nothing_but_time(monkeypatch):
    asking, kernel = [], decode.run

    def noted(counter, budget, call, *arguments):
        asking.append(bool(call["asks"][0]))
        kernel(counter, budget, call, *arguments)

    query, key, value = draw((2, 1, 64), (2, 700, 64), (2, 700, 144))
    want = attend(query, key, value, engine="fused")
    monkeypatch.setattr(decode, "run", noted)
    for least, asks in ((2**30, False), (0, True)):
        monkeypatch.setattr(tables, "ASKED_BYTES", least)
        tables._kept.cache_clear()
        planning.clear()
        np.testing.assert_array_equal(attend(query, key, value, engine="fused"), want)
        assert asking[-1] is asks
    tables._kept.cache_clear()
    planning.clear()


WHOLE = """
    import numpy as np
    from scaledot import attend
    rng = np.random.default_rng(0)
    n = {n}
    for dtype in ("f2", "f4", "f8"):
        query, key, value = rng.standard_normal((3, 2, n, 6)).astype(dtype)
        bias, mask = rng.standard_normal((n, n)), rng.random((2, 1, n)) > 0.3
        exact = [x.astype("f8") for x in (query, key, value)]
        for how in ({{}}, dict(causal=True), dict(window=(3, 1), bias=bias), dict(mask=mask),
                    dict(softcap=2.0, sinks=0.5), dict(bias=bias[:1], causal=True, query_offset=2)):
            got = attend(query, key, value, engine="fused", **how)
            want = attend(*exact, engine="textbook", **how)
            budget = 64 * max(np.finfo(dtype).eps, 1e-16)
            assert np.abs(got - want).max() < budget, (dtype, how, np.abs(got - want).max())
        for rows in (1, 3, 5):
            one, keys, values = (rng.standard_normal(shape).astype(dtype)
                                 for shape in ((2, rows, 16), (2, 70, 16), (2, 70, 16)))
            got = attend(one, keys, values, engine="fused")
            want = attend(*(x.astype("f8") for x in (one, keys, values)), engine="textbook")
            assert np.abs(got - want).max() < budget
    print("ok")
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width(width):
    assert run(WHOLE.format(n=70), SCALEDOT_VECTOR_BYTES=width) == "ok"


@pytest.mark.parametrize("width", [16])
def test_without_the_jit(width):
    assert run(WHOLE.format(n=6), SCALEDOT_VECTOR_BYTES=width, NUMBA_DISABLE_JIT=1) == "ok"


FENCED = """
    import ctypes, mmap
    import numpy as np
    from scaledot import attend, observe
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    kept = []

    def fenced(x, at_end):
        \"\"\"Return a copy whose first or last byte lies beside memory that nobody may touch.\"\"\"
        n = -(-x.nbytes // page) * page
        room = mmap.mmap(-1, n + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(room))
        for fence in (start, start + page + n):
            assert libc.mprotect(ctypes.c_void_p(fence), page, 0) == 0
        kept.append(room)
        copy = np.frombuffer(room, x.dtype, x.size, page + (n - x.nbytes if at_end else 0))
        copy = copy.reshape(x.shape)
        copy[...] = x
        return copy

    rng = np.random.default_rng(0)
    for dtype in ("f2", "f4", "f8"):
        for T, S, D, E in ((50, 97, 17, 5), (48, 96, 16, 16), (1, 700, 32, 64), (3, 65, 16, 32),
                           (65, 130, 33, 80), (1, 64, 16, 16), (17, 8, 1, 1)):
            given = [rng.standard_normal(shape) for shape in ((4, T, D), (2, S, D), (2, S, E))]
            bias, mask = rng.standard_normal((T, S)), rng.random((4, T, S)) > 0.2
            for at_end in (False, True):
                query, key, value = (fenced(x.astype(dtype), at_end) for x in given)
                out = fenced(np.zeros((4, T, E), dtype), at_end)
                sums = np.result_type(dtype, "f4")
                for how in ({}, dict(causal=True, mask=fenced(mask, at_end)),
                            dict(bias=fenced(bias.astype(sums), at_end), softcap=3.0)):
                    attend(query, key, value, engine="fused", out=out, **how)
                    plain = attend(*(x.astype(dtype) for x in given), engine="fused", **how)
                    np.testing.assert_array_equal(out, plain)
    print("ok")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no mprotect")
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_beside_an_array_is_touched(width):
    """Memory beside each array may not be read: a step outside ends the process."""
    assert run(FENCED, SCALEDOT_VECTOR_BYTES=width) == "ok"


def test_arrays_are_read_and_written_within_their_bounds():
    """Each array lies in a sea of NaN; a step outside would show in the result or in the sea."""

    def afloat(x):
        sea = np.full(tuple(n + 6 for n in x.shape), np.nan, x.dtype)
        inside = sea[tuple(slice(3, n + 3) for n in x.shape)]
        inside[...] = x
        return sea, inside

    for n_queries, n_keys, size in ((50, 97, 17), (48, 96, 16), (1, 5, 3), (65, 200, 33)):
        query, key, value = draw((3, n_queries, size), (3, n_keys, size), (3, n_keys, size))
        (bias,) = draw((n_queries, n_keys), seed=3)
        want = attend(query, key, value, bias=bias, engine="fused")
        seas = [afloat(x) for x in (query, key, value, bias)]
        sea, out = afloat(np.zeros_like(want))
        insides = [inside for _, inside in seas]
        attend(*insides[:3], bias=insides[3], engine="fused", out=out)
        np.testing.assert_array_equal(out, want)
        out[...] = np.nan
        assert np.isnan(sea).all()


# ------------------------------------------------------------------------- threads and processes


def test_the_same_bits_for_any_number_of_threads():
    query, key, value = draw(*[(4, 300, 32)] * 3)
    whole = [attend(query, key, value, causal=True, threads=n) for n in (1, 2, 3, 8)]
    for other in whole[1:]:
        np.testing.assert_array_equal(other, whole[0])


def test_many_threads_at_once():
    query, key, value = draw(*[(4, 200, 16)] * 3)
    want = attend(query, key, value)
    wrong = []

    def call():
        for _ in range(20):
            if not np.array_equal(attend(query, key, value), want):
                wrong.append(1)

    callers = [threading.Thread(target=call) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize("module", [forward, decode])
def test_a_kernel_is_compiled_by_the_caller_before_it_is_shared(module, monkeypatch):
    """A thread of the pool that compiled would keep Ctrl-C waiting for seconds."""
    seen, kernel = [], module.run

    def noted(counter, budget, *arguments):
        seen.append((threading.current_thread() is threading.main_thread(), budget > 0))
        kernel(counter, budget, *arguments)

    monkeypatch.setattr(module, "run", noted)
    n_queries = 300 if module is forward else 1
    for dtype in (np.float32, np.float16):
        shapes = (4, n_queries, 64), (4, 4000, 64), (4, 4000, 64)
        query, key, value = draw(*shapes, dtype=dtype)
        seen.clear()
        attend(query, key, value, threads=2)
        assert seen[0] == (True, False)
        assert all(does for _, does in seen[1:])
        seen.clear()
        attend(query, key, value, threads=2)
        assert all(does for _, does in seen)


def test_threads_are_limited_in_every_way_a_call_can_go(monkeypatch):
    seen = set()
    work = threads.Job.work
    monkeypatch.setattr(
        threads.Job, "work", lambda job: (seen.add(threading.get_ident()), work(job))
    )
    query, key, value = draw((8, 300, 64), (8, 300, 64), (8, 300, 64))
    for _ in range(2):  # as new, and as known
        attention(query, key, value, threads=1)
        attend(query, key, value, threads=1)
        observe(query, key, value, threads=1)
    assert not seen
    attention(query, key, value, threads=2)
    assert seen


def test_an_error_in_a_helper_reaches_the_caller():
    def kernel(counter, budget):
        time.sleep(0.01)
        counter[0] += 1
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("helper")

    with pytest.raises(RuntimeError, match="helper"):
        threads.run(kernel, 100, 1, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_fork_after_use():
    code = """
        import os
        import numpy as np
        from scaledot import attend
        x = np.random.default_rng(0).standard_normal((4, 300, 32)).astype("f4")
        want = attend(x, x, x)
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                os._exit(0 if np.array_equal(attend(x, x, x), want) else 1)
            assert os.waitpid(pid, 0)[1] == 0
        print("ok")
    """
    assert run(code, SCALEDOT_NUM_THREADS=2) == "ok"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to a child")
@pytest.mark.parametrize(
    ("call", "n"), [("attend(x, x, x)", 16_384), ("observe(x, x, statistics='received')", 131_072)]
)
def test_ctrl_c_stops_soon(call, n):
    code = f"""
        import signal
        import numpy as np
        from scaledot import attend, observe
        signal.signal(signal.SIGINT, signal.default_int_handler)  # may be ignored by a parent
        call = lambda x: {call}
        call(np.ones((1, 200, 64), "f4"))
        x = np.ones((1, {n}, 64), "f4")
        print("ready", flush=True)
        for _ in range(1000):
            call(x)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.5)
    start = time.perf_counter()
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=30)
    assert "KeyboardInterrupt" in error
    # 0.2 s to stop, and the time in which Python ends on a busy machine
    assert time.perf_counter() - start < 2


def test_environment_is_checked():
    code = """
        from scaledot.fused import target
        for call in (target.n_threads, target.vector_bytes):
            try:
                call()
            except ValueError as error:
                print(error)
    """
    said = run(code, SCALEDOT_NUM_THREADS="many", SCALEDOT_VECTOR_BYTES="48")
    assert "SCALEDOT_NUM_THREADS must be a number from 1 on, got 'many'" in said
    assert "SCALEDOT_VECTOR_BYTES must be one of 64, 32, 16, got '48'" in said


# ---------------------------------------------------------------------------------- compilation

FIRST = """
    import numpy as np
    from scaledot import attend
    x = np.ones((2, 60, 8), "f4")
    attend(x, x, x)
    from scaledot.fused import forward
    print(sum(forward.run.stats.cache_hits.values()), len(forward.run.signatures))
"""


def test_kernels_are_kept(tmp_path):
    folder = tmp_path / "cache"
    assert run(FIRST, SCALEDOT_CACHE_DIR=folder) == "0 1"
    assert run(FIRST, SCALEDOT_CACHE_DIR=folder) == "1 1"
    # other widths and processors have folders of their own
    assert run(FIRST, SCALEDOT_CACHE_DIR=folder, SCALEDOT_VECTOR_BYTES=16).startswith("0")
    assert len(list(folder.iterdir())) == 2
    # a damaged file is as if it were not there
    for file in folder.rglob("*.nbc"):
        file.write_bytes(b"damaged")
    assert run(FIRST, SCALEDOT_CACHE_DIR=folder) == "0 1"


def test_a_kernel_elsewhere_is_compiled_anew_when_its_file_changes(tmp_path):
    code = f"""
        import sys
        import numpy as np
        sys.path.insert(0, {str(tmp_path)!r})
        import mine
        x = np.zeros(1)
        mine.fill(x)
        print(x[0])
    """
    source = """
        from scaledot.fused.jit import entry

        NUMBER = {number}

        @entry
        def fill(x):
            x[0] = NUMBER
    """
    for number in (1.0, 2.5):
        (tmp_path / "mine.py").write_text(textwrap.dedent(source.format(number=number)))
        assert run(code, SCALEDOT_CACHE_DIR=tmp_path / "cache") == str(number)


def test_nothing_fails_where_nothing_can_be_written(tmp_path):
    file = tmp_path / "file"
    file.write_text("in the way")
    assert run(FIRST, SCALEDOT_CACHE_DIR=file / "cache") == "0 1"
    assert run(FIRST, HOME=file, XDG_CACHE_HOME="") == "0 1"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="the platform has no owners of files")
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    assert run(FIRST, SCALEDOT_CACHE_DIR=folder) == "0 1"
    assert not list(folder.iterdir())


def test_few_kernels_serve_all_kinds_of_calls():
    before = set(forward.run.signatures)
    query, key, value = draw((2, 4, 40, 8), (2, 2, 50, 8), (2, 2, 50, 8))
    (bias,) = draw((40, 50))
    mask = bias > 0
    for arrays in (
        (query, key, value),
        (query[..., ::2], key[..., ::2], value[:, :, ::-1]),
        (query[0, 0], key[0, 0], value[0, 0]),
    ):
        for how in (
            {},
            {"bias": bias},
            {"bias": bias[0].astype(np.float64), "mask": mask},
            {"mask": mask[:, ::-1], "softcap": 1.0, "sinks": 0.0},
            {"causal": True, "window": (3, 3), "key_lengths": 30, "query_offset": 0},
        ):
            attend(*arrays, engine="fused", **how)
            observe(*arrays[:2], statistics="log_sum_exp", engine="fused", **how)
            vjp(*arrays, engine="fused", **how)
    assert len(set(forward.run.signatures) - before) <= 12


def test_without_numba_everything_runs_and_the_plan_says_so():
    code = """
        import importlib.util, sys
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if name == "numba" else find(name, *a)
        sys.modules["numba"] = None
        import numpy as np
        from scaledot import attend, plan
        x = np.ones((2, 60, 8), "f4")
        assert abs(attend(x, x, x) - 1).max() < 1e-6
        print(plan(x, x, x).engine, "|", plan(x, x, x).why)
        try:
            attend(x, x, x, engine="fused")
        except ValueError as error:
            print(error)
    """
    said = run(code)
    assert "blockwise | in O(T + S) memory; not fused, because numba is not installed" in said
    assert "engine 'fused' cannot do this: numba is not installed" in said


def test_the_plan_chooses_by_sizes_alone():
    small, large = draw((4, 8), seed=1)[0], draw((2, 60, 8))[0]
    assert plan(small, small, small).engine == "textbook"
    assert plan(large, large, large).engine == "fused"
    assert str(plan(large, large, large, threads=3)).endswith("at most 3")
    assert simd.VECTOR_BYTES in WIDTHS
