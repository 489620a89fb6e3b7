"""The shell: what it writes is what the library returns; what it refuses is one line."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import scaledot
from scaledot import cli, files, planning, slices
from scaledot.statistics import DEFAULT

SENTENCE = Path(__file__).parents[1] / "examples" / "sentence.npz"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shell(capsys):
    """Run one command line in this process: exit code, stdout, stderr."""

    def run(*arguments):
        code = cli.shell([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def refused(shell):
    """Run what must be refused: one line, exit code 2, no file made, changed or left behind."""

    def run(*arguments):
        before = listing()
        code, _, err = shell(*arguments)
        assert code == 2
        assert re.fullmatch(r"scaledot: .+\n", err), err
        assert "Traceback" not in err
        assert listing() == before
        return err

    return run


def draw(*shapes, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def names():
    return sorted(path.name for path in Path().iterdir())


def listing():
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in Path().rglob("*")}


def save(query, key, value, **more):
    arrays = {"query": query, "key": key, "value": value, **more}
    np.savez("in.npz", **{name: x for name, x in arrays.items() if x is not None})


def small(**more):
    query, key, value = draw((2, 3, 4), (2, 5, 4), (2, 5, 3))
    save(**{"query": query, "key": key, "value": value} | more)


# ----------------------------------------------------------------- the same as the library's calls

PLAIN = draw((2, 7, 4), (2, 9, 4), (2, 9, 3))
LONG = draw((2, 9, 4), (2, 7, 4), (2, 7, 3))
BATCH = draw((3, 1, 2, 7, 4), (2, 1, 9, 4), (2, 1, 9, 3))
GROUPS = draw((4, 7, 4), (2, 9, 4), (2, 9, 3))
MASK = np.random.default_rng(1).random((7, 9)) < 0.6
BIAS = np.where(MASK, np.random.default_rng(2).normal(size=(2, 7, 9)), -np.inf)
LENGTHS = np.array([4, 9])

# name: (query, key, value), what the file holds besides, flags, the same as keywords
CASES = {
    "plain": (PLAIN, {}, [], {}),
    "two axes": ([x[0] for x in PLAIN], {}, [], {}),
    "one query": (draw((2, 1, 4), (2, 9, 4), (2, 9, 3)), {}, ["--causal"], {"causal": True}),
    "groups of heads": (GROUPS, {}, ["--causal"], {"causal": True}),
    "leading axes": (BATCH, {}, ["--causal"], {"causal": True}),
    "fewer queries, causal": (PLAIN, {}, ["--causal"], {"causal": True}),
    "more queries, causal": (LONG, {}, ["--causal"], {"causal": True}),
    "offset": (
        PLAIN,
        {},
        ["--causal", "--query-offset", -2],
        {"causal": True, "query_offset": -2},
    ),
    "window": (PLAIN, {}, ["--window", 2, 1], {"window": (2, 1)}),
    "window open on the left": (PLAIN, {}, ["--window", "none", 0], {"window": (None, 0)}),
    "scale, softcap": (
        PLAIN,
        {},
        ["--scale", -0.7, "--softcap", 1.5],
        {"scale": -0.7, "softcap": 1.5},
    ),
    "textbook": (PLAIN, {}, ["--engine", "textbook"], {"engine": "textbook"}),
    "blockwise": (PLAIN, {}, ["--engine", "blockwise", "--threads", 1], {"engine": "blockwise"}),
    "lengths": (
        PLAIN,
        {},
        ["--key-lengths", 6, "--query-lengths", 4, "--causal"],
        {"key_lengths": 6, "query_lengths": 4, "causal": True},
    ),
    "no key": (PLAIN, {}, ["--key-lengths", 0], {"key_lengths": 0}),
    "queries of one length": (PLAIN, {}, ["--query-lengths", 3], {"query_lengths": 3}),
    "mask": (PLAIN, {"mask": MASK}, ["--causal"], {"causal": True}),
    "mask for all rows": (PLAIN, {"mask": MASK[:1]}, [], {}),
    "mask of keys": (PLAIN, {"mask": MASK[0]}, [], {}),
    "bias": (PLAIN, {"bias": BIAS}, ["--window", 3, 3], {"window": (3, 3)}),
    "bias for all rows": (PLAIN, {"bias": BIAS[:, :1]}, [], {}),
    "sinks": (PLAIN, {"sinks": np.array([0.5, -1.0])}, ["--causal"], {"causal": True}),
    "sink": ([x[0] for x in PLAIN], {"sinks": np.array(0.5)}, [], {}),
    "lengths in the file": (
        [x[:2] if x.ndim > 4 else x[:, None] for x in draw((2, 2, 7, 4), (2, 9, 4), (2, 9, 3))],
        {"key_lengths": LENGTHS.astype(np.uint8), "query_lengths": np.array([7, 2], np.uint8)},
        ["--causal"],
        {"causal": True},
    ),
    "offsets in the file": (
        draw((2, 2, 7, 4), (2, 2, 9, 4), (2, 2, 9, 3)),
        {"key_lengths": LENGTHS, "query_offset": np.array([-1, 3])},
        ["--window", 2, 2],
        {"window": (2, 2)},
    ),
    "one offset in the file": (
        PLAIN,
        {"query_offset": np.array(1)},
        ["--causal"],
        {"causal": True},
    ),
    "no query": (draw((2, 0, 4), (2, 9, 4), (2, 9, 3)), {}, [], {}),
    "no keys": (draw((2, 7, 4), (2, 0, 4), (2, 0, 3)), {}, [], {}),
    "no head": (draw((0, 7, 4), (0, 9, 4), (0, 9, 3)), {}, [], {}),
    "float32": ([x.astype(np.float32) for x in PLAIN], {}, ["--causal"], {"causal": True}),
    "float16": ([x.astype(np.float16) for x in PLAIN], {}, ["--causal"], {"causal": True}),
    "integers": ([x.astype(np.int8) for x in PLAIN], {}, [], {}),
}
ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3}


def expected(case):
    (query, key, value), stored, _, how = case
    how = how | {name: x if x.ndim else x.item() for name, x in stored.items()}
    output, weights = scaledot.attention(query, key, value, **how)
    return {
        "output": output,
        "log_sum_exp": scaledot.observe(query, key, value, **how).log_sum_exp,
        "weights": weights,
    }


@pytest.mark.parametrize("scores", [1, 40, 2**24])
@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_what_the_library_returns(shell, monkeypatch, name, scores):
    monkeypatch.setattr(slices, "SCORES_A_SLICE", scores)
    (query, key, value), stored, flags, _ = CASES[name]
    save(query, key, value, **stored)
    code, _, err = shell("run", "in.npz", *flags, "--output", "out.npz")
    assert (code, err) == (0, "")
    with np.load("out.npz", allow_pickle=False) as found:
        assert found.files == ["output", "log_sum_exp", "weights"]
        for which, x in expected(CASES[name]).items():
            assert found[which].dtype == x.dtype
            rounding = ROUNDING[x.dtype.name]
            np.testing.assert_allclose(found[which], x, rounding, rounding, err_msg=which)
    assert names() == ["in.npz", "out.npz"]


def test_statistics_in_slices_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr(slices, "SCORES_A_SLICE", 40)
    problem = slices.Problem(*BATCH, {"causal": True, "window": (4, None)})
    found = slices.rooms(problem)
    weights = np.empty((*found["log_sum_exp"].shape, 9))
    done = []
    slices.fill(problem, found, weights, done.append)
    assert len(done) > 2
    assert sum(done) == 7
    whole = scaledot.observe(*BATCH, causal=True, window=(4, None))
    for name in ("output", *DEFAULT):
        x = getattr(whole, name)
        assert found[name].dtype == x.dtype
        np.testing.assert_allclose(found[name], x, 1e-12, 1e-12, err_msg=name)


def test_a_slice_is_done_by_the_engine_of_the_plan(shell, monkeypatch):
    monkeypatch.setattr(slices, "SCORES_A_SLICE", 40)
    save(*draw((2, 40, 4), (2, 50, 4), (2, 50, 3)))
    used = []
    observe = scaledot.observe
    monkeypatch.setattr(
        scaledot, "observe", lambda *x, **how: used.append(how["engine"]) or observe(*x, **how)
    )
    code, out, _ = shell("run", "in.npz")
    assert code == 0
    assert set(used) == {"fused"}
    assert "fused" in out


# ------------------------------------------------------------------------------- reading, writing


def test_short_names_and_compression(shell):
    query, key, value = PLAIN
    np.savez_compressed("in.npz", q=query, k=key, v=value)
    assert shell("run", "in.npz", "--output", "out.npz")[0] == 0
    np.testing.assert_allclose(np.load("out.npz")["output"], scaledot.attend(query, key, value))


def test_three_npy_files(shell):
    for name, x in zip("abc", PLAIN, strict=True):
        np.save(f"{name}.npy", np.asfortranarray(x).astype(">f8"))
    assert shell("run", "a.npy", "b.npy", "c.npy", "--output", "out.npz")[0] == 0
    np.testing.assert_allclose(np.load("out.npz")["output"], scaledot.attend(*PLAIN))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_safetensors(shell, dtype):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    query, key, value = (x.astype(kind) for x in PLAIN)
    tensors = {"q": query, "key": key, "value": value, "mask": MASK, "query_offset": np.array(1)}
    safetensors.numpy.save_file(tensors, "in.safetensors")
    code, out, _ = shell("run", "in.safetensors", "--causal", "--output", "out.npz")
    assert code == 0
    assert re.search(rf"^  query +{dtype} ", out, re.MULTILINE)
    assert ("stored as float32, which holds it exactly" in out) == (dtype == "bfloat16")
    output, weights = scaledot.attention(query, key, value, mask=MASK, query_offset=1, causal=True)
    with np.load("out.npz") as found:
        for name, x in (("output", output), ("weights", weights)):
            stored = np.dtype(np.float32) if dtype == "bfloat16" else x.dtype
            assert found[name].dtype == stored
            np.testing.assert_array_equal(found[name], x.astype(stored), err_msg=name)


def test_safetensors_without_keys(shell):
    query, key, value = draw((2, 3, 4), (2, 0, 4), (2, 0, 3))
    safetensors.numpy.save_file({"q": query, "k": key, "v": value}, "in.safetensors")
    assert shell("run", "in.safetensors", "--output", "out.npz")[0] == 0
    assert not np.load("out.npz")["output"].any()


@pytest.mark.parametrize("scores", [40, 2**24])
def test_weights_in_a_file_of_their_own(shell, monkeypatch, scores):
    monkeypatch.setattr(slices, "SCORES_A_SLICE", scores)
    save(*BATCH)
    flags = ["--output", "out.npz", "--weights-to", "weights.npy"]
    code, out, _ = shell("run", "in.npz", "--causal", *flags)
    assert code == 0
    assert "weights.npy" in out
    output, weights = scaledot.attention(*BATCH, causal=True)
    with np.load("out.npz") as found:
        assert found.files == ["output", "log_sum_exp"]
        np.testing.assert_allclose(found["output"], output, 1e-12)
    np.testing.assert_allclose(np.load("weights.npy"), weights, 1e-12)
    assert names() == ["in.npz", "out.npz", "weights.npy"]


def test_weights_alone_without_an_output_file(shell):
    small()
    assert shell("run", "in.npz", "--weights-to", "weights.npy")[0] == 0
    assert np.load("weights.npy").shape == (2, 3, 5)


@pytest.mark.parametrize("shapes", [[(2, 0, 4), (2, 5, 4)], [(2, 3, 4), (2, 0, 4)]])
def test_no_weights_in_a_file_of_their_own(shell, shapes):
    query, key = draw(*shapes)
    save(query, key, key)
    assert shell("run", "in.npz", "--weights-to", "weights.npy")[0] == 0
    assert np.load("weights.npy").shape == (2, query.shape[1], key.shape[1])


def test_no_weights(shell):
    small()
    assert shell("run", "in.npz", "--output", "out.npz", "--no-weights")[0] == 0
    with np.load("out.npz") as found:
        assert found.files == ["output", "log_sum_exp"]


def test_an_older_result_is_replaced_and_a_link_is_followed(shell, folder):
    small()
    (folder / "results").mkdir()
    (folder / "results" / "out.npz").write_text("old")
    (folder / "out.npz").symlink_to(folder / "results" / "out.npz")
    assert shell("run", "in.npz", "--output", "out.npz")[0] == 0
    assert (folder / "out.npz").is_symlink()
    assert np.load("results/out.npz")["output"].shape == (2, 3, 3)


def test_nothing_is_written_without_being_asked_for(shell, monkeypatch):
    monkeypatch.setattr(cli, "WEIGHTS_LIMIT", 1)
    small()
    code, out, _ = shell("run", "in.npz")
    assert code == 0
    assert "wrote" not in out
    assert names() == ["in.npz"]


# ------------------------------------------------------------------------------------- what it says


def rows(out):
    """Return the printed table: {statistic: [min, mean, max]}."""
    found = {}
    for line in out.splitlines():
        name, *cells = line.split() or [""]
        if name in DEFAULT:
            found[name] = cells
    return found


def test_shapes_plan_and_statistics_are_printed(shell):
    save(*PLAIN, bias=BIAS)
    code, out, err = shell("run", "in.npz", "--window", 3, "none", "--output", "out.npz")
    assert (code, err) == (0, "")
    words = [line.split(maxsplit=1) for line in out.splitlines()]
    assert ["query", "float64  (2, 7, 4)"] in words
    assert ["bias", "float64  (2, 7, 9)"] in words
    assert ["window", "3 none"] in words
    plan = scaledot.plan(*PLAIN, bias=BIAS, window=(3, None))
    assert " ".join(str(plan).split()) in " ".join(out.split())
    assert "  out.npz  output, log_sum_exp, weights  (" in out
    observed = scaledot.observe(*PLAIN, bias=BIAS, window=(3, None))
    table = rows(out)
    assert list(table) == list(DEFAULT)
    for name, cells in table.items():
        x = getattr(observed, name)[observed.argmax >= 0]
        values = [float(cell) for cell in cells]
        np.testing.assert_allclose(values, [x.min(), x.mean(), x.max()], 6e-4, err_msg=name)


def test_every_line_fits_80_columns_and_has_no_trailing_space(shell):
    query, key, value = draw((2, 4, 12, 16, 128), (2, 1, 4, 1024, 128), (2, 1, 4, 1024, 128))
    save(query, key, value, bias=np.zeros((2, 4, 12, 16, 1024)))
    flags = ["--causal", "--window", 1000, 1000, "--softcap", 30, "--output", "out.npz"]
    code, out, _ = shell("run", "in.npz", *flags)
    assert code == 0
    for line in out.splitlines():
        assert len(line) <= 80, line
        assert line == line.rstrip(), line


def test_rows_without_a_key_and_rows_with_nan_are_counted_apart(shell):
    query, key, value = draw((2, 7, 4), (2, 9, 4), (2, 9, 3))
    query[0, 3] = np.nan
    save(query, key, value)
    code, out, _ = shell("run", "in.npz", "--causal", "--query-offset", -2)
    assert code == 0
    assert "over 9 rows" in out
    assert "4 of 14 rows see no key and are left out" in out
    assert "1 of 14 rows see a NaN or infinity and are left out" in out
    assert "nan" not in out


def test_statistics_that_no_row_has_are_dashes(shell):
    small()
    code, out, _ = shell("run", "in.npz", "--key-lengths", 0)
    assert code == 0
    assert rows(out) == {name: ["-", "-", "-"] for name in DEFAULT}


def test_a_negative_zero_is_printed_as_zero(shell):
    save(np.array([[0.0]]), np.array([[-1.0]]), np.array([[1.0]]))
    assert rows(shell("run", "in.npz", "--scale", "-1")[1])["max_score"] == ["0", "0", "0"]


def test_a_pipe_gets_no_escape_codes():
    done = subprocess.run(
        [sys.executable, "-m", "scaledot", "run", SENTENCE, "--causal"],
        capture_output=True,
        check=True,
    )
    assert b"\x1b" not in done.stdout
    assert done.stderr == b""


def test_a_pipe_that_knows_only_ascii():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "scaledot", "run", SENTENCE],
        capture_output=True,
        check=True,
        env=environment,
    )
    assert done.stdout.isascii()


def test_a_pipe_that_is_closed_early():
    work = subprocess.Popen(
        [sys.executable, "-m", "scaledot", "run", SENTENCE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    work.stdout.close()
    assert work.stderr.read() == b""
    work.stderr.close()
    assert work.wait() == 1


def test_a_terminal_sees_the_progress_of_long_work(shell, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    small()
    assert shell("run", "in.npz")[2] == ""
    monkeypatch.setattr(slices, "SCORES_A_SLICE", 1)
    code, _, err = shell("run", "in.npz")
    assert code == 0
    assert "3/3" in err


def test_version_help_and_info(shell):
    assert shell("--version")[:2] == (0, f"scaledot {scaledot.__version__}\n")
    code, out, _ = shell()
    assert code == 0
    assert out.startswith("Usage: scaledot")
    code, out, _ = shell("run", "--help")
    assert code == 0
    for flag in ("--causal", "--query-offset N", "--window LEFT RIGHT", "--key-lengths N",
                 "--query-lengths N", "--scale X", "--softcap X", "--engine NAME", "--threads N",
                 "--output FILE.npz", "--no-weights", "--weights-to FILE.npy"):  # fmt: skip
        assert f"  {flag} " in out
    code, out, _ = shell("info")
    assert code == 0
    assert re.search(rf"^numpy +{re.escape(np.__version__)}$", out, re.MULTILINE)
    for name in planning.ENGINES:
        assert re.search(rf"^  {name} +runs here; needs ", out, re.MULTILINE)
    assert all(len(line) <= 80 for line in out.splitlines())


def test_warm_compiles_every_kernel_once(shell, monkeypatch):
    code, out, err = shell("warm")
    assert (code, err) == (0, "")
    lines = [line.split()[:2] for line in out.splitlines()]
    types = ("float32", "float64", "float16", "bfloat16")
    kernels = ("rows", "statistics", "weights", "NaN", "decoding")
    assert lines == [[dtype, kernel] for dtype in types for kernel in kernels]
    from scaledot.fused import contain, decode, forward, observe

    entries = (forward.run, observe.run, contain.run, decode.run, decode.join)
    before = [len(entry.signatures) for entry in entries]
    assert sum(before) <= 12 * len(types)
    for dtype in (np.float16, np.float32, np.float64):
        x, mask = np.ones((2, 70, 16), dtype), np.ones((70, 70), bool)
        value = x.copy()
        value[0, 0, 0] = np.nan
        scaledot.attend(x, x, value, causal=True, bias=np.ones(70, dtype), engine="fused")
        scaledot.attend(x[:, :1], x, value, mask=mask[:1], engine="fused")
        scaledot.attention(x, x, value, mask=mask, engine="fused")
        scaledot.observe(x, x, x, statistics="all", rows=[1], sinks=0.5, engine="fused")
        scaledot.observe(x, x, statistics="received", engine="fused")
    assert [len(entry.signatures) for entry in entries] == before
    monkeypatch.setattr(cli, "missing_numba", lambda: "numba is not installed")
    code, _, err = shell("warm")
    assert code == 2
    assert "there are no kernels to compile: numba is not installed" in err


def test_every_engine_is_described():
    assert tuple(cli.ENGINES) == planning.ENGINES


def test_info_says_why_an_engine_cannot_run(shell, monkeypatch):
    def plan(*_, engine):
        raise ValueError(f"engine {engine!r} needs a spoon")

    monkeypatch.setattr(scaledot, "plan", plan)
    assert "cannot run here: engine 'textbook' needs a spoon" in shell("info")[1]


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_remedy_is_named(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from scaledot.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"scaledot: the command line needs {missing}, which is not installed: "
        'pip install "scaledot[cli]"\n'
    )


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "Missing argument 'INPUTS'"),
        (["rum"], "No such command 'rum'"),
        (["run", "in.npz", "--foo"], "No such option"),
        (["run", "in.npz", "--threads", "two"], "--threads"),
        (["run", "in.npz", "--window", "1"], "'--window' requires 2 arguments"),
        (["run", "in.npz", "--window", "1", "x"], "--window takes two of a number of keys"),
        (["run", "in.npz", "--window", "-1", "2"], "0 or more on each side, got -1"),
        (["run", "in.npz", "--engine", "fast"], "unknown engine 'fast'"),
        (["run", "in.npz", "--threads", "0"], "`threads` must be at least 1, got 0"),
        (["run", "in.npz", "--softcap", "0"], "`softcap` must be greater than 0"),
        (["run", "in.npz", "--scale", "nan"], "`scale` must be finite"),
        (["run", "in.npz", "--key-lengths", "6"], "`key_lengths` must be between 0 and 5"),
        (["run", "in.npz", "--causal", "--key-lengths", "3"], "query_offset=0"),
        (["run", "none.npz"], "no such file: none.npz"),
        (["run", "in.txt"], "inputs must be one .npz"),
        (["run", "in.npz", "in.npz"], "inputs must be one .npz"),
        (["run", "a.npy", "b.npy"], "three .npy files (query key value); got a.npy b.npy"),
        (["run", "in.npz", "--output", "out.txt"], "--output must name a .npz file, got out.txt"),
        (["run", "in.npz", "--weights-to", "w.npz"], "--weights-to must name a .npy file"),
        (["run", "in.npz", "--output", "./in.npz"], "--output would overwrite the input"),
        (["run", "in.npz", "--output", "no/out.npz"], "cannot write no/out.npz: No such file"),
        (["run", "in.npz", "--output", "folder.npz"], "folder.npz is a folder"),
        (["run", "in.npz", "--no-weights", "--weights-to", "w.npy"], "exclude each other"),
        (["run", "folder.npz"], "cannot read folder.npz: Is a directory"),
    ],
)
def test_wrong_command_lines(refused, folder, arguments, said):
    small()
    (folder / "folder.npz").mkdir()
    assert said in refused(*arguments)


@pytest.mark.parametrize("name", ["key_lengths", "query_lengths", "query_offset"])
def test_what_is_in_the_file_and_a_flag(refused, name):
    small(**{name: np.array(3)})
    flag = f"--{name.replace('_', '-')}"
    assert f"`{name}` is in the file and {flag} is given" in refused("run", "in.npz", flag, 3)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"value": None}, "in.npz lacks `value`; it holds query, key"),
        ({"query": None, "key": None}, "in.npz lacks `query` and `key`; it holds value"),
        ({"masks": MASK}, "unknown array `masks` in in.npz; known are query, key, value, mask"),
        ({"q": np.ones((3, 4))}, "in.npz holds `query` twice, as `query` and as `q`"),
        ({"mask": np.ones((3, 5))}, "`mask` must be bool, got float64"),
        ({"mask": np.ones((4, 5), bool)}, "`mask` must broadcast to (..., H, T, S)"),
        ({"bias": np.ones(5, bool)}, "`bias` must hold numbers, got bool"),
        ({"key": np.ones((2, 5, 3))}, "`key` must have the head size of `query`: need 4, got 3"),
        ({"key": np.ones((2, 5, 4), complex)}, "`key` must hold real numbers, got complex128"),
        ({"key": np.array("text")}, "`key`"),
        ({"query": np.ones(4)}, "`query` must have at least two axes"),
        ({"key_lengths": np.array([3, 4])}, "`key_lengths` must be a single int"),
        ({"key_lengths": np.array(3.0)}, "`key_lengths` must be int"),
        ({"query_offset": np.array(True)}, "`query_offset` must be"),
        ({"key_lengths": np.array(9)}, "`key_lengths` must be between 0 and 5"),
        ({"key": np.ones((2, 5, 4), ml_dtypes.bfloat16)}, "`key` in in.npz has lost its type"),
    ],
)
def test_wrong_arrays(refused, arrays, said):
    small(**arrays)
    assert said in refused("run", "in.npz", "--output", "out.npz")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_nothing_is_unpickled(refused):
    Path("bomb.npy").write_bytes(pickle.dumps(Bomb()))
    assert "bomb.npy is no NumPy array but pickled Python" in refused("run", *["bomb.npy"] * 3)
    np.save("object.npy", np.array([Bomb()]), allow_pickle=True)
    assert "object.npy holds pickled Python objects" in refused("run", *["object.npy"] * 3)
    np.savez("object.npz", q=PLAIN[0], k=PLAIN[1], v=np.array([Bomb()]))
    assert "`v` in object.npz holds pickled Python objects" in refused("run", "object.npz")
    with zipfile.ZipFile("bomb.npz", "w") as archive:
        for name in "qkv":
            archive.writestr(f"{name}.npy", pickle.dumps(Bomb()))
    assert "`q` in bomb.npz is no NumPy array but pickled" in refused("run", "bomb.npz")


def damaged(data, seed):
    """Return bytes that are cut short, or changed in a few places."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        return data[: rng.integers(len(data))]
    changed = bytearray(data)
    for place in rng.integers(min(len(data), 400), size=8):
        changed[place] = rng.integers(256)
    return bytes(changed)


