"""Lessons are data: the built-in one is whole in both languages, and what is wrong is found."""

import csv
import io
import json
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import scaledot
from scaledot import cli
from scaledot.lesson import answers, check, content, figures, numbers, progress, svg, texts
from scaledot.lesson.judge import CHECKS, judge
from scaledot.lesson.run import run
from scaledot.lesson.tables import LANGUAGES

LESSON = content.load()


# --------------------------------------------------------------------------- the built-in lesson


def test_the_lesson_is_whole():
    assert check.check(LESSON) == []
    assert check.texts_of_the_page() == []
    assert list(LESSON.exercises) == ["attention", "causal", "merge", "softmax"]


def test_every_message_of_the_grader_has_words():
    source = Path(check.__file__).with_name("judge.py").read_text(encoding="utf-8")
    ids = set(re.findall(r'return "(\w+)", ', source)) - {"mistake"}
    stages = {"syntax", "raised", "timeout", "output", "died"}
    words = {name.partition(".")[2] for name in texts.all_texts() if name.startswith("grader.")}
    assert words == ids | stages | {"two"}


def test_no_message_is_a_list_of_markdown():
    for name, text in texts.all_texts().items():
        for said in text.values() if name.startswith("grader.") else ():
            assert not re.match(r"(\d+[.)]|[-*+]) ", re.sub(r"\{\w+\}", "1", said)), name


def test_turkish_counts_before_the_noun():
    """It is "2. sorgu", not "sorgu 2"."""
    told = [text["tr"] for _, text in check._texts(LESSON)]
    told += [text["tr"] for text in texts.all_texts().values()]
    for text in told:
        assert not re.search(r"(?i)\b(sorgu|anahtar|sonuç) [{$]", text), text


def test_no_text_is_left_over():
    folder = Path(check.__file__).parent
    source = "".join(x.read_text(encoding="utf-8") for x in sorted(folder.rglob("*.py")))
    for name in texts.all_texts():
        part, _, last = name.partition(".")
        whole = f'"{name}"' in source or f"'{name}'" in source
        pieces = f"{part}.{{" in source and f'"{last}"' in source
        assert whole or pieces or part == "grader", name  # those stand in the test before


def test_the_lessons_numbers_are_printed_by_its_own_lines():
    assert run(LESSON.codes["numbers.py"]).printed == "4 2.0 1.0\n64 8.1 1.01\n1024 32.0 1.0\n"
    assert run(LESSON.codes["attention.py"]).printed == "[[5.    5.   ]\n [1.956 8.044]]\n"
    _, weights = numbers.small_weights(causal=True)
    assert run(LESSON.codes["mask.py"]).printed == f"{weights.round(3)}\n"


def test_the_lessons_function_is_the_textbook_engine(numbers):
    names: dict = {}
    exec(LESSON.codes["attention.py"].replace("print", "repr"), names)
    for shapes in ((3, 8), (5, 8), (5, 4)), ((16, 64),) * 3:
        arrays = [numbers.normal(size=shape) for shape in shapes]
        wanted = scaledot.attention(*arrays, engine="textbook")
        for one, other in zip(names["attention"](*arrays), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)


def test_the_questions_of_the_lesson_are_judged():
    for question in LESSON.questions.values():
        if question.kind == "choice":
            right, wrong = question.answer, [x.id for x in question.options]
            wrong.remove(question.answer)
        elif question.kind == "blank":
            right, wrong = question.accept[0], [x.text for x in question.near]
        else:
            right = [str(i) for i in range(len(question.pairs))]
            wrong = [right[::-1]]
        assert answers.judge(question, right) == (1.0, ())
        for answer in wrong:
            judged = answers.judge(question, answer)
            assert judged.score < 1
            assert judged.wrong


