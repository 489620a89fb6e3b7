"""The parts of a page: text, figures, code and questions, as HTML around marimo's own widgets.

A widget starts from what is kept and writes back what it is given, so that the page itself holds
nothing that a reload could lose.
"""

import logging
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import marimo as mo

from scaledot import textbook
from scaledot.lesson import answers, figures, numbers
from scaledot.lesson.content import Lesson, Question
from scaledot.lesson.progress import Progress
from scaledot.lesson.texts import number, say

SWITCH = {"sqrt": "1/sqrt(d)", "none": "none"}
"""Choices of the figure's scale: ids of their names, and names in `numbers`."""


SETTLE = 0.25
"""Seconds from a click until a run. The editor's last key and the click are two requests of the
browser's, and may come in either order."""


class Setting(NamedTuple):
    """What all parts of a page share."""

    lesson: Lesson
    language: str
    progress: Progress
    changed: Callable[[], None]
    """Call it to have the page drawn again."""
    restart: Callable[[], None]
    """Call it to have the page made anew from what is kept."""
    n_starts: int
    """How often it was."""

    def say(self, name: str, /, **facts: Any) -> str:
        """Return a text of the page."""
        return say(name, self.language, **facts)


class Prose:
    """Text, formulas and code blocks."""

    def __init__(self, text: str) -> None:
        self._html = markdown(text)

    def html(self) -> str:
        """Return the text."""
        return self._html


class Failed:
    """What stands where something cannot be shown, in the page's language and not marimo's."""

    def __init__(self, error: Exception, language: str) -> None:
        logging.getLogger(__name__).error("cannot be shown", exc_info=error)
        self._told = say("page.failed", language, error=f"{type(error).__name__}: {error}")

    def html(self) -> str:
        """Return what happened."""
        return f'<p class="verdict wrong">{escape(self._told)}</p>'


class Figure:
    """A figure that stands still."""

    def __init__(self, setting: Setting, wanted: str) -> None:
        self.setting, self.wanted = setting, wanted

    def html(self) -> str:
        """Return the figure."""
        return figures.draw(self.wanted, self.setting.language)


class Training(Figure):
    """The figure of the training, which comes when the training is done."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, "training")
        if not numbers.trained():
            mo.Thread(target=self._wait).start()

    def _wait(self) -> None:
        """Have the page drawn once the training is there."""
        numbers.training()
        self.setting.changed()

    def html(self) -> str:
        """Return the figure, or say that it comes."""
        if numbers.trained():
            return super().html()
        return f'<p role="status">{self.setting.say("page.training")}</p>'


class Spread:
    """The figure of the scale, with a slider for the size and a switch for the scale."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        kept = setting.progress.item("figure-spread").get("setting", {})
        size, scale = kept.get("d", 1024), kept.get("scale", "none")
        self.size = mo.ui.slider(
            steps=numbers.SIZES,
            value=size,
            label=setting.say("figure.size"),
            full_width=True,
            on_change=lambda _: self._moved(),
        )
        names = {setting.say(f"scale.{name}"): name for name in SWITCH}
        self.scale = mo.ui.radio(
            options=names,
            value=setting.say(f"scale.{scale}"),
            inline=True,
            label=setting.say("figure.scale"),
            on_change=lambda _: self._moved(),
        )

    def _moved(self) -> None:
        """Keep the setting, and show it."""
        setting = {"d": int(self.size.value), "scale": self.scale.value}
        self.setting.progress.set("figure-spread", setting)
        self.setting.changed()

    def html(self) -> str:
        """Return the controls and the figure."""
        drawn = figures.draw(
            f"spread {int(self.size.value)} {SWITCH[self.scale.value]}", self.setting.language
        )
        return f'<div class="controls">{self.size.text}{self.scale.text}</div>{drawn}'


class Source:
    """The library's own definition, beside the lesson's."""

    def __init__(self, setting: Setting) -> None:
        code = Path(textbook.__file__).read_text(encoding="utf-8")
        text = f"```python\n{code}```"
        summary = setting.say("page.source")
        self._html = f"<details><summary>{summary}</summary>{markdown(text)}</details>"

    def html(self) -> str:
        """Return the source, folded."""
        return self._html