@pytest.mark.parametrize("name", ["in.npz", "packed.npz", "in.npy", "in.safetensors"])
def test_damaged_files(shell, name):
    query, key, value = draw((3, 4), (5, 4), (5, 3))
    tensors = {"query": query, "key": key, "value": value}
    np.savez("in.npz", **tensors)
    np.savez_compressed("packed.npz", **tensors)
    np.save("in.npy", query)
    safetensors.numpy.save_file(tensors, "in.safetensors")
    inputs = [name] * 3 if name == "in.npy" else [name]
    data = Path(name).read_bytes()
    codes = []
    for seed in range(60):
        Path(name).write_bytes(damaged(data, seed))
        code, _, err = shell("run", *inputs)
        assert re.fullmatch(r"scaledot: .+\n" if code else "", err)
        codes.append(code)
    assert set(codes) <= {0, 2}  # 0: only numbers have changed, or what nobody reads
    assert codes.count(2) >= 30
    Path(name).write_bytes(b"")
    assert shell("run", *inputs)[0] == 2


def test_other_formats_by_a_wrong_name(refused):
    Path("text.npz").write_text("1 2 3")
    assert "cannot read text.npz: not a .npz, or a damaged one" in refused("run", "text.npz")
    Path("text.npy").write_text("1 2 3")
    assert "text.npy is no NumPy array" in refused("run", *["text.npy"] * 3)
    Path("text.safetensors").write_text("1 2 3")
    assert "cannot read text.safetensors: " in refused("run", "text.safetensors")
    with zipfile.ZipFile("other.npz", "w") as archive:
        archive.writestr("hello.txt", "hello")
    assert "unknown array `hello.txt`" in refused("run", "other.npz")


