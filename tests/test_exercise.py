"""The lesson's numbers, to the letter, and the sentence that lies beside them."""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np

from scaledot import attention

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_exercise_prints_the_lessons_numbers():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "exercise.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "4 2.0 1.0\n1024 32.0 1.0\n[[5.    5.   ]\n [1.956 8.044]]\n"
    assert done.stderr == ""


def test_the_lessons_first_table(capsys):
    exercise = runpy.run_path(str(EXAMPLES / "exercise.py"))
    exercise["spread_of_scores"]((4, 64, 1024), digits=2)
    assert capsys.readouterr().out == "4 2.0 1.0\n64 8.1 1.01\n1024 32.0 1.0\n"


def sentence():
    maker = runpy.run_path(str(EXAMPLES / "make_sentence.py"))
    with np.load(EXAMPLES / "sentence.npz", allow_pickle=False) as file:
        return maker["words_of"](maker["SENTENCE"]), maker["make"](), dict(file)


def test_the_sentence_is_what_its_maker_makes():
    _, made, stored = sentence()
    assert list(made) == list(stored) == ["query", "key", "value"]
    for name, x in made.items():
        assert x.dtype == stored[name].dtype == np.float32
        np.testing.assert_array_equal(x, stored[name], err_msg=name)


def test_the_heads_of_the_sentence_look_where_they_say():
    words, _, arrays = sentence()
    _, weights = attention(arrays["query"], arrays["key"], arrays["value"])
    before, alike, beside, near = weights
    assert (before.argmax(axis=-1)[1:] == np.arange(len(words) - 1)).all()
    verbs = [words.index(word) for word in ("tossed", "worried", "killed", "ate")]
    nouns = [words.index(word) for word in ("dog", "cat", "rat", "malt", "house")]
    for kind in (verbs, nouns):
        assert (alike[np.ix_(kind, kind)].sum(axis=-1) > 0.9).all()
        assert (near[kind].argmax(axis=-1) == kind).all()
    top = np.argsort(beside[words.index("killed")])[-2:]
    assert {words[column] for column in top} == {"cat", "rat"}
