"""Size, memory, processes and threads: what does not show in small single calls."""

import subprocess
import sys
import textwrap
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from oracle import agree, expect
from scaledot import attend, attention, observe, vjp
from strategies import ENGINES

LEAN = [name for name in ENGINES if name != "textbook"]
HEAVY = ("numba", "llvmlite", "torch", "jax", "matplotlib", "dask", "array_api_compat")


def in_a_fresh_process(code, *arguments):
    """Run code with the interpreter of the tests and return what it prints."""
    command = [sys.executable, "-W", "error", *arguments, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ------------------------------------------------------------------------ sizes


@pytest.mark.parametrize("shape", [(65537, 1, 1, 1), (1, 65537, 1, 1), (65537, 1, 1)], ids=str)
def test_more_batches_or_heads_than_sixteen_bits_count(engine, shape):
    query = np.zeros(shape)
    value = np.arange(65537.0).reshape(shape)
    output, weights = attention(query, query, value, engine=engine)
    np.testing.assert_array_equal(output, value)
    np.testing.assert_array_equal(weights, np.ones(shape))
    np.testing.assert_array_equal(attend(query, query, value, engine=engine), value)
    observed = observe(query, query, value, statistics=("argmax", "received"), engine=engine)
    assert not observed.argmax.any()
    np.testing.assert_array_equal(observed.received, np.ones(shape[:-1]))
    gradients = vjp(query, query, value, engine=engine)[1](value)
    np.testing.assert_array_equal(gradients.value, value)
    assert not gradients.query.any()


def test_many_heads_read_their_groups(engine):
    query, key = np.zeros((1, 2**17, 1, 1)), np.zeros((1, 2**16, 1, 1))
    value = np.arange(2.0**16).reshape(key.shape)
    output = attend(query, key, value, engine=engine)
    np.testing.assert_array_equal(output.ravel(), np.arange(2**17) // 2)


@pytest.mark.parametrize("engine", LEAN)
def test_more_scores_than_thirty_one_bits_count(engine):
    """50000 by 50000 pairs, of which a window of 11 and a mask in repeated memory leave 10."""
    n, window = 50_000, 10
    mask = np.broadcast_to(np.arange(n) != n - 3, (n, n))
    key = np.zeros((n, 1), np.float32)
    value = np.arange(n, dtype=np.float32)[:, None]
    asked = {"mask": mask, "window": (window, 0), "statistics": ("log_sum_exp", "argmax")}
    observed = observe(key, key, value, **asked, engine=engine)
    for i in (0, 1, window, n // 2, 46_341, n - 4, n - 3, n - 2, n - 1):
        seen = [j for j in range(max(i - window, 0), i + 1) if j != n - 3]
        mean = sum(seen) / len(seen)
        agree(observed.output[i, 0], mean, 4 * np.spacing(np.float32(mean)))
        agree(observed.log_sum_exp[i], np.log(len(seen)), 4 * np.spacing(np.float32(2)))
        assert observed.argmax[i] == seen[0]


def test_late_rows_of_a_long_sequence(engine):
    """The last rows of those 50000, every key before them seen."""
    n = 50_000
    value = np.arange(n, dtype=np.float64)[:, None]
    mask = np.broadcast_to(np.arange(n) % 2 == 0, (n, n))[-3:]
    zeros = np.zeros((n, 1))
    output = attend(zeros[-3:], zeros, value, mask=mask, causal=True, engine=engine)
    right = [(n - 4) / 2, (n - 2) / 2, (n - 2) / 2]
    agree(output[:, 0], right, 1e-9)


def test_a_long_row_keeps_its_digits(engine):
    """The sum of many weights in float32: an unpaired one would be off by n units."""
    n = 2**20
    key = np.zeros((n, 1), np.float32)
    value = np.ones((n, 1), np.float32)
    observed = observe(key[:1], key, value, engine=engine)
    agree(observed.output, [[1]], 8 * np.finfo(np.float32).eps)
    agree(observed.log_sum_exp, [20 * np.log(2)], 2 * np.spacing(np.float32(13)))


# ------------------------------------------------------------------------ memory


def peak_megabytes(call):
    """The most memory that Python and NumPy held at once during a call, above what was there."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = call()
        return (tracemalloc.get_traced_memory()[1] - before) / 1e6, result
    finally:
        tracemalloc.stop()


def test_the_measure_sees_a_score_matrix(numbers):
    query = numbers.standard_normal((1024, 8)).astype(np.float32)
    peak, _ = peak_megabytes(lambda: attend(query, query, query, engine="textbook"))
    assert peak > 4, "1024 by 1024 scores of four bytes"


@pytest.mark.parametrize("engine", LEAN)
def test_attend_needs_no_score_matrix(engine, numbers):
    n, size = 16_384, 64
    arrays = [numbers.standard_normal((1, n, size)).astype(np.float32) for _ in range(3)]
    mask = np.arange(n) % 3 > 0
    peak, output = peak_megabytes(lambda: attend(*arrays, mask=mask, engine=engine))
    assert peak - output.nbytes / 1e6 < 60
    rows = slice(n - 2, n)
    kept = [x[:, mask] for x in arrays[1:]]
    agree(output[:, rows], attend(arrays[0][:, rows], *kept), 1e-5)


@pytest.mark.parametrize("engine", LEAN)
@pytest.mark.parametrize("function", ["observe", "vjp", "grouped", "bias", "heads"])
def test_nothing_else_needs_one(engine, function, numbers):
    """4096 by 4096 scores of four bytes are 67 MB, and so are 64 heads of 512 by 512."""
    n, size = 512 if function == "heads" else 4096, 16
    n_heads = {"heads": 64, "grouped": 4}.get(function, 1)
    query = numbers.standard_normal((n_heads, n, size)).astype(np.float32)
    key, value = (numbers.standard_normal((1, n, size)).astype(np.float32) for _ in range(2))
    bias = np.broadcast_to(numbers.standard_normal(n).astype(np.float32), (1, n, n))
    call = {
        "observe": lambda: observe(query, key, value, statistics="all", engine=engine),
        "vjp": lambda: vjp(query, key, value, engine=engine)[1](query),
        "grouped": lambda: attend(query, key, value, causal=True, engine=engine),
        "bias": lambda: attend(query, key, value, bias=bias, engine=engine),
        "heads": lambda: attend(query, query, query, engine=engine),
    }[function]
    peak, _ = peak_megabytes(call)
    assert peak < 50


@pytest.mark.parametrize("engine", LEAN)
def test_memory_grows_with_the_length_not_its_square(engine, numbers):
    peaks = []
    for n in (4096, 16_384):
        query = numbers.standard_normal((64, 8)).astype(np.float32)
        key = numbers.standard_normal((n, 8)).astype(np.float32)
        peaks.append(peak_megabytes(lambda q=query, k=key: attend(q, k, k, engine=engine))[0])
    assert peaks[1] < 4 * peaks[0] + 1


# ------------------------------------------------------------------------ processes and threads


def test_importing_is_light():
    loaded = in_a_fresh_process(
        f"""
        import sys
        import scaledot
        print([name for name in {HEAVY} if name in sys.modules])
        import numpy as np
        scaledot.attention(np.ones((2, 3)), np.ones((4, 3)), np.ones((4, 1)))
        scaledot.observe([[1.0]], [[1.0]], statistics="all")
        scaledot.softmax([1.0, 2.0])
        print([name for name in ("array_api_compat", "torch", "jax") if name in sys.modules])
        """
    )
    assert loaded.split("\n")[:2] == ["[]", "[]"]


def test_importing_is_quick():
    """Beyond NumPy, whose own import is its own affair; the least of several processes."""
    code = """
        import time
        import numpy
        start = time.perf_counter()
        import scaledot
        print(time.perf_counter() - start)
        """
    assert min(float(in_a_fresh_process(code)) for _ in range(5)) < 0.05


def test_every_public_name_is_there_and_no_other():
    in_a_fresh_process(
        """
        import scaledot
        for name in scaledot.__all__:
            assert getattr(scaledot, name) is not None
        assert set(dir(scaledot)) >= set(scaledot.__all__)
        try:
            scaledot.atention
        except AttributeError as error:
            assert "atention" in str(error)
        else:
            raise AssertionError("a name that is not there was found")
        """
    )


def test_nothing_global_is_touched():
    in_a_fresh_process(
        """
        import os
        import numpy as np
        environment, errors, options = dict(os.environ), np.geterr(), np.get_printoptions()
        import scaledot
        x = np.full((8, 64, 4), -np.inf)
        for engine in ("textbook", "blockwise"):
            scaledot.attention(x, x, x, engine=engine)
        assert dict(os.environ) == environment
        assert np.geterr() == errors and np.get_printoptions() == options
        """
    )


def test_a_fork_after_use():
    """Both children finish with the result of the parent; without fork there is nothing to do."""
    in_a_fresh_process(
        """
        import os, sys, warnings
        import numpy as np
        from scaledot import attend
        query = np.random.default_rng(1).standard_normal((4, 256, 32))
        want = attend(query, query, query)
        if not hasattr(os, "fork"):
            sys.exit()
        warnings.simplefilter("ignore")  # Python's own, that forking beside threads is a risk
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                same = attend(query, query, query).tobytes() == want.tobytes()
                os._exit(0 if same else 1)
            children.append(child)
        for child in children:
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
        assert attend(query, query, query).tobytes() == want.tobytes()
        """
    )


def test_many_python_threads_at_once(engine):
    """Eight threads, two hundred calls each, of many shapes so that plans are made at once."""
    numbers = np.random.default_rng(5)
    calls = []
    for n in range(200):
        T, S, D = 1 + n % 7, 1 + n % 5, 1 + n % 3
        arrays = [numbers.standard_normal(shape) for shape in ((2, T, D), (2, S, D), (2, S, 2))]
        calls.append((arrays, {"causal": n % 2 == 0, "scale": 1 + n / 7, "engine": engine}))
    started = threading.Barrier(8)

    def all_of_them(_):
        started.wait()
        return [attend(*arrays, **how).tobytes() for arrays, how in calls]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(all_of_them, range(8)))
    serial = [attend(*arrays, **how).tobytes() for arrays, how in calls]
    assert all(result == serial for result in results)
    for arrays, how in calls[:5]:
        want, budget = expect(*arrays, causal=how["causal"], scale=how["scale"])
        agree(attend(*arrays, **how), want.output, budget.output())