def test_safetensors_types_that_attention_does_not_take(refused):
    tensors = {name: np.ones((3, 3), ml_dtypes.float8_e4m3fn) for name in "qkv"}
    safetensors.numpy.save_file(tensors, "in.safetensors")
    err = refused("run", "in.safetensors")
    assert "`q` in in.safetensors is of type F8_E4M3; taken are bool, float16" in err


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("safetensors", 'needs safetensors: pip install "scaledot[cli]"'),
        ("ml_dtypes", "learns from ml_dtypes: pip install ml_dtypes"),
    ],
)
def test_safetensors_without_what_it_needs(refused, monkeypatch, missing, said):
    tensors = {name: np.ones((3, 3), ml_dtypes.bfloat16) for name in "qkv"}
    safetensors.numpy.save_file(tensors, "in.safetensors")
    monkeypatch.setitem(sys.modules, missing, None)
    assert said in refused("run", "in.safetensors")


def test_more_than_a_gibibyte_of_weights_is_refused_before_the_work(refused):
    query = np.zeros((20_000, 1), np.float32)
    np.savez_compressed("in.npz", q=query, k=query, v=query)
    err = refused("run", "in.npz", "--output", "out.npz")
    assert "the weights need 1.5 GiB, more than 1.0 GiB" in err
    assert "--no-weights" in err
    assert "--weights-to FILE.npy" in err