class Asked:
    """A question."""

    def __init__(self, setting: Setting, name: str) -> None:
        self.setting, self.question = setting, setting.lesson.questions[name]
        kept = setting.progress.item(name).get("last", {}).get("answer")
        make = {"choice": self._choice, "blank": self._blank, "match": self._match}
        self.widgets: list[Any] = make[self.question.kind](kept)

    def _choice(self, kept: Any) -> list[Any]:
        """Return a group of radio buttons."""
        language = self.setting.language
        names = {x.text[language]: x.id for x in self.question.options}
        chosen = next((text for text, name in names.items() if name == kept), None)
        label = self.question.prompt[language]
        return [mo.ui.radio(options=names, value=chosen, label=label, on_change=self._answered)]

    def _blank(self, kept: Any) -> list[Any]:
        """Return a field for the blank."""
        return [
            mo.ui.text(
                value=kept or "",
                label=self.setting.say("page.blank"),
                debounce=True,
                on_change=lambda text: self._answered(text) if text.strip() else None,
            )
        ]

    def _match(self, kept: Any) -> list[Any]:
        """Return a drop-down for each left side."""
        language, pairs = self.setting.language, self.question.pairs
        options = {pairs[i].right[language]: str(i) for i in answers.shuffled(self.question)}
        chosen = list(kept or [])[: len(pairs)]
        chosen += [""] * (len(pairs) - len(chosen))
        return [
            mo.ui.dropdown(
                options=options,
                value=next((text for text, i in options.items() if i == chosen[place]), None),
                allow_select_none=True,
                label=pair.left[language],
                on_change=lambda _: self._chosen(),
            )
            for place, pair in enumerate(pairs)
        ]

    def _chosen(self) -> None:
        """Judge a match once every side has another."""
        chosen = [widget.value for widget in self.widgets]
        if None not in chosen:
            self._answered(chosen)

    def _answered(self, answer: Any) -> None:
        """Judge an answer, keep it, and show what it is worth."""
        judged = answers.judge(self.question, answer)
        self.setting.progress.answer(self.question.id, answer, judged.score)
        self.setting.changed()

    def html(self) -> str:
        """Return the question, and what the last answer is worth."""
        prompt = ""
        if self.question.kind != "choice":  # its prompt is the label of the group
            prompt = markdown(self.question.prompt[self.setting.language])
        widgets = "".join(widget.text for widget in self.widgets)
        kept = self.setting.progress.item(self.question.id).get("last")
        verdict = "" if kept is None else told(self.question, kept["answer"], self.setting)
        return (
            f'<section class="card question {self.question.kind}" id="{self.question.id}">'
            f'<p class="kind">{self.setting.say("page.question")}</p>{prompt}'
            f'<div class="answer">{widgets}</div><div role="status">{verdict}</div></section>'
        )


def told(question: Question, answer: Any, setting: Setting) -> str:
    """Return what an answer is worth, and why."""
    language = setting.language
    judged = answers.judge(question, answer)
    reasons: list[str] = []
    if question.kind == "choice":
        reasons = [question.options[i].why[language] for i in judged.wrong]
    elif question.kind == "blank":
        reasons = [question.near[i].why[language] for i in judged.wrong]
    else:
        reasons = [
            f"{question.pairs[i].left[language]}: {question.pairs[i].why[language]}"
            for i in judged.wrong
        ]
    right = judged.score == 1
    head = setting.say("page.right" if right else "page.wrong")
    if question.kind == "match" and not right:
        most = len(question.pairs)
        head = setting.say("page.partly", points=most - len(judged.wrong), most=most)
    body = [question.explain[language]] if right else reasons
    kind = "right" if right else "wrong"
    text = "\n\n".join([f"**{'✓' if right else '✗'} {head}**", *body])
    return f'<div class="verdict {kind}">{markdown(text)}</div>'


def markdown(text: str) -> str:
    """Return Markdown with formulas as HTML; no line breaks between a formula and its ending."""
    html: str = mo.md(text).text
    return ENDING.sub(r'<span class="whole">\1\2</span>', html)


ENDING = re.compile(r"(<marimo-tex [^>]*>[^<]*</marimo-tex>)([^\s<&]+)")
"""A formula, and what is written on to it: a full stop, or a Turkish suffix."""


def points(setting: Setting) -> str:
    """Return the score of all questions and exercises, the best of each."""
    lesson = setting.lesson
    items = setting.progress.items()
    names = [*lesson.questions, *lesson.exercises]
    reached = sum(items.get(name, {}).get("best", {}).get("score", 0) for name in names)
    digits = 0 if float(reached).is_integer() else 1
    return setting.say(
        "page.score", points=number(reached, digits, setting.language), most=len(names)
    )
