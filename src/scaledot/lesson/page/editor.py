"""An exercise on the page: an editor, a run of its code, and what there is to say of it."""

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from typing import Any

import marimo as mo

from scaledot.lesson import figures, texts
from scaledot.lesson.judge import CHECKS, NoVerdict, Verdict, difference, judge, lines
from scaledot.lesson.page.parts import SETTLE, Setting, markdown
from scaledot.lesson.run import USUAL
from scaledot.lesson.tables import LANGUAGES

MARK = "\ue000"
"""Around the name of a fact until the text is HTML; a private character that Markdown lets pass."""


class Editor:
    """An exercise."""

    def __init__(self, setting: Setting, name: str) -> None:
        self.setting, self.exercise = setting, setting.lesson.exercises[name]
        self.running = self.unjudged = False
        say = setting.say
        # marimo leaves an editor as it is unless it starts from another text than before.
        starter = self.exercise.started(setting.language) + "\n" * (setting.n_starts % 2)
        self.editor = mo.ui.code_editor(
            value=setting.progress.item(name).get("code", starter),
            language="python",
            label=say("page.code"),
            # Anything but False would judge an older text than the one that is seen.
            debounce=False,
            on_change=self._written,
        )
        self.run = mo.ui.button(label=say("page.run"), on_change=lambda _: self._run())
        self.hint = mo.ui.button(label=say("page.hint"), on_change=lambda _: self._hint())
        self.reset = mo.ui.button(label=say("page.reset"), on_change=lambda _: self._reset())

    def _written(self, code: str) -> None:
        """Keep the code, unless it is a starter: that comes back in the page's language."""
        starters = [self.exercise.started(language).strip() for language in LANGUAGES]
        started = code.strip() in starters
        self.setting.progress.code(self.exercise.id, None if started else code)

    def _run(self) -> None:
        """Run the code and judge it, beside the page, which goes on."""
        if self.running:
            return
        self.running, self.unjudged = True, False
        self.setting.changed()
        mo.Thread(target=self._judge).start()

    def _judge(self) -> None:
        """Judge the code, keep the verdict, and show it."""
        try:
            time.sleep(SETTLE)
            code = self.editor.value
            verdict = judge(self.exercise, code)
            answer = verdict.to_dict() | {"code": code}
            self.setting.progress.answer(self.exercise.id, answer, verdict.score)
        except NoVerdict:
            self.unjudged = True
        finally:
            self.running = False
            self.setting.changed()

    def _hint(self) -> None:
        """Show one more rung of the ladder."""
        shown = self._item().get("hints", 1)
        self.setting.progress.hint(self.exercise.id, shown + 1)
        self.setting.changed()

    def _reset(self) -> None:
        """Go back to the starter; what was tried stays in the file."""
        self.setting.progress.code(self.exercise.id, None)
        self.setting.restart()

    def _item(self) -> Any:
        """Return what is kept of the exercise."""
        return self.setting.progress.item(self.exercise.id)

    def html(self) -> str:
        """Return the exercise, and what there is to say of the last run."""
        say, exercise, language = self.setting.say, self.exercise, self.setting.language
        last = self._item().get("last")
        verdict = Verdict.from_dict(last["answer"]) if last else None
        told = rest = ""
        buttons = [self.run.text]
        if self.running:
            told = f"<p>{say('page.running', **USUAL.shown)}</p>"
        elif self.unjudged:
            told = f'<p class="verdict wrong">{say("page.unjudged")}</p>'
        elif verdict is not None:
            told = self._told(verdict)
            rest = self._hints(verdict, last["answer"]["code"])
            if self._item().get("hints", 1) < len(texts.rungs(verdict)):
                buttons.append(self.hint.text)
        buttons.append(self.reset.text)
        return (
            f'<section class="card exercise" id="{exercise.id}">'
            f'<p class="kind">{say("page.exercise")}</p>'
            f"{markdown('## ' + exercise.title[language])}{markdown(exercise.task[language])}"
            f'{self.editor.text}<p class="note">{say("page.keyboard")}</p>'
            f'<div class="buttons">{"".join(buttons)}</div>'
            f'<div role="status">{told}</div>{rest}{self._printed(verdict)}</section>'
        )

    def _told(self, verdict: Verdict) -> str:
        """Return the checks, and what to say first."""
        say, language = self.setting.say, self.setting.language
        kind = "right" if verdict.right else "wrong"
        items = "".join(
            f"<li>{'✓' if passed else '✗'} {escape(text)}</li>"
            for passed, text in texts.checks(verdict, language)
        )
        count = say("page.checks", passed=len(verdict.passed), all=len(CHECKS))
        tries = say("page.tries", n=self._item()["tries"])
        return (
            f'<div class="verdict {kind}">{self._message(verdict)}</div>'
            f'<p class="caption">{tries}. {count}</p><ul class="checks">{items}</ul>'
        )

    def _message(self, verdict: Verdict) -> str:
        """Return what to say first: words of the lesson are Markdown, facts are what they are."""
        marks = {name: None if fact is None else f"{MARK}{name}{MARK}"
                 for name, fact in verdict.facts.items()}  # fmt: skip
        marked = replace(verdict, facts=marks)
        return re.sub(
            f"{MARK}(\\w+){MARK}",
            lambda mark: f'<span class="fact">{escape(str(verdict.facts[mark[1]]))}</span>',
            markdown(texts.message(marked, self.exercise, self.setting.language)),
        )

    def _hints(self, verdict: Verdict, code: str) -> str:
        """Return the rungs of the ladder that are shown; the first one is the message itself."""
        if verdict.right:
            summary = self.setting.say("page.solution")
            return f"<details><summary>{summary}</summary>{self._solution(code)}</details>"
        rungs = texts.rungs(verdict)
        shown = min(self._item().get("hints", 1), len(rungs))
        count = self.setting.say("page.hints_used", shown=shown, all=len(rungs))
        pieces = [f'<p class="caption">{count}</p>']
        for rung in rungs[1:shown]:
            pieces.append(f"<h3>{self.setting.say(f'rung.{rung}')}</h3>")
            if rung == "solution":
                pieces.append(self._solution(code))
                continue
            pieces.append(markdown(texts.hint(verdict, self.exercise, rung, self.setting.language)))
            figure = self.exercise.mistakes[verdict.mistakes[0]].figure
            if rung == "why" and figure:
                pieces.append(figures.draw(figure, self.setting.language))
        return f'<div class="hints">{"".join(pieces)}</div>'

    def _solution(self, code: str) -> str:
        """Return the solution beside what was tried."""
        say = self.setting.say
        mine, theirs = say("page.code"), say("page.solution")
        return (
            f'<div class="beside"><div><p class="caption">{mine}</p>{_python(code)}</div>'
            f'<div><p class="caption">{theirs}</p>{_python(self.exercise.solution)}</div></div>'
        )

    def _printed(self, verdict: Verdict | None) -> str:
        """Return what was printed beside what is expected, the first difference marked."""
        say, label = self.setting.say, self.setting.say("page.differs")
        facts = {}
        if verdict is not None and "prints" not in verdict.passed:
            facts = difference(verdict.printed, self.exercise.expected)
        columns = [("page.expected", _marked(self.exercise.expected, facts, label))]
        if verdict is not None:
            columns.insert(0, ("page.printed", _marked(verdict.printed, facts, label)))
        pieces = [
            f'<div><p class="caption">{say(name)}</p><pre class="{name[5:]}">{text}</pre></div>'
            for name, text in columns
        ]
        warned = ""
        if verdict is not None and verdict.complained.strip():
            complained = escape(verdict.complained)
            warned = f'<p class="caption">{say("page.complained")}</p><pre>{complained}</pre>'
        return f'<div class="beside">{"".join(pieces)}</div>{warned}'


def _python(code: str) -> str:
    """Return a program."""
    longest = max(map(len, re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return markdown(f"{fence}python\n{code.strip(chr(10))}\n{fence}")


def _marked(text: str, facts: Mapping[str, int], label: str) -> str:
    """Return a printed text with the first difference marked."""
    shown = [escape(line) for line in lines(text)]
    if facts:
        shown += [""] * (facts["row"] - len(shown))
        place = facts["row"] - 1
        raw = "".join(lines(text)[place : place + 1])
        before, after = raw[: facts["column"] - 1], raw[facts["column"] - 1 :]
        mark = f'<mark title="{escape(label)}">{escape(after) or "␣"}</mark>'
        shown[place] = escape(before) + mark
    return "\n".join(shown)