def test_a_match_gives_nothing_away_and_counts_its_pairs():
    question = LESSON.questions["match-effects"]
    order = answers.shuffled(question)
    assert sorted(order) == [0, 1, 2, 3] != order
    assert answers.judge(question, ["0", "1", "3", "2"]) == (0.5, (2, 3))
    assert answers.judge(question, ["0"]) == (0.25, (1, 2, 3))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("INF", "inf", True),
        ("İnf", "inf", True),
        ("IŞIK", "ışık", True),
        ("ışık", "isik", False),
        (" np . sqrt ", "np.sqrt", True),
        ("ﬁ", "fi", True),
        ("sqr", "sqrt", False),
    ],
)
def test_texts_are_compared_by_turkish_or_english_rules(one, other, alike):
    assert answers.same_text(one, other) == alike
    assert answers.same_text(other, one) == alike


# ------------------------------------------------------------------------ what is wrong is found

QUESTION = '[[question]]\nid = "divide-by"'


@pytest.fixture(scope="module")
def once():
    """Judge and run every program of the built-in lesson once: that is what takes time."""
    found = {}

    def judged(exercise, code):
        key = exercise.entry, exercise.bank, exercise.expected, code
        if key not in found:
            found[key] = judge(exercise, code)
        return found[key]

    def ran(code):
        if code not in found:
            found[code] = run(code)
        return found[code]

    return judged, ran


