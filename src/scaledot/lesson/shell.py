"""The commands of the lesson at the shell: `scaledot lesson`, `lesson check`, `lesson grade`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from scaledot import checks
from scaledot.files import Refusal
from scaledot.lesson import check as whole
from scaledot.lesson import content, progress, texts
from scaledot.lesson.judge import NoVerdict, judge
from scaledot.lesson.tables import LANGUAGES, UTF8

app = typer.Typer(name="lesson", add_completion=False, rich_markup_mode=None)

Language = Annotated[
    str | None,
    typer.Option("--lang", metavar="tr|en", help="Language. Default: that of the locale."),
]
Folder = Annotated[
    Path,
    typer.Option(
        "--lesson",
        metavar="DIR",
        show_default=False,
        help="A lesson of your own. Default: the built-in one.",
    ),
]


@app.callback(invoke_without_command=True)
def lesson(
    context: typer.Context,
    language: Language = None,
    port: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=65535, show_default=False, help="Port. Default: a free one."
        ),
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, open nothing.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where answers and code are kept, a JSON file."),
    ] = None,
    folder: Folder = content.BUILT_IN,
) -> None:
    """Open the lesson on the scale: read it, try it, be told which mistake it was.

    It opens in the browser, served by this machine to this machine alone; no network is needed.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    chosen = _language(language)
    loaded = _load(folder)
    file = (state or progress.default_file()).absolute()
    try:
        progress.Progress(file, loaded.id)
        from scaledot.lesson.page.serve import serve
    except progress.Unreadable as error:
        raise Refusal(str(error)) from None
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("marimo", "uvicorn"):
            raise
        raise Refusal(
            f'the page of the lesson needs {missing}: pip install "scaledot[lesson]"'
        ) from None
    serve(folder, file, language=chosen, port=port, browser=not no_browser)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a lesson.")],
) -> None:
    """Say what is wrong with a lesson in a folder: both languages, answers, hints, solutions."""
    try:
        found = content.read(folder)
    except content.Malformed as error:
        raise Refusal(str(error)) from None
    problems = whole.check(found)
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    counts = f"{len(found.pages)} pages, {len(found.questions)} questions"
    typer.echo(f"{folder} is whole: {counts}, {len(found.exercises)} exercises, in tr and en")


@app.command()
def grade(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="The learner's program.")],
    exercise: Annotated[str, typer.Option(metavar="NAME", help="Which exercise it solves.")],
    language: Language = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print ids and numbers in place of words.")
    ] = False,
    folder: Folder = content.BUILT_IN,
) -> None:
    """Judge a program as the page does. Exit code 0: every check is passed; 1: not.

    The program runs in a process of its own, with limits of time, memory and output.
    """
    chosen = _language(language)
    loaded = _load(folder)
    try:
        wanted = loaded.exercises[checks.choice("exercise", exercise, tuple(loaded.exercises))]
    except ValueError as error:
        raise Refusal(str(error)) from None
    try:
        code = file.read_text(UTF8)
    except UnicodeDecodeError as error:
        raise Refusal(f"{file} must be UTF-8: {error}; save it as UTF-8") from None
    try:
        verdict = judge(wanted, code)
    except NoVerdict as error:
        raise Refusal(f"{error}; try again, or see `scaledot lesson check`") from None
    if as_json:
        typer.echo(json.dumps({"exercise": exercise, **verdict.to_dict()}))
    else:
        for passed, text in texts.checks(verdict, chosen):
            typer.echo(f"{'✓' if passed else '✗'} {text}")
        typer.echo(f"\n{texts.message(verdict, wanted, chosen)}")
    if not verdict.right:
        raise typer.Exit(1)


def _refuse_options_before(context: typer.Context) -> None:
    """Refuse options of the page before a subcommand, which would not see them."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise Refusal(
                f"options of the page come without `{context.invoked_subcommand}`, and its own "
                "after it"
            )


def _language(name: str | None) -> str:
    """Return the language that is asked for, or that of the locale."""
    if name is None:
        return texts.usual_language()
    try:
        return checks.choice("language", name, LANGUAGES)
    except ValueError as error:
        raise Refusal(str(error)) from None


def _load(folder: Path) -> content.Lesson:
    """Return the lesson in a folder, or refuse it."""
    try:
        return content.load(folder)
    except content.Malformed as error:
        raise Refusal(str(error)) from None
