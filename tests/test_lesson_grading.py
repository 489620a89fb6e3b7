"""The lesson judges code by what it does: limits, the bank of mistakes, verdicts, the shell."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from scaledot import cli
from scaledot.lesson import content, mistakes, recipes, texts
from scaledot.lesson import run as running
from scaledot.lesson.judge import CHECKS, NoVerdict, bank_of, judge
from scaledot.lesson.mistakes import alike, bank, names
from scaledot.lesson.run import USUAL, Limits, Run, remembered, run
from scaledot.lesson.tables import LANGUAGES

LESSON = content.load()
EXERCISE = LESSON.exercises["attention"]
QUICK = Limits(seconds=0.4)
# Where the system sets no limit of memory (Windows, macOS) the child watches itself.
WATCHED = Limits(seconds=20, memory=2**27, system=False)

MODEL = EXERCISE.solution
BODY = """\
def attention(Q, K, V):
    d_k = Q.shape[-1]
    S = Q @ K.T / np.sqrt(d_k)
    A = softmax(S, eksen=-1)
    return A @ V, A
"""
assert BODY in MODEL


def solved(body):
    """Return the starter's softmax and a body of `attention`, without what is to be printed."""
    return MODEL[: MODEL.index("rng =")] + body


# ------------------------------------------------------------------------------------ the bank


@pytest.mark.parametrize("family", recipes.FAMILIES)
def test_every_single_mistake_is_told_from_every_other(family):
    known = bank(recipes.FAMILIES[family])
    singles = [(wrong, outcomes) for wrong, outcomes in known.entries if len(wrong) <= 1]
    assert {wrong for wrong, _ in singles} == {
        (),
        *((name,) for name in names(recipes.FAMILIES[family])),
    }
    for wrong, outcomes in singles:
        assert known.name(outcomes) == wrong
        for other, others in singles:
            if wrong != other:
                assert not all(map(alike, outcomes, others)), (wrong, other)


def same_numbers(one, other):
    """Say whether two outcomes are the same, by another way than the bank's."""
    if one.error or other.error:
        return bool(one.error) == bool(other.error)
    return one.several == other.several and all(
        x.values.shape == y.values.shape
        and np.allclose(x.values, y.values, rtol=1e-7, atol=1e-7, equal_nan=True)
        for x, y in zip(one.results, other.results, strict=True)
    )


@pytest.mark.parametrize(
    ("family", "share"),
    [("attention", 0.8), ("softmax", 0.6), ("causal_attention", 0.9), ("merge", 0.9)],
)
def test_pairs_are_named_or_do_what_something_simpler_does(family, share):
    known = bank(recipes.FAMILIES[family])
    pairs = [(wrong, outcomes) for wrong, outcomes in known.entries if len(wrong) == 2]
    named = 0
    for wrong, outcomes in pairs:
        same = [x for x, others in known.entries if all(map(same_numbers, others, outcomes))]
        simplest = min(same, key=len)  # of as many mistakes the earliest
        assert known.name(outcomes) == simplest
        assert simplest, wrong  # two mistakes are not right
        named += simplest == wrong
    assert named > share * len(pairs)
    assert known.name(known.right[:-1]) is None  # what ended before the last case says nothing


def test_what_is_alike():
    def outcome(values, dtype="float64", several=False):
        result = mistakes.Result(np.array(values, float), dtype)
        return mistakes.Outcome((result,), several)

    assert alike(outcome([1.0]), outcome([1 + 1e-9]))
    assert not alike(outcome([1.0]), outcome([1 + 1e-6]))
    assert alike(outcome([1.0], "float32"), outcome([1 + 1e-6]))
    assert alike(outcome([np.nan]), outcome([np.nan]))
    assert not alike(outcome([1.0]), outcome([1.0], several=True))
    assert not alike(outcome([1.0]), outcome([[1.0]]))


# -------------------------------------------------------------------------------- one run's limits


