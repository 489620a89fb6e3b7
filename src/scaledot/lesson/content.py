"""Lessons as data: a folder of pages, questions and exercises, read into frozen dataclasses.

    lesson.toml                 id and title
    10-name.tr.md 10-name.en.md pages in their order, with lines ::kind name:: where parts go
    questions.toml              questions of all pages
    exercises/name.toml         an exercise: starter, expected text, solution, hints by mistake
    code/name.py                code that a page shows, runs, and shows the output of

Every file is UTF-8. Every text stands there in all languages side by side (`prompt.tr`,
`prompt.en`); a formula or code that is the same in all of them may be one string. Reading collects
all problems, not the first one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from scaledot.lesson import tables
from scaledot.lesson.tables import LANGUAGES, Table, Text

BUILT_IN = Path(__file__).resolve().with_name("content") / "attention"

_MARKER = re.compile(r"^::(\w+)(?: ([^:\n]+))?::$", re.M)
_PAGE = re.compile(r"(\d+)-([\w-]+)\.(\w+)\.md")


class Malformed(ValueError):
    """A folder that is no lesson; the message lists what is wrong."""


class Option(NamedTuple):
    """One answer to choose."""

    id: str
    text: Text
    why: Text
    """Why it is wrong; empty for the right one."""


class Near(NamedTuple):
    """A wrong text for a blank, and why it is wrong."""

    text: str
    why: Text


class Pair(NamedTuple):
    """What belongs together, and why."""

    left: Text
    right: Text
    why: Text


@dataclass(frozen=True)
class Question:
    """A question; what there is to answer depends on its kind."""

    id: str
    kind: str
    """"choice", "blank" or "match"."""
    prompt: Text
    explain: Text
    answer: str = ""
    """The id of the right option."""
    options: tuple[Option, ...] = ()
    accept: tuple[str, ...] = ()
    """Texts that are right in a blank."""
    near: tuple[Near, ...] = ()
    pairs: tuple[Pair, ...] = ()


class Hints(NamedTuple):
    """The ladder of hints of one mistake."""

    did: Text
    """What the learner did."""
    why: Text
    """Why it matters."""
    where: Text
    """Where to look."""
    figure: str
    """The picture that shows it, with its settings: a name and words."""
    program: str
    """A program that makes the mistake, in an exercise without a bank."""


@dataclass(frozen=True)
class Exercise:
    """A function to write."""

    id: str
    title: Text
    task: Text
    entry: str
    """The name of the function."""
    returns: Text
    starter: str
    here: Text
    """The comment where to write; stands in the starter as {here}."""
    expected: str
    """What the program prints, to the letter; nothing if it is empty."""
    solution: str
    bank: str
    """The family of `recipes` that knows the mistakes; empty: `cases` and programs do."""
    cases: tuple[str, ...]
    mistakes: Mapping[str, Hints]

    def started(self, language: str) -> str:
        """Return the file that a learner starts with."""
        return self.starter.replace("{here}", self.here[language])


class Page(NamedTuple):
    """One step of a lesson."""

    id: str
    text: Text
    """Markdown, with markers."""

    def title(self, language: str) -> str:
        """Return the first heading."""
        return self.text[language].partition("\n")[0].lstrip("# ")

    def parts(self, language: str) -> Iterator[tuple[str, str]]:
        """Go through the text in ("text", markdown) and (kind, name)."""
        text, stop = self.text[language], 0
        for marker in _MARKER.finditer(text):
            if before := text[stop : marker.start()].strip():
                yield "text", before
            yield marker[1], marker[2] or ""
            stop = marker.end()
        if rest := text[stop:].strip():
            yield "text", rest

    def markers(self, language: str) -> list[tuple[str, str]]:
        """Return what the page shows beside its text."""
        return [part for part in self.parts(language) if part[0] != "text"]


@dataclass(frozen=True)
class Lesson:
    """A lesson, as read."""

    folder: Path
    id: str
    """What answers are kept under."""
    title: Text
    pages: tuple[Page, ...]
    questions: Mapping[str, Question]
    exercises: Mapping[str, Exercise]
    codes: Mapping[str, str]
    problems: tuple[str, ...] = field(default=(), compare=False)
    """What is wrong with the files."""


def load(folder: Path = BUILT_IN) -> Lesson:
    """Return the lesson in a folder.

    Raises
    ------
    Malformed
        A folder without lesson.toml, or files with missing or misplaced entries.
    """
    lesson = read(folder)
    if lesson.problems:
        more = len(lesson.problems) - 1
        rest = f" (and {more} more: scaledot lesson check {folder})" if more else ""
        raise Malformed(f"{lesson.problems[0]}{rest}")
    return lesson


def read(folder: Path) -> Lesson:
    """Return what can be read of a lesson, and what is wrong with it.

    While a file is not UTF-8 that alone is wrong, for much would seem to be missing without it.
    """
    problems: list[str] = []
    if not (folder / "lesson.toml").is_file():
        raise Malformed(f"{folder} is no lesson: a lesson is a folder with a lesson.toml")
    if unreadable := tuple(_not_utf8(folder)):
        none = dict.fromkeys(LANGUAGES, "")
        return Lesson(folder, folder.resolve().name, none, (), {}, {}, {}, unreadable)
    about = tables.read(folder / "lesson.toml", problems)
    questions = tables.read(folder / "questions.toml", problems)
    exercises = {}
    for file in sorted(folder.glob("exercises/*.toml")):
        table = tables.read(file, problems)
        exercises[file.stem] = _exercise(file.stem, table)
        table.done()
    entries = [_question(x) for x in questions.tables("question")]
    for name in {x.id for x in entries if [y.id for y in entries].count(x.id) > 1}:
        problems.append(f"questions.toml: two questions have the id {name!r}")
    lesson = Lesson(
        folder=folder,
        id=about.word("id"),
        title=about.text("title"),
        pages=_pages(folder, problems),
        questions={x.id: x for x in entries},
        exercises=exercises,
        codes={x.name: x.read_text(tables.UTF8) for x in sorted(folder.glob("code/*.py"))},
        problems=(),
    )
    about.done()
    questions.done()
    return Lesson(**{**lesson.__dict__, "problems": tuple(problems)})


# ----------------------------------------------------------------------------------- the pieces


def _not_utf8(folder: Path) -> Iterator[str]:
    """Go through the files of a lesson that are in another encoding."""
    for pattern in ("*.toml", "*.md", "exercises/*.toml", "code/*.py"):
        for file in sorted(folder.glob(pattern)):
            raw = file.read_bytes()
            try:
                raw.decode("utf-8")
            except UnicodeDecodeError as error:
                line = raw.count(b"\n", 0, error.start) + 1
                yield (f"{file.relative_to(folder).as_posix()}: must be UTF-8, has the byte "
                       f"0x{raw[error.start]:02x} in line {line}; save it as UTF-8")  # fmt: skip


def _pages(folder: Path, problems: list[str]) -> tuple[Page, ...]:
    """Return the pages in the order of their numbers."""
    texts: dict[tuple[int, str], dict[str, str]] = {}
    for file in folder.glob("*.md"):
        parts = _PAGE.fullmatch(file.name)
        if parts is None or parts[3] not in LANGUAGES:
            problems.append(f"{file.name}: pages are called NN-name.LANGUAGE.md, "
                            f"languages are {', '.join(LANGUAGES)}")  # fmt: skip
            continue
        text = file.read_text(tables.UTF8).strip()
        texts.setdefault((int(parts[1]), parts[2]), {})[parts[3]] = text
    pages = []
    for (number, name), found in sorted(texts.items()):
        for language in LANGUAGES:
            if not found.get(language):
                problems.append(f"{number:02}-{name}.{language}.md is missing or empty")
        pages.append(Page(name, {x: found.get(x, "") for x in LANGUAGES}))
    if not pages:
        problems.append("there is no page: write 10-name.tr.md and 10-name.en.md")
    return tuple(pages)


def _question(table: Table) -> Question:
    """Return a question from its table."""
    question = Question(
        id=table.word("id"),
        kind=table.word("kind"),
        prompt=table.text("prompt"),
        explain=table.text("explain"),
        answer=table.word("answer", ""),
        options=tuple(
            Option(x.word("id"), x.text("text"), x.text("why", needed=False))
            for x in table.tables("option")
        ),
        accept=table.words("accept"),
        near=tuple(Near(x.word("is"), x.text("why")) for x in table.tables("near")),
        pairs=tuple(
            Pair(x.text("left"), x.text("right"), x.text("why")) for x in table.tables("pair")
        ),
    )
    table.done()
    return question


def _exercise(name: str, table: Table) -> Exercise:
    """Return an exercise from its table."""
    mistakes = {}
    for mistake, hints in table.subtables("mistake"):
        mistakes[mistake] = Hints(
            hints.text("did"),
            hints.text("why"),
            hints.text("where"),
            hints.word("figure", ""),
            hints.word("program", ""),
        )
        hints.done()
    return Exercise(
        id=name,
        title=table.text("title"),
        task=table.text("task"),
        entry=table.word("entry"),
        returns=table.text("returns"),
        starter=table.word("starter"),
        here=table.text("here"),
        expected=table.word("expected", ""),
        solution=table.word("solution"),
        bank=table.word("bank", ""),
        cases=table.words("cases"),
        mistakes=mistakes,
    )