def test_a_disk_too_small_for_the_weights(refused, monkeypatch):
    small()
    monkeypatch.setattr(
        files.shutil, "disk_usage", lambda _: files.shutil._ntuple_diskusage(9, 5, 4)
    )
    assert "4 B free, the weights need 240 B" in refused("run", "in.npz", "--weights-to", "w.npy")


def test_too_little_memory(refused):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9000000, 9000000, 1000), }"
    Path("huge.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n")
    assert "scaledot: not enough memory" in refused("run", *["huge.npy"] * 3)


def test_permissions(refused, monkeypatch):
    small()

    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)
    monkeypatch.setattr(zipfile, "ZipFile", forbidden)
    assert "cannot read in.npz: Permission denied" in refused("run", "in.npz")
    assert "cannot read in.npy: Permission denied" in refused("run", *["in.npy"] * 3)
    monkeypatch.setattr(
        files, "read_inputs", lambda *_: dict(zip(files.REQUIRED, PLAIN, strict=True))
    )
    err = refused("run", "in.npz", "--output", "out.npz")
    assert "cannot write out.npz: Permission denied" in err


def test_a_full_disk_while_writing(refused, monkeypatch):
    small()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    err = refused("run", "in.npz", "--output", "out.npz")
    assert "cannot write out.npz: No space left on device" in err