@pytest.fixture
def broken(tmp_path, monkeypatch, once):
    """Return the problems of the lesson with one text replaced in one file."""
    judged, ran = once
    monkeypatch.setattr(check, "judge", judged)
    monkeypatch.setattr(check, "run", ran)

    def change(file, old, new):
        folder = tmp_path / "attention"
        shutil.copytree(content.BUILT_IN, folder)
        text = (folder / file).read_text(encoding="utf-8")
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")
        return check.check(content.read(folder))

    return change


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("lesson.toml", "title.tr", "titel.tr", "lesson.toml: `title.tr` is missing or empty"),
        ("lesson.toml", 'id = "attention"', "", "lesson.toml: `id` is missing"),
        ("lesson.toml", "title.tr", "title.tr", "`id` must not be 'attention'"),
        ("lesson.toml", "title.tr", "titel.tr", "nothing is called `titel`"),
        ("questions.toml", 'kind = "choice"', 'kind = "guess"', "must be one of choice, blank"),
        ("questions.toml", 'answer = "8"', 'answer = "9"', "must be the id of an option"),
        ("questions.toml", 'id = "variance"', 'id = "divide-by"', "two questions have the id"),
        ("questions.toml", 'text = "2"', 'text = "8"', "two options (tr) are the same: '8'"),
        ("questions.toml", 'is = "log"', 'is = "SQRT"', "two texts are the same: 'SQRT'"),
        ("questions.toml", "____", "___", "the code differ between tr and en"),
        ("questions.toml", 'text.tr = "Büyür"', 'text.de = "a"', "`text.de` is in an unknown"),
        ("questions.toml", 'why.tr = "2, $d_k = 4$', 'why.tr = "2, $d_k = 8$',
         "the formulas differ"),
        ("questions.toml", 'why.tr = "4096, 64', 'why.tr = "4096, 65', "the numbers differ"),
        ("questions.toml", 'right = "√d = 8"', 'right = "√d = 4"', "two right sides (tr)"),
        ("questions.toml", 'right = "√d = 8"', 'right = "$d$"', "a drop-down shows plain text"),
        ("questions.toml", QUESTION, "[[question\n", "questions.toml: "),
        ("10-attention.tr.md", "::question divide-by::", "", "show different parts"),
        ("10-attention.tr.md", "Her sorgu, ağırlığını", "Her `sorgu`, ağırlığını",
         "the code differ"),
        ("20-why.en.md", "::figure spread::", "::figure spred::", "no figure is called 'spred'"),
        ("20-why.en.md", "::figure spread::", "::figure spread 5::", "has no '5'"),
        ("20-why.en.md", "::figure training::", "::figure training x::", "takes at most 0 words"),
        ("20-why.en.md", "::figure training::", "::film x::", "no part is called 'film'"),
        ("50-beyond.en.md", "::run mask.py::", "::run msk.py::", "no run is called 'msk.py'"),
        ("exercises/merge.toml", "{here}", "", "must have one {here}"),
        ("exercises/merge.toml", 'bank = "merge"', 'bank = "merg"', "`bank` must be one of"),
        ("exercises/merge.toml", '"total.sum"', '"total.sun"', "mistake total.sum has no hints"),
        ("exercises/merge.toml", '"total.sum"', '"total.sun"', "is called total.sun"),
        ("exercises/merge.toml", "np.log(total)\n\n\nrng", "total\n\n\nrng", "the solution fails"),
        ("exercises/merge.toml", 'entry = "merge"', "entry = 3", "`entry` must be a string, got 3"),
        ("exercises/causal.toml", "attention mask.none", "attention mask.all",
         "has no 'mask.all'"),
        ("exercises/causal.toml", "attention mask.none", "attention returns.swapped",
         "the figure causal_attention has no 'returns.swapped'"),
        ("exercises/causal.toml", "causal_attention mask.none", "causal_attention",
         "the figure causal_attention needs one of: mask.none, "),
        ("50-beyond.en.md", "weights causal", "weights casual", "has no 'casual'"),
        ("code/mask.py", "e = np", "e = nq",
         "code/mask.py: The program stopped with an error, line 8: NameError: "),
        ("code/mask.py", "e = np", "e == = np",
         "code/mask.py: Python cannot read this code, line 8: "),
        ("code/mask.py", "e = np", "while True: pass\ne = np",
         "code/mask.py: The program did not end within 10 s and was stopped, line 8"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(broken, file, old, new, problem):
    problems = broken(file, old, new)
    assert any(problem in found for found in problems), problems


def test_a_translation_that_is_none_is_found():
    english = "You did not scale the scores: the division is missing."
    (same,) = check.same_in_all({"tr": english, "en": english})
    assert "tr and en are the same" in same
    ascii_only = "Skorlari olceklemediniz: bolme eksik. " * 3
    (typed,) = check.same_in_all({"tr": ascii_only, "en": english})
    assert "no Turkish letter" in typed


def test_a_page_in_one_language_is_refused(tmp_path, capsys):
    folder = tmp_path / "mine"
    shutil.copytree(content.BUILT_IN, folder)
    (folder / "20-why.tr.md").unlink()
    (folder / "notes.md").write_text("x")
    with pytest.raises(content.Malformed, match=r"20-why.tr.md is missing .*|notes.md: pages are"):
        content.load(folder)
    assert cli.shell(["lesson", "check", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "20-why.tr.md is missing or empty" in out
    assert "notes.md: pages are called NN-name.LANGUAGE.md" in out
    assert cli.shell(["lesson", "check", str(content.BUILT_IN)]) == 0
    assert "is whole" in capsys.readouterr().out


FILES = ("lesson.toml", "questions.toml", "20-why.tr.md", "exercises/merge.toml", "code/mask.py")


@pytest.mark.parametrize("file", FILES)
def test_a_file_in_the_encoding_of_turkish_windows_is_named_with_the_remedy(tmp_path, capsys, file):
    folder = tmp_path / "mine"
    shutil.copytree(content.BUILT_IN, folder)
    text = (folder / file).read_text(encoding="utf-8") + "\n# ığş\n"
    raw = text.encode("cp1254", "ignore")
    (folder / file).write_bytes(raw)
    assert cli.shell(["lesson", "check", str(folder)]) == 1
    out, err = capsys.readouterr()
    line = next(i for i, x in enumerate(raw.splitlines(), 1) if not x.isascii())
    assert re.fullmatch(rf"{file}: must be UTF-8, has the byte 0x\w\w in line {line}; "
                        r"save it as UTF-8\n", out)  # fmt: skip
    assert err == ""
    assert cli.shell(["lesson", "--lesson", str(folder), "--no-browser"]) == 2
    assert f"{file}: must be UTF-8" in capsys.readouterr().err


def test_a_byte_order_mark_is_no_part_of_a_lesson(tmp_path):
    folder = tmp_path / "attention"
    shutil.copytree(content.BUILT_IN, folder)
    for file in [x for x in folder.rglob("*") if x.suffix in (".md", ".py", ".toml")]:
        file.write_text(file.read_text(encoding="utf-8"), encoding="utf-8-sig")
    found = content.load(folder)
    assert (found.pages, found.questions, found.exercises, found.codes) == (
        LESSON.pages, LESSON.questions, LESSON.exercises, LESSON.codes
    )  # fmt: skip


def test_a_program_in_another_encoding_is_refused_with_the_remedy(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_bytes("# çözüm".encode("cp1254"))
    assert cli.shell(["lesson", "grade", str(file), "--exercise", "merge"]) == 2
    assert re.search(r"model\.py must be UTF-8: .*; save it as UTF-8\n$", capsys.readouterr().err)


# ------------------------------------------------------------------------- a lesson of a teacher

MINE = """
title.tr = "Ortalama"
title.en = "Mean"
task.tr = "Bir dizinin ortalamasını alın."
task.en = "Take the mean of an array."
entry = "mean"
returns.tr = "ortalama"
returns.en = "the mean"
cases = ["(np.array([1.0, 2.0, 6.0]),)", "(np.array([0.0, 5.0]),)"]
here.tr = "# buraya yaz"
here.en = "# write here"
starter = "{here}"
expected = ""
solution = "def mean(x): return x.sum() / len(x)"

[mistake.sum]
did.tr = "Topladınız, bölmediniz."
did.en = "You summed and did not divide."
why.tr = "Toplam, sayıların kaç tane olduğuna bağlıdır."
why.en = "A sum depends on how many numbers there are."
where.tr = "Son satır."
where.en = "The last line."
program = "def mean(x): return x.sum()"
"""


def mine(tmp_path, text=MINE):
    """Return a lesson of one page and one exercise that brings its own wrong programs."""
    (tmp_path / "exercises").mkdir(exist_ok=True)
    (tmp_path / "lesson.toml").write_text('id = "mine"\ntitle = "Σ"')
    (tmp_path / "exercises" / "mean.toml").write_text(text, encoding="utf-8")
    for language, heading in (("tr", "# Ortalama"), ("en", "# Mean")):
        page = f"{heading}\n\n::exercise mean::\n"
        (tmp_path / f"10-mean.{language}.md").write_text(page, encoding="utf-8")
    return content.read(tmp_path)


def test_a_teachers_exercise_names_the_mistakes_it_brings(tmp_path):
    lesson = mine(tmp_path)
    assert check.check(lesson) == []
    exercise = lesson.exercises["mean"]
    assert judge(exercise, "import numpy as np\nmean = lambda x: np.mean(x)").right
    assert judge(exercise, "def mean(x): return sum(x)").mistakes == ("sum",)
    unknown = judge(exercise, "def mean(x): return x.max()")
    assert (unknown.message, unknown.facts["want"]) == ("value", "3")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("return x.sum()\"\n", 'return x.mean()"\n', "its program does the same as the solution"),
        ('program = "def mean(x): return x.sum()"', "", "mistake sum needs a `program`"),
        ('program = "def mean', 'program = "def meen', "its program does not define mean"),
        ('solution = "def mean', 'solution = "def meen',
         "nothing can be judged: the exercise's own solution does not define mean"),
        ('solution = "def mean', 'solution = "none\\ndef mean',
         "nothing can be judged: the exercise's own solution ended with: raised"),
        ("cases = ", "casus = ", "without a `bank` it needs `cases`"),
        ("/ len(x)", "/ 0", "the solution fails: prints"),
        ('starter = "{here}"', 'starter = "{here}\\ndef mean(x): return x.mean()"',
         "the starter passes as it is"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_teachers_exercise_is_found(tmp_path, old, new, problem):
    assert old in MINE
    text = MINE.replace(old, new)
    if "/ 0" in new:  # the solution defines what is right, so only its print can fail it
        text = MINE.replace('expected = ""', 'expected = "1"')
    problems = check.check(mine(tmp_path, text))
    assert any(problem in found for found in problems), problems


def test_answers_are_kept_under_the_lessons_id_wherever_its_folder_lies(tmp_path):
    found = {}
    for place, name in (("a", "mine"), ("b", "mine"), ("c", "renamed")):
        folder = tmp_path / place / name
        shutil.copytree(content.BUILT_IN, folder)
        about = (folder / "lesson.toml").read_text(encoding="utf-8")
        number = "one" if place == "a" else "two"
        about = about.replace('id = "attention"', f'id = "{number}"')
        (folder / "lesson.toml").write_text(about, encoding="utf-8")
        kept = progress.Progress(tmp_path / "state.json", content.load(folder).id)
        found[place] = list(kept.items())
        kept.answer(place, "x", 1.0)
    assert found == {"a": [], "b": [], "c": ["b"]}


def test_a_file_cannot_be_graded_with_a_solution_that_gives_no_results(tmp_path, capsys):
    mine(tmp_path, MINE.replace('solution = "def mean', 'solution = "def meen'))
    (tmp_path / "mean.py").write_text("def mean(x): return x.sum()")
    arguments = ["grade", tmp_path / "mean.py", "--exercise", "mean", "--lesson", tmp_path]
    assert cli.shell(["lesson", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert "the exercise's own solution does not define mean; try again" in said


def test_the_lesson_that_the_docs_show_is_whole(tmp_path):
    docs = Path(__file__).parents[1] / "docs" / "lessons.md"
    title, *blocks = re.findall(
        r"^```toml\n(.*?)^```", docs.read_text(encoding="utf-8"), re.M | re.S
    )
    questions = [block for block in blocks if block.startswith("[[question]]")]
    (exercise,) = [block for block in blocks if block not in questions]
    assert len(questions) == 3
    files = {"lesson.toml": title, "questions.toml": "\n".join(questions)}
    parts = "".join(f"\n::question {name}::\n" for name in ("why", "blank", "pairs"))
    for language in LANGUAGES:
        files[f"10-mean.{language}.md"] = f"# Σ\n{parts}\n::exercise mean::\n"
    (tmp_path / "exercises").mkdir()
    for name, text in (files | {"exercises/mean.toml": exercise}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    lesson = content.read(tmp_path)
    assert check.check(lesson) == []
    wrong = lesson.exercises["mean"].mistakes["not_divided"].program
    assert judge(lesson.exercises["mean"], wrong).mistakes == ("not_divided",)


def test_the_docs_list_what_grade_gives_to_scripts(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text("", encoding="utf-8")
    assert cli.shell(["lesson", "grade", str(file), "--exercise", "merge", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    docs = (Path(__file__).parents[1] / "docs" / "lessons.md").read_text(encoding="utf-8")
    table = docs.partition("| field | holds |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == list(found)
    (passed,) = re.findall(r"^\| `passed` \|(.*)", table, re.M)
    assert tuple(re.findall(r"`(\w+)`", passed)) == CHECKS


# ------------------------------------------------------------------------------------- progress


def test_answers_are_kept_first_last_and_best(tmp_path):
    file = tmp_path / "new" / "state.json"
    kept = progress.Progress(file, "attention")
    assert kept.item("q") == {}
    for answer, score in (("a", 0.5), ("b", 1.0), ("ğ", 0.0)):
        kept.answer("q", answer, score)
    kept.hint("q", 2)
    kept.code("q", "x = 1")
    item = progress.Progress(file, "attention").item("q")
    assert item["tries"] == 3
    which = {name: item[name]["answer"] for name in ("first", "last", "best")}
    assert which == {"first": "a", "last": "ğ", "best": "b"}
    assert (item["hints"], item["most_hints"], item["code"]) == (2, 2, "x = 1")
    kept.answer("q", "c", 0.0)
    kept.code("q", None)
    item = kept.item("q")
    assert "code" not in item
    assert "hints" not in item
    assert item["most_hints"] == 2
    assert progress.Progress(file, "other").items() == {}
    assert [x.name for x in file.parent.iterdir()] == ["state.json"]


def test_two_pages_lose_nothing_of_each_others(tmp_path):
    file = tmp_path / "state.json"

    def answer(name):
        kept = progress.Progress(file, "attention")
        for _ in range(20):
            kept.answer(name, "a", 1.0)

    threads = [threading.Thread(target=answer, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [progress.Progress(file, "attention").item(x)["tries"] for x in "abc"] == [20] * 3


def test_half_a_surrogate_pair_loses_no_answers(tmp_path):
    file = tmp_path / "state.json"
    kept = progress.Progress(file, "attention")
    kept.answer("q", "ğ", 1.0)
    kept.code("q", "print('\ud800')")
    kept.answer("blank", "\udfff", 0.0)
    item = progress.Progress(file, "attention").item("q")
    assert (item["best"]["answer"], item["code"]) == ("ğ", "print('?')")
    progress.to_json(kept).encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read the answers"),
        ("[]", "holds no answers"),
        ('{"version": 9, "lessons": {}}', "is of version 9"),
    ],
)
def test_a_file_that_holds_no_answers_is_refused_and_left_alone(tmp_path, text, message):
    file = tmp_path / "state.json"
    file.write_text(text)
    with pytest.raises(progress.Unreadable, match=message):
        progress.Progress(file, "attention")
    assert file.read_text() == text


def test_answers_are_exported(tmp_path):
    kept = progress.Progress(tmp_path / "state.json", "attention")
    kept.answer("q,1", "a", 0.5)
    kept.hint("q,1", 3)
    assert json.loads(progress.to_json(kept))["lessons"]["attention"]["q,1"]["tries"] == 1
    (row,) = csv.DictReader(io.StringIO(progress.to_csv(kept)))
    assert list(row) == list(progress.COLUMNS)
    assert (row["item"], row["first"], row["best"], row["hints"]) == ("q,1", "0.5", "0.5", "3")


def test_answers_are_the_users_own_file(monkeypatch, tmp_path):
    monkeypatch.setattr(progress.sys, "platform", "linux")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert progress.default_file() == tmp_path / "scaledot" / "lesson.json"
    monkeypatch.setattr(progress.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert progress.default_file() == tmp_path / "local" / "scaledot" / "lesson.json"


# -------------------------------------------------------------------------------------- figures


def test_figures_show_the_packages_numbers():
    for d, scale in ((4, "none"), (1024, "none"), (1024, "1/sqrt(d)"), (4096, "1/d")):
        found = numbers.spread(d, scale)
        assert found.measured == pytest.approx(found.predicted, rel=0.03)
        assert found.weights.sum() == pytest.approx(1)
        p = found.weights
        jacobian = np.diag(p) - np.outer(p, p)
        assert found.gradient == pytest.approx(np.linalg.norm(jacobian), rel=1e-6, abs=1e-12)
        entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
        assert found.entropy == pytest.approx(entropy, abs=1e-9)
        drawn = figures.draw(f"spread {d} {scale}", "tr")
        assert texts.number(found.measured, 2, "tr") in drawn
        assert texts.number(found.gradient, 4, "tr") in drawn
        assert drawn.count("<rect") == 40 + numbers.N_KEYS
    assert numbers.spread(1024, "none").gradient < 0.1 < numbers.spread(1024, "1/sqrt(d)").gradient


def test_a_larger_size_adds_terms_to_the_same_sums():
    small, large = numbers.spread(64, "none").scores, numbers.spread(128, "none").scores
    assert np.corrcoef(small, large)[0, 1] == pytest.approx(np.sqrt(0.5), abs=0.03)


MISTAKES = [
    pytest.param(exercise, name, id=f"{exercise.id} {name}")
    for exercise in LESSON.exercises.values()
    for name in exercise.mistakes
]


@pytest.mark.parametrize(("exercise", "name"), MISTAKES)
def test_hints_show_the_mistake_that_they_speak_of(exercise, name):
    figure, *words = exercise.mistakes[name].figure.split() or [""]
    if name.startswith("returns."):  # its numbers are right
        assert figure == ""
    elif figure == "spread":
        d, scale = words
        shown = {"scale.none": "none", "scale.d": "1/d", "scale.times": "sqrt(d)",
                 "scale.sqrt_length": "1/sqrt(n)", "scale.sqrt_dv": "1/sqrt(d_v)",
                 "place.on_output": "none"}  # fmt: skip
        assert scale == shown[name]
        right = numbers.spread(int(d), "1/sqrt(d)")
        assert abs(np.log(numbers.spread(int(d), scale).measured / right.measured)) > 1
    else:
        assert figure == exercise.bank
        assert words[0].partition(":")[0] == name


@pytest.mark.parametrize(("exercise", "name"), MISTAKES)
def test_figures_of_mistakes_show_what_the_function_returns(exercise, name):
    figure, *words = exercise.mistakes[name].figure.split() or [""]
    if figure not in numbers.EXAMPLES:
        return
    found = numbers.compared(figure, words[0])
    names: dict = {"print": lambda *_: None}
    exec(exercise.solution, names)
    returned = names[exercise.entry](*found.arguments.values())
    for one, other in zip(
        returned if isinstance(returned, tuple) else (returned,), found.right, strict=True
    ):
        np.testing.assert_allclose(one, other)
    for language in LANGUAGES:
        drawn = figures.draw(exercise.mistakes[name].figure, language)
        right, wrong = re.findall("<table>.*?</table>", drawn)
        assert right != wrong.replace(
            texts.say("figure.mistaken", language), texts.say("figure.right", language)
        )
        for table, results in ((right, found.right), (wrong, found.wrong)):
            for x in (x for result in results for x in np.ravel(result)):
                if np.isfinite(x):
                    assert texts.number(x, 3, language) in table
                else:
                    assert ("NaN" if np.isnan(x) else "∞") in table


def test_sums_stand_beside_the_weights():
    drawn = figures.draw("attention axis.queries", "tr")
    rows = re.findall(r"<tr><th.*?</tr>", drawn)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    assert [row[2] for row in cells] == ["1", "1", "1", "1"]
    drawn = figures.draw("softmax axis.last", "en")
    (right, wrong) = re.findall(r"Σ</th>(.*?)</tr>", drawn)
    assert (right, wrong) == ("<td>1</td><td>1</td>", "<td>0.769</td><td>1.231</td>")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("wanted", ["spread", "spread 1 none", "training", "weights causal"])
def test_figures_draw_in_both_languages(wanted, language):
    drawn = figures.draw(wanted, language)
    assert "nan" not in drawn.lower()
    if wanted == "training":
        loss = numbers.training().unscaled.loss[-20:].mean()
        assert texts.number(loss, 2, language) in drawn
    if wanted == "weights causal":
        assert texts.number(8.044, 3, language) in drawn
        assert drawn.count("<table>") == 2


def test_bars_and_lines_lie_where_their_numbers_say():
    chart = svg.Chart("<title>", x=(0, 10), y=(0, 4), below="x")
    chart.bars([0, 5, 10], [4, 1], svg.BLUE)
    left, right = (x for x in chart.marks)
    assert 'y="26.0"' in left
    height = svg.HEIGHT - svg.BOTTOM - svg.TOP
    assert f'height="{height:.1f}"' in left
    assert f'height="{height / 4:.1f}"' in right
    assert "&lt;title&gt;" in chart.svg("a & b")
    assert svg.smooth(np.arange(20.0), n=2)[[0, 10]].tolist() == [1.0, 10.0]
