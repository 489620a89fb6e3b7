"""A program on the page: its lines to be read and changed, and what they print when they run."""

import time
from html import escape

import marimo as mo

from scaledot.lesson.judge import ending
from scaledot.lesson.page.parts import SETTLE, Setting
from scaledot.lesson.run import USUAL, Run, remembered, run
from scaledot.lesson.texts import say


class Program:
    """A program of the lesson; what is made of it is kept."""

    def __init__(self, setting: Setting, name: str) -> None:
        self.setting, self.name = setting, f"run-{name}"
        self.original = setting.lesson.codes[name]
        kept = setting.progress.item(self.name).get("setting", {})
        self.shown = kept.get("code", self.original)
        self.found: Run | None = None
        self.running = False
        if self.shown != self.original:  # it may take all the time that a run may
            self._start(written=False)
        self.editor = mo.ui.code_editor(
            # marimo leaves an editor as it is unless it starts from another text than before
            value=self.shown + "\n" * (setting.n_starts % 2),
            label=setting.say("page.program", name=name),
            debounce=False,
        )
        self.run = mo.ui.button(label=setting.say("page.try"), on_change=lambda _: self._run())
        self.reset = mo.ui.button(
            label=setting.say("page.reset"), on_change=lambda _: self._reset()
        )

    def _run(self) -> None:
        """Run what is written, beside the page, which goes on."""
        if not self.running:
            self._start(written=True)
            self.setting.changed()

    def _start(self, *, written: bool) -> None:
        """Start a thread that waits for a run, of what is newly written or of what was kept."""
        self.running = True
        mo.Thread(target=self._wait, args=(written,)).start()

    def _wait(self, written: bool) -> None:
        """Wait for the run, and show what it printed."""
        try:
            if written:
                time.sleep(SETTLE)
                self.shown = self.editor.value
                self.setting.progress.set(self.name, {"code": self.shown})
            self.found = run(self.shown)
        finally:
            self.running = False
            self.setting.changed()

    def _reset(self) -> None:
        """Go back to the lesson's own lines."""
        self.setting.progress.set(self.name, {})
        self.setting.restart()

    def html(self) -> str:
        """Return the program and what it prints."""
        buttons = f'<div class="buttons">{self.run.text}{self.reset.text}</div>'
        return (
            f'<section class="program" id="{self.name}">{self.editor.text}{buttons}'
            f'<p class="caption">{self.setting.say("page.output_of")}</p>'
            f'<div role="status">{self._printed()}</div></section>'
        )

    def _printed(self) -> str:
        """Return what the program printed, and what ended it if anything did."""
        if self.running:
            return f"<p>{self.setting.say('page.running', **USUAL.shown)}</p>"
        found = self.found or remembered(self.shown)  # the lesson's own lines, at first
        printed = f"<pre>{escape(found.printed)}</pre>"
        ended = ending(found)
        if ended is None:
            return printed
        message, facts = ended
        told = say(f"grader.{message}", self.setting.language, **facts)
        return f'{printed}<p class="verdict wrong">{escape(told)}</p>'
