"""One page of a lesson: its parts in their order, and the ways to the other pages."""

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Protocol

import marimo as mo

from scaledot.lesson import content, progress
from scaledot.lesson.content import Exercise, Page, Question
from scaledot.lesson.page import parts
from scaledot.lesson.page.editor import Editor
from scaledot.lesson.page.parts import Setting, markdown, points
from scaledot.lesson.page.program import Program
from scaledot.lesson.tables import LANGUAGES

ANSWERS = "answers"
"""The step that shows all questions with their answers."""


class Part(Protocol):
    """What a page is made of."""

    def html(self) -> str:
        """Return it as it is now."""


class Shown:
    """One page as it is shown: a step in a language."""

    def __init__(self, setting: Setting, step: str) -> None:
        self.setting, self.step = setting, step
        pages = setting.lesson.pages
        self.page = next((page for page in pages if page.id == step), pages[0])
        self.parts = (
            [] if step == ANSWERS
            else [_made(setting, *part) for part in self.page.parts(setting.language)]
        )  # fmt: skip
        self.exports = [
            mo.download(
                data=lambda: progress.to_json(setting.progress).encode(),
                filename="lesson.json",
                mimetype="application/json",
                label=f"{setting.say('page.export')} (JSON)",
            ),
            mo.download(
                data=lambda: progress.to_csv(setting.progress).encode("utf-8-sig"),
                filename="lesson.csv",
                mimetype="text/csv",
                label=f"{setting.say('page.export')} (CSV)",
            ),
        ]

    def html(self) -> str:
        """Return the page as it is now."""
        if self.step == ANSWERS:
            body = _all_answers(self.setting)
        else:
            body = "".join(map(self._safely, self.parts))
        return (
            f'<div class="lesson" lang="{self.setting.language}">{self._head()}'
            f"<main>{body}</main>{self._around()}{self._foot()}</div>"
        )

    def _safely(self, part: Part) -> str:
        """Return a part as it is now, or that it failed."""
        try:
            return part.html()
        except Exception as error:
            return parts.Failed(error, self.setting.language).html()

    def _link(self, step: str, text: str, language: str = "", more: str = "") -> str:
        """Return a link to a step."""
        address = f"?lang={language or self.setting.language}&amp;step={step}"
        # `_self`, so that marimo leaves the link to the browser and the page starts anew
        return f'<a href="{address}" target="_self"{more}>{escape(text)}</a>'

    def _head(self) -> str:
        """Return title, steps and the other language."""
        setting, lesson = self.setting, self.setting.lesson
        here = self.step if self.step == ANSWERS else self.page.id
        steps = [(page.id, page.title(setting.language)) for page in lesson.pages]
        steps.append((ANSWERS, setting.say("page.all_answers")))
        links = "".join(
            f"<li>{self._link(name, title, more=' aria-current=page' if name == here else '')}</li>"
            for name, title in steps
        )
        other = next(x for x in LANGUAGES if x != setting.language)
        about = f' lang="{other}" hreflang="{other}" class="language"'
        return (
            f'<header><p class="title">{escape(lesson.title[setting.language])}</p>'
            f"{self._link(here, setting.say('page.language'), other, about)}"
            f'<nav aria-label="{setting.say("page.steps")}"><ol>{links}</ol></nav></header>'
        )

    def _around(self) -> str:
        """Return the ways to the step before and the one after."""
        if self.step == ANSWERS:
            return ""
        pages = self.setting.lesson.pages
        place = pages.index(self.page)
        ways = []
        if place > 0:
            ways.append(self._way("back", pages[place - 1], "← {}"))
        if place + 1 < len(pages):
            ways.append(self._way("next", pages[place + 1], "{} →"))
        return f'<div class="around">{"".join(ways)}</div>'

    def _way(self, name: str, page: Page, form: str) -> str:
        """Return the way to a neighbouring step."""
        text = f"{self.setting.say(f'page.{name}')}: {page.title(self.setting.language)}"
        return self._link(page.id, form.format(text))

    def _foot(self) -> str:
        """Return the score, and where everything is kept."""
        file = escape(str(self.setting.progress.file))
        kept = escape(self.setting.say("page.kept", file="\0")).replace(
            "\0", f"<code>{file}</code>"
        )
        exports = "".join(export.text for export in self.exports)
        return (
            f'<footer><p class="score">{points(self.setting)}</p><p>{kept}</p>'
            f'<div class="buttons">{exports}</div></footer>'
        )