@pytest.mark.parametrize(
    ("code", "stage", "line"),
    [
        ("x = 1\nwhile True:\n    pass", "timeout", 2),
        ("import time\n\ntime.sleep(60)", "timeout", 3),
        ("while True:\n    print('x' * 100)", "output", 2),
        ("import os\nos._exit(3)", "died", None),
    ],
)
def test_what_does_not_end_well_is_stopped(code, stage, line):
    found = run(code, "attention", recipes.ATTENTION.cases, QUICK)
    assert found.stage == stage
    assert line is None or found.line in (line, line + 1)
    assert len(found.printed) <= QUICK.output


@pytest.mark.parametrize("end", ["raise SystemExit", "import sys\nsys.exit(0)"])
def test_a_program_may_end_itself(end):
    found = run(f"def f():\n    return 1\n\n{end}", "f", ((),), QUICK)
    assert (found.stage, len(found.outcomes)) == ("done", 1)


@pytest.mark.parametrize(
    ("code", "kind", "line"),
    [
        ("x = 1\ndef f(:\n", "SyntaxError", 2),
        ("x = 1\n1 / 0", "ZeroDivisionError", 2),
        ("raise SystemExit(1)", "SystemExit", 1),
        ("x = input()", "EOFError", 1),
        ("def f():\n    f()\n\nf()", "RecursionError", 2),
        ("import nonsense", "ModuleNotFoundError", 1),
    ],
)
def test_errors_come_with_the_learners_line(code, kind, line):
    found = run(code, limits=QUICK)
    assert found.stage == ("syntax" if kind == "SyntaxError" else "raised")
    assert (found.error.kind, found.error.line) == (kind, line)


def test_memory_is_limited_with_and_without_the_system():
    code = "held = []\nwhile True:\n    held.append(bytearray(10**7))"
    assert run(code, limits=WATCHED)[0] == "memory"
    if sys.platform == "linux":
        found = run(code, limits=Limits(seconds=20))
        assert (found.stage, found.error.kind, found.error.line) == ("raised", "MemoryError", 3)
        assert judge(EXERCISE, code).message == "memory"


def test_half_a_surrogate_pair_comes_back_as_text():
    code = "print('ğ\\ud800')\nimport warnings\nwarnings.warn('\\udc80')\nraise OSError('\\udfff')"
    found = run(code, limits=QUICK)
    assert (found.printed, found.error.message) == ("ğ?\n", "?")
    assert "UserWarning: ?" in found.complained
    assert run("x = '\ud800'", limits=QUICK).error.kind == "UnicodeEncodeError"


def test_a_run_that_was_stopped_is_not_remembered(tmp_path):
    runs = tmp_path / "runs"
    code = f"""
import os
with open({str(runs)!r}, "a") as file:
    file.write("x")
if os.path.getsize({str(runs)!r}) == 1:
    os._exit(3)
print("done")
"""
    assert [remembered(code).stage for _ in range(3)] == ["died", "done", "done"]
    assert runs.read_text() == "xx"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the watch ends it first")
@pytest.mark.parametrize("piece", ["bytearray(99)", "[0]", "'a' * 10**6"])
def test_memory_that_runs_out_in_pieces_of_any_size_is_told(piece):
    loop = f"held = []\ndef f():\n    while True:\n        held.append({piece})\n"
    tight = Limits(seconds=20, memory=2**28)
    found = run(f"{loop}f()", limits=tight)
    assert (found.stage, found.error.kind) == ("raised", "MemoryError")
    assert found.error.line in (3, 4)
    found = run(loop, "f", ((),), tight)
    assert found.stage == "memory"
    assert found.line in (3, 4)
    caught = f"{loop}try:\n    f()\nexcept MemoryError:\n    pass"
    assert run(caught, limits=tight).stage == "done"