# ------------------------------------------------------------------------------------------ Ctrl-C


def test_interrupted_between_two_slices(shell, monkeypatch):
    small()
    monkeypatch.setattr(slices, "SCORES_A_SLICE", 1)
    calls = []
    observe = scaledot.observe

    def stop_at_the_third(*arrays, **how):
        calls.append(how)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return observe(*arrays, **how)

    monkeypatch.setattr(scaledot, "observe", stop_at_the_third)
    code, _, err = shell("run", "in.npz", "--output", "o.npz", "--weights-to", "w.npy")
    assert (code, err) == (130, "scaledot: interrupted, nothing was written\n")
    assert names() == ["in.npz"]


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "scaledot: interrupted, nothing was written\n"),
        (signal.SIGTERM, 143, ""),
    ],
)
def test_long_work_is_stopped(number, code, said):
    query = np.zeros((100_000, 1), np.float32)  # minutes of work
    np.savez_compressed("in.npz", q=query, k=query, v=query)
    start = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # may be ignored by a parent
        "from scaledot.__main__ import main\n"
        "sys.exit(main())"
    )
    work = subprocess.Popen(
        [sys.executable, "-c", start, "run", "in.npz", "--no-weights", "--output", "out.npz"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not list(Path().glob(".*.part")):
            assert work.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        work.send_signal(number)
        out, err = work.communicate(timeout=60)
    finally:
        work.kill()
    assert (work.returncode, err) == (code, said)
    assert "plan" in out
    assert names() == ["in.npz"]