def open_page(
    meta: Mapping[str, Any],
    wanted: Mapping[str, Any],
    changed: Callable[[], None],
    restart: Callable[[], None],
    n_starts: int,
) -> Part:
    """Return the page that an address asks for.

    `meta` is what the server says of the lesson, nothing where the app runs in marimo's own editor;
    `wanted` are the words of the address. `changed` has the page drawn again, `restart` has it made
    anew from what is kept, for the `n_starts`-th time.
    """
    language = str(wanted.get("lang", meta.get("language", "")))
    language = language if language in LANGUAGES else "en"
    try:
        lesson = content.load(Path(meta.get("lesson", content.BUILT_IN)))
        file = Path(meta.get("state", progress.default_file()))
        kept = progress.Progress(file, lesson.id)
    except (content.Malformed, progress.Unreadable) as error:
        return parts.Failed(error, language)
    setting = Setting(lesson, language, kept, changed, restart, n_starts)
    return Shown(setting, str(wanted.get("step", "")))


def _made(setting: Setting, kind: str, name: str) -> Part:
    """Return a part of a page, or that it failed."""
    try:
        return _part(setting, kind, name)
    except Exception as error:
        return parts.Failed(error, setting.language)


def _part(setting: Setting, kind: str, name: str) -> Part:
    """Return a part of a page from its marker."""
    if kind == "text":
        return parts.Prose(name)
    if kind == "question":
        return parts.Asked(setting, name)
    if kind == "exercise":
        return Editor(setting, name)
    if kind == "run":
        return Program(setting, name)
    if kind == "source":
        return parts.Source(setting)
    if name == "spread":
        return parts.Spread(setting)
    return parts.Training(setting) if name == "training" else parts.Figure(setting, name)


# ----------------------------------------------------------------------------- for those who read


def _all_answers(setting: Setting) -> str:
    """Return all questions and exercises with their answers."""
    pieces = [markdown(f"# {setting.say('page.all_answers')}\n\n{setting.say('page.reading')}")]
    for page in setting.lesson.pages:
        markers = page.markers(setting.language)
        shown = [_answered(setting, kind, name) for kind, name in markers]
        if any(shown):
            pieces.append(markdown(f"## {page.title(setting.language)}") + "".join(shown))
    return "".join(pieces)


def _answered(setting: Setting, kind: str, name: str) -> str:
    """Return a question or an exercise with its answer."""
    if kind == "question":
        text = _question(setting, setting.lesson.questions[name])
    elif kind == "exercise":
        text = _exercise(setting, setting.lesson.exercises[name])
    else:
        return ""
    label = setting.say(f"page.{kind}")
    return f'<section class="card"><p class="kind">{label}</p>{markdown(text)}</section>'


def _question(setting: Setting, question: Question) -> str:
    """Return a question, its answer, and why others are wrong, as Markdown."""
    language = setting.language
    wrong: list[tuple[str, str]] = []
    if question.kind == "choice":
        right = next(x.text[language] for x in question.options if x.id == question.answer)
        wrong = [(x.text[language], x.why[language]) for x in question.options
                 if x.id != question.answer]  # fmt: skip
    elif question.kind == "blank":
        right = f"`{question.accept[0]}`"
        wrong = [(f"`{x.text}`", x.why[language]) for x in question.near]
    else:
        right = "; ".join(f"{x.left[language]} ↔ {x.right[language]}" for x in question.pairs)
    lines = [
        question.prompt[language],
        f"**{setting.say('page.answer')}:** {right}",
        question.explain[language],
    ]
    if wrong:
        reasons = "\n".join(f"- {text}: {why}" for text, why in wrong)
        lines.append(f"{setting.say('page.why_wrong')}:\n\n{reasons}")
    return "\n\n".join(lines)


def _exercise(setting: Setting, exercise: Exercise) -> str:
    """Return an exercise, its solution, and what that prints, as Markdown."""
    language = setting.language
    return (
        f"### {exercise.title[language]}\n\n{exercise.task[language]}\n\n"
        f"**{setting.say('page.solution')}:**\n\n```python\n{exercise.solution.strip()}\n```\n\n"
        f"{setting.say('page.output_of')}:\n\n```text\n{exercise.expected.strip()}\n```"
    )