def test_an_array_that_is_too_large_is_told_as_memory_wherever_it_is_made():
    function = "def attention(Q, K, V):\n    return np.ones((10**6, 10**6)), K\n"
    for code in (solved(function), solved(f"{function}attention(Qk, Kk, Vk)")):
        assert judge(EXERCISE, code).message == "memory"


def test_a_run_keeps_to_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.chdir(tmp_path)
    code = (
        "import os, pathlib\nprint('SECRET' in os.environ, os.listdir())\n"
        "pathlib.Path('made').write_text('x')\nprint('ğüşıİöç')"
    )
    found = run(code)
    assert (found.stage, found.printed) == ("done", "False []\nğüşıİöç\n")
    assert list(tmp_path.iterdir()) == []


def test_what_a_function_returns_is_seen():
    code = (
        "import numpy as np, sys\n"
        "def f(x):\n    print('hidden')\n    x += 1\n"
        "    return x[:1], None, [1, [2]], np.float32([2])\n"
        "sys.stderr.write('careful')"
    )
    found = run(code, "f", ["(np.array([1.0, 2.0]),)"])
    assert (found.printed, found.complained, found.touched) == ("", "careful", True)
    (outcome,) = found.outcomes
    one, nothing, ragged, single = outcome.results
    assert outcome.several
    assert (one.values.tolist(), nothing, ragged) == ([2.0], "NoneType", "list")
    assert single.dtype == "float32"
    assert run("def f(x): return x[5]", "f", ["(np.ones(2),)"]).outcomes[0].error.line == 1


# ------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize("name", LESSON.exercises)
def test_the_solution_passes_and_the_starter_does_not(name):
    exercise = LESSON.exercises[name]
    verdict = judge(exercise, exercise.solution)
    assert (verdict.right, verdict.message, verdict.score) == (True, "right", 1.0)
    assert not judge(exercise, exercise.started("tr")).right


# Programs as learners write them, in every style: the mistake is named by what they return.
SUBMITTED = {
    "attention": [
        (
            ("key.not_transposed",),
            "    A = softmax(Q @ K / np.sqrt(Q.shape[1]))\n    return A @ V, A",
        ),
        (("scale.none",), "    A = softmax(np.einsum('td,sd->ts', Q, K))\n    return A @ V, A"),
        (("scale.d",), "    A = softmax(Q @ K.T / Q.shape[-1])\n    return A @ V, A"),
        (("scale.times",), "    A = softmax(Q @ K.T * np.sqrt(Q.shape[-1]))\n    return A @ V, A"),
        (("scale.sqrt_length",), "    A = softmax(Q @ K.T / len(Q) ** 0.5)\n    return A @ V, A"),
        (("scale.sqrt_dv",), "    A = softmax(Q @ K.T / np.sqrt(V.shape[1]))\n    return A @ V, A"),
        (
            ("place.after_softmax",),
            "    A = softmax(Q @ K.T) / Q.shape[1] ** 0.5\n    return A @ V, A",
        ),
        (("place.on_output",), "    A = softmax(Q @ K.T)\n    return A @ V / Q.shape[1] ** 0.5, A"),
        (
            ("softmax.not_divided",),
            "    S = Q @ K.T / np.sqrt(Q.shape[1])\n"
            "    A = np.exp(S - S.max(1, keepdims=True))\n    return A @ V, A",
        ),
        (
            ("softmax.no_keepdims",),
            "    S = Q @ K.T / np.sqrt(Q.shape[1])\n"
            "    A = np.exp(S - S.max(1, keepdims=True))\n    A = A / A.sum(1)\n"
            "    return A @ V, A",
        ),
        (("softmax.none",), "    A = Q @ K.T / np.sqrt(Q.shape[1])\n    return A @ V, A"),
        (
            ("peak.kept",),
            "    A = np.exp(Q @ K.T / np.sqrt(Q.shape[1]))\n"
            "    A = A / A.sum(1, keepdims=True)\n    return A @ V, A",
        ),
        (
            ("peak.of_all",),
            "    S = Q @ K.T / np.sqrt(Q.shape[1])\n    A = np.exp(S - S.max())\n"
            "    A /= A.sum(1, keepdims=True)\n    return A @ V, A",
        ),
        (
            ("axis.queries",),
            "    A = softmax(Q @ K.T / np.sqrt(Q.shape[1]), 0)\n    return A @ V, A",
        ),
        (
            ("axis.all",),
            "    A = softmax(Q @ K.T / np.sqrt(Q.shape[1]), None)\n    return A @ V, A",
        ),
        (("value.forgotten",), "    A = softmax(Q @ K.T / np.sqrt(Q.shape[1]))\n    return A, A"),
        (
            ("value.elementwise",),
            "    A = softmax(Q @ K.T / np.sqrt(Q.shape[1]))\n    return A * V, A",
        ),
        (
            ("returns.swapped",),
            "    A = softmax(Q @ K.T / np.sqrt(Q.shape[1]))\n    return A, A @ V",
        ),
        (("returns.output_only",), "    return softmax(Q @ K.T / np.sqrt(Q.shape[1])) @ V"),
        (("returns.weights_only",), "    return softmax(Q @ K.T / np.sqrt(Q.shape[1]))"),
        (("scale.none", "returns.output_only"), "    return softmax(Q @ K.T) @ V"),
        (
            ("scale.d", "axis.all"),
            "    A = softmax(Q @ K.T / Q.shape[1], None)\n    return A @ V, A",
        ),
        (
            (),
            "    S = np.array([[sum(a * b for a, b in zip(q, k)) for k in K] for q in Q])\n"
            "    A = softmax(S / np.sqrt(Q.shape[1]))\n    return A @ V, A",
        ),
    ],
    "softmax": [
        (
            ("axis.last",),
            "    e = np.exp(z - z.max(-1, keepdims=True))\n    return e / e.sum(-1, keepdims=True)",
        ),
        (
            ("axis.first",),
            "    e = np.exp(z - np.max(z, axis=0))\n    return e / np.sum(e, axis=0)",
        ),
        (("axis.all",), "    e = np.exp(z - z.max())\n    return e / e.sum()"),
        (("peak.kept",), "    return np.exp(z) / np.exp(z).sum(eksen, keepdims=True)"),
        (
            ("peak.of_all",),
            "    e = np.exp(z - z.max())\n    return e / e.sum(axis=eksen, keepdims=True)",
        ),
        (("softmax.not_divided",), "    return np.exp(z - z.max(axis=eksen, keepdims=True))"),
        (("softmax.no_keepdims",), "    e = np.exp(z - z.max(eksen))\n    return e / e.sum(eksen)"),
        (
            ("softmax.no_keepdims",),
            "    e = np.exp(z - z.max(eksen, keepdims=True))\n    return e / e.sum(eksen)",
        ),
        (
            ("softmax.no_keepdims",),
            "    e = np.exp(z - z.max(eksen))\n    return e / e.sum(eksen, keepdims=True)",
        ),
        (("axis.last", "peak.kept"), "    return np.exp(z) / np.exp(z).sum(-1, keepdims=True)"),
        (
            (),
            "    z = np.moveaxis(z, eksen, -1)\n"
            "    z = z - np.logaddexp.reduce(z, axis=-1)[..., None]\n"
            "    return np.moveaxis(np.exp(z), -1, eksen)",
        ),
    ],
    "causal": [
        (
            ("mask.none",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n    A = softmax(S)\n    return A @ V, A",
        ),
        (
            ("mask.strict",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    S[np.triu_indices(len(S))] = -np.inf\n"
            "    A = softmax(S)\n"
            "    return A @ V, A",
        ),
        (
            ("mask.strict",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    S = np.where(np.tri(len(S), k=-1), S, -1e9)\n"
            "    A = softmax(S)\n"
            "    return A @ V, A",
        ),
        (
            ("mask.future",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    S[np.tril_indices(len(S), -1)] = -np.inf\n"
            "    A = softmax(S)\n"
            "    return A @ V, A",
        ),
        (
            ("mask.future",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    S = np.where(np.tri(*S.shape, dtype=bool), -np.inf, S)\n"
            "    A = softmax(S)\n"
            "    return A @ V, A",
        ),
        (
            ("mask.future",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    S = np.where(np.tri(*S.shape) == 1, -1e9, S)\n"
            "    A = softmax(S)\n"
            "    return A @ V, A",
        ),
        (
            ("mask.zero_scores",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    S = S * np.tri(len(Q))\n"
            "    A = softmax(S)\n"
            "    return A @ V, A",
        ),
        (
            ("mask.after_softmax",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    A = np.tril(softmax(S))\n"
            "    return A @ V, A",
        ),
        (
            ("scale.none",),
            "    S = np.inner(Q, K)\n"
            "    S[np.triu_indices(len(S), 1)] = -np.inf\n"
            "    A = softmax(S)\n"
            "    return A @ V, A",
        ),
        (
            ("scale.d",),
            "    S = Q @ K.T / K.shape[1]\n"
            "    S[np.triu_indices(len(S), 1)] = -np.inf\n"
            "    A = softmax(S)\n"
            "    return A @ V, A",
        ),
        (
            ("returns.swapped",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    S[np.triu_indices(len(S), 1)] = -np.inf\n"
            "    A = softmax(S)\n"
            "    return A, A @ V",
        ),
        (
            ("returns.output_only",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    S[np.triu_indices(len(S), 1)] = -np.inf\n"
            "    return softmax(S) @ V",
        ),
        (
            ("returns.weights_only",),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    S[np.triu_indices(len(S), 1)] = -np.inf\n"
            "    return softmax(S)",
        ),
        (
            ("mask.none", "scale.d"),
            "    S = Q @ K.T / Q.shape[1]\n    A = softmax(S)\n    return A @ V, A",
        ),
        (
            (),
            "    S = Q @ K.T / np.sqrt(Q.shape[-1])\n"
            "    A = np.zeros(S.shape)\n"
            "    for i in range(len(S)):\n"
            "        A[i, : i + 1] = softmax(S[i, : i + 1])\n"
            "    return A @ V, A",
        ),
    ],
    "merge": [
        (("shares.halves",), "    return (o1 + o2) / 2, np.logaddexp(l1, l2)"),
        (("shares.ones",), "    return o1 + o2, np.logaddexp(l1, l2)"),
        (
            ("shares.by_log",),
            "    p = (l1 / (l1 + l2))[:, None]\n"
            "    return p * o1 + (1 - p) * o2, np.logaddexp(l1, l2)",
        ),
        (
            ("shares.crossed",),
            "    p = (1 / (1 + np.exp(np.clip(l2 - l1, -700, 700))))[:, None]\n"
            "    return (1 - p) * o1 + p * o2, np.logaddexp(l1, l2)",
        ),
        (
            ("shares.not_divided",),
            "    top = np.maximum(l1, l2)\n"
            "    e1, e2 = np.exp(l1 - top), np.exp(l2 - top)\n"
            "    return (e1 * o1.T + e2 * o2.T).T, np.logaddexp(l1, l2)",
        ),
        (
            ("total.sum",),
            "    p = (1 / (1 + np.exp(np.clip(l2 - l1, -700, 700))))[:, None]\n"
            "    return p * o1 + (1 - p) * o2, l1 + l2",
        ),
        (
            ("total.largest",),
            "    p = (1 / (1 + np.exp(np.clip(l2 - l1, -700, 700))))[:, None]\n"
            "    return p * o1 + (1 - p) * o2, np.maximum(l1, l2)",
        ),
        (
            ("total.mean",),
            "    p = (1 / (1 + np.exp(np.clip(l2 - l1, -700, 700))))[:, None]\n"
            "    return p * o1 + (1 - p) * o2, (l1 + l2) / 2",
        ),
        (
            ("total.no_log",),
            "    p = (1 / (1 + np.exp(np.clip(l2 - l1, -700, 700))))[:, None]\n"
            "    return p * o1 + (1 - p) * o2, np.exp(l1) + np.exp(l2)",
        ),
        (
            ("peak.kept",),
            "    e1, e2 = np.exp(l1), np.exp(l2)\n"
            "    total = e1 + e2\n"
            "    return (e1 * o1.T + e2 * o2.T).T / total[:, None], np.log(total)",
        ),
        (
            ("returns.swapped",),
            "    p = (1 / (1 + np.exp(np.clip(l2 - l1, -700, 700))))[:, None]\n"
            "    return np.logaddexp(l1, l2), p * o1 + (1 - p) * o2",
        ),
        (
            ("returns.output_only",),
            "    p = (1 / (1 + np.exp(np.clip(l2 - l1, -700, 700))))[:, None]\n"
            "    return p * o1 + (1 - p) * o2",
        ),
        (("shares.halves", "total.mean"), "    return (o1 + o2) / 2, (l1 + l2) / 2"),
        (
            (),
            "    l = np.logaddexp(l1, l2)\n"
            "    return np.exp(l1 - l)[:, None] * o1 + np.exp(l2 - l)[:, None] * o2, l",
        ),
    ],
}
EVERY = [(name, *submitted) for name in SUBMITTED for submitted in SUBMITTED[name]]


@pytest.mark.parametrize("name", LESSON.exercises)
def test_every_mistake_is_submitted(name):
    family = recipes.FAMILIES[LESSON.exercises[name].bank]
    singles = {wrong[0] for wrong, _ in SUBMITTED[name] if len(wrong) == 1}
    assert singles == set(names(family))


@pytest.mark.parametrize(
    ("name", "wrong", "body"), EVERY, ids=[" ".join((name, *wrong)) for name, wrong, _ in EVERY]
)
def test_mistakes_are_named_through_the_grader(name, wrong, body):
    exercise = LESSON.exercises[name]
    before, _, rest = exercise.solution.partition(f"def {exercise.entry}(")
    signature = rest.partition("\n")[0]
    verdict = judge(exercise, f"{before}def {exercise.entry}({signature}\n{body}\n")
    assert verdict.mistakes == wrong
    assert ("values" in verdict.passed) == (wrong == ())
    for language in LANGUAGES:
        told = texts.message(verdict, exercise, language)
        for mistake in wrong:
            assert exercise.mistakes[mistake].did[language] in told


@pytest.mark.parametrize(
    ("code", "message", "facts"),
    [
        (
            solved("def attention(Q, K, V):\n    return Q[:, :4], K\n\n1 / 0"),
            "raised",
            {"line": 13},
        ),
        (solved(BODY + "\n1 / 0"), "raised", {"kind": "ZeroDivisionError"}),
        (BODY, "call_raised", {"line": 3, "kind": "NameError"}),
        ("def attention(Q, K, V): return", "nothing", {}),
        ("def attention(Q, K, V): return Q, K, V", "count", {"got": 3, "want": 2}),
        ("def attention(Q, K, V): return 'a', 'b'", "kind", {"result": 1, "got": "str"}),
        ("def attention(Q, K, V): return Q, K", "shape", {"got": "(3, 8)", "want": "(3, 4)"}),
        ("def attention(Q, K, V): return Q[:, :4], K", "value", {"entry": "[0, 0]"}),
        ("def atention(Q, K, V): return", "missing", {"functions": "atention"}),
        ("attention = 1", "no_function", {"entry": "attention"}),
        (MODEL + "print(1)", "prints", {"row": 5, "column": 1}),
        (MODEL.replace("round(3)", "round(2)"), "prints", {"row": 3, "column": 8}),
        (solved(BODY.replace("    d_k", "    Q *= 1 + 1e-12\n    d_k")), "touched", {}),
    ],
)
def test_what_no_mistake_explains_is_told_without_a_guess(code, message, facts):
    verdict = judge(EXERCISE, code)
    assert (verdict.message, verdict.mistakes) == (message, ())
    assert facts.items() <= verdict.facts.items()
    assert 0 <= verdict.score < 1
    for language in LANGUAGES:
        assert "{" not in texts.message(verdict, EXERCISE, language)


@pytest.mark.parametrize(
    ("returned", "message", "kind"),
    [
        ("pass", "nothing", "TypeError"),
        ("return A @ V, A, S", "count", "ValueError"),
        ("return (A @ V)[:0]", "count", "ValueError"),
        ("return softmax(Q @ K.T), A @ V, 1 / 0", "raised", "ZeroDivisionError"),
    ],
)
def test_results_that_cannot_be_unpacked_are_told_before_the_error(returned, message, kind):
    code = MODEL.replace("return A @ V, A", returned)
    line = 1 + code[: code.index("output, weights =")].count("\n")
    verdict = judge(EXERCISE, code)
    assert (verdict.message, verdict.facts["kind"]) == (message, kind)
    for language in LANGUAGES:
        told = texts.message(verdict, EXERCISE, language)
        assert told.endswith(texts.say("grader.raised", language, **verdict.facts))
        if message != "raised":
            assert verdict.facts["line"] == line
            assert EXERCISE.returns[language] in told


def test_an_error_is_told_after_the_mistake_that_is_its_cause():
    code = MODEL.replace("return A @ V, A", "return A @ V").replace("Kk, Vk)", "Kk, Vk[:, :1])")
    verdict = judge(EXERCISE, code.replace("output, weights = a", "output, weights, _ = a"))
    assert verdict.mistakes == ("returns.output_only",)
    for language in LANGUAGES:
        told = texts.message(verdict, EXERCISE, language)
        assert told.startswith(EXERCISE.mistakes["returns.output_only"].did[language])
        assert "ValueError: not enough values to unpack" in told


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_say_the_limits_that_hold(language):
    slow = judge(EXERCISE, "while True: pass", QUICK)
    assert f"{QUICK.seconds:g} s" in texts.message(slow, EXERCISE, language)
    assert f"{USUAL.seconds:g} s" in texts.say("page.running", language, **USUAL.shown)
    assert USUAL.seconds >= 10
    large = "import numpy as np\nx = np.ones((2**17, 1))\nx @ x.T"
    told = texts.message(judge(EXERCISE, large), EXERCISE, language)
    assert f"{USUAL.memory / 2**30:g} GiB" in told


def test_a_solution_that_gives_no_results_once_is_replaced_by_nothing(monkeypatch):
    """On a busy machine a program may run out of time, or be killed."""
    hints = EXERCISE.mistakes["scale.none"]
    programs = {"right": "def f(x): return x.mean()", "sum": "def f(x): return x.sum()"}
    exercise = replace(
        EXERCISE,
        entry="f",
        bank="",
        cases=("(np.array([1.0, 2.0]),)",),
        solution=programs["right"],
        expected="",
        mistakes={"sum": hints._replace(program=programs["sum"])},
    )
    busy = set(programs.values())
    monkeypatch.setattr(
        running, "run", lambda code, *more: Run("timeout") if code in busy else run(code, *more)
    )
    mine = "def f(x): return float(x.sum())"
    with pytest.raises(NoVerdict, match="the exercise's own solution ended with: timeout"):
        judge(exercise, mine)
    busy.remove(programs["right"])
    assert judge(exercise, mine).message == "value"
    assert judge(exercise, programs["right"]).right
    busy.clear()
    assert judge(exercise, mine).mistakes == ("sum",)
    assert bank_of(exercise).entries[0][0] == ()


def test_a_program_that_stops_half_way_is_judged_by_its_function():
    code = "import numpy as np\n" + BODY.replace("softmax(S, eksen=-1)", "S") + "\n1 / 0"
    verdict = judge(EXERCISE, code)
    assert verdict.mistakes == ("softmax.none",)
    assert verdict.passed == ("defines", "returns", "keeps")
    assert json.loads(json.dumps(verdict.to_dict()))["mistakes"] == ["softmax.none"]


def test_ladders_have_a_rung_for_all_that_is_known():
    named = judge(EXERCISE, solved("def attention(Q, K, V):\n    return softmax(Q @ K.T) @ V\n"))
    assert texts.rungs(named) == texts.RUNGS
    for language in LANGUAGES:
        hints = [texts.hint(named, EXERCISE, rung, language) for rung in texts.RUNGS[:3]]
        assert hints[0] == EXERCISE.mistakes["scale.none"].did[language]
        assert len(set(hints)) == 3
    assert texts.rungs(judge(EXERCISE, "")) == ("did", "solution")
    assert texts.rungs(judge(EXERCISE, MODEL)) == ()


# ------------------------------------------------------------------------------------- the shell


@pytest.fixture
def shell(capsys):
    """Run one command line in this process: exit code, stdout, stderr."""

    def run(*arguments):
        code = cli.shell(["lesson", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("language", LANGUAGES)
def test_grade_at_the_shell(shell, tmp_path, language):
    file = tmp_path / "my_solution.py"
    file.write_text(MODEL, encoding="utf-8-sig")  # as Notepad writes it
    code, out, err = shell("grade", file, "--exercise", "attention", "--lang", language)
    assert (code, err) == (0, "")
    assert out.count("✓") == len(CHECKS)
    assert texts.say("grader.right", language) in out
    file.write_text(solved("def attention(Q, K, V):\n    return 1\n"), encoding="utf-8")
    code, out, _ = shell("grade", file, "--exercise", "attention", "--lang", language)
    assert code == 1
    assert "✗" in out


def test_grade_for_scripts(shell, tmp_path):
    file = tmp_path / "my_solution.py"
    file.write_text("def attention(Q, K, V): return Q @ K.T", encoding="utf-8")
    code, out, _ = shell("grade", file, "--exercise", "attention", "--json")
    assert code == 1
    found = json.loads(out)
    assert (found["exercise"], found["right"], found["score"]) == ("attention", False, 0.5)
    assert (found["message"], found["facts"]) == ("count", {"got": 1, "want": 2})  # three mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grade", "none.py", "--exercise", "attention"], "none.py: No such file"),
        (["grade", "none.py", "--exercise", "atention"], "did you mean 'attention'"),
        (["grade", "none.py", "--exercise", "attention", "--lang", "de"], "valid are: tr, en"),
        (["grade", "none.py"], "--exercise"),
        (["--lang", "tr", "check", "none"], "options of the page come without `check`"),
        (["check", "none"], "none is no lesson: a lesson is a folder with a lesson.toml"),
    ],
)
def test_what_the_shell_refuses(shell, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"scaledot: .+\n", err)
    assert message in err


def test_the_page_says_what_it_needs(shell, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "marimo", None)
    monkeypatch.delitem(sys.modules, "scaledot.lesson.page.serve", raising=False)
    code, _, err = shell("--state", tmp_path / "state.json")
    assert code == 2
    assert 'needs marimo: pip install "scaledot[lesson]"' in err
    (tmp_path / "state.json").write_text("?")
    code, _, err = shell("--state", tmp_path / "state.json")
    assert code == 2
    assert "name another with --state" in err


def test_the_language_of_the_locale(monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "tr_TR.UTF-8")
    assert texts.usual_language() == "tr"
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert texts.usual_language() == "en"
