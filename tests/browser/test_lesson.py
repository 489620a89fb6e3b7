"""The page of `scaledot lesson` in a browser without a network, in both languages.

Every test ends with a look at what the page asked of any other machine, and at its console.
"""

import csv
import http.client
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect as expecting

from scaledot.lesson import answers, content, progress
from scaledot.lesson.judge import NoVerdict
from scaledot.lesson.page import editor
from scaledot.lesson.page.parts import Setting
from scaledot.lesson.run import USUAL
from scaledot.lesson.tables import LANGUAGES
from scaledot.lesson.texts import say

WAIT = 30_000
"""Milliseconds that anything may take; most takes a hundredth of it, on a busy machine a tenth."""
SCREENS = os.environ.get("SCALEDOT_SCREENSHOTS")
"""A folder for pictures of the pages, to be looked at."""
LESSON = content.load()
EXERCISE = LESSON.exercises["attention"]
STEPS = [page.id for page in LESSON.pages]
HEADER = EXERCISE.solution[: EXERCISE.solution.index("rng =")]


def expect(locator, **more):
    expecting.set_options(timeout=WAIT)
    return expecting(locator, **more)


class Server:
    """`scaledot lesson`, started as a user does."""

    def __init__(self, state):
        self.state = state
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scaledot", "lesson", "--lang", "tr", "--no-browser",
             "--state", state],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.address = self.process.stdout.readline().strip()
        parts = urlsplit(self.address)
        self.root, self.port = f"http://{parts.netloc}", parts.port

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.stdout.close()
        return self.process.wait(timeout=10)

    def kept(self):
        return json.loads(self.state.read_text(encoding="utf-8"))["lessons"]["attention"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("lesson") / "answers.json")
    yield server
    server.stop()


def watch(context, address):
    """Return a page of a context, and what it said and asked of other machines."""
    root = address.partition("/?")[0]
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda x: said.append(x.text) if x.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))

    def refuse(route):
        asked.append(route.request.url)
        route.abort()

    context.route(lambda url: not url.startswith((root, "data:", "blob:")), refuse)
    page.goto(address)
    return page, said, asked


@pytest.fixture(scope="module")
def tab(browser, server):
    """One page that all tests use, since a fresh one loads marimo anew."""
    context = browser.new_context(viewport={"width": 1100, "height": 1400})
    page, said, asked = watch(context, server.address)
    yield page, said, asked
    context.close()


@pytest.fixture
def visit(tab, server):
    """Go to a step in a language, with nothing answered yet; afterwards look at the console."""
    page, said, asked = tab
    server.state.unlink(missing_ok=True)

    def go(language, step):
        page.goto(f"{server.root}/?lang={language}&step={step}")
        expect(page.locator(".lesson")).to_be_visible(timeout=WAIT)
        return page

    yield go
    assert (said, asked) == ([], [])


# ------------------------------------------------------------------------------------ the figure


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_slider_moves_the_figure(visit, server, language):
    page = visit(language, "why")
    figure = page.locator("figure.spread")
    none, scaled = say("scale.none", language), say("scale.sqrt", language)
    expect(figure.locator("figcaption")).to_have_text(f"d = 1024, {none}")
    spread = figure.locator("dd").first
    before, shape = spread.inner_text(), figure.locator("polyline").get_attribute("points")
    slider = page.get_by_role("slider", name=say("figure.size", language))
    expect(slider).to_have_attribute("aria-valuetext", "1024")
    for _ in range(4):
        slider.press("ArrowLeft")
    expect(figure.locator("figcaption")).to_have_text(f"d = 64, {none}")
    expect(slider).to_have_attribute("aria-valuetext", "64")
    assert spread.inner_text() != before
    assert figure.locator("polyline").get_attribute("points") != shape
    page.get_by_role("radio", name=scaled).click()
    expect(figure.locator("figcaption")).to_have_text(f"d = 64, {scaled}")
    measured = re.match(r"[\d.,]+", spread.inner_text())[0]
    assert float(measured.replace(",", ".")) == pytest.approx(1, abs=0.05)
    page.reload()
    expect(figure.locator("figcaption")).to_have_text(f"d = 64, {scaled}")
    losses = page.locator("figure.training polyline")
    expect(losses).to_have_count(2)
    assert server.kept()["figure-spread"]["setting"] == {"d": 64, "scale": "sqrt"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_lessons_own_lines_print_its_numbers_and_can_be_changed(visit, server, language):
    page = visit(language, "numbers")
    program = page.locator(".program")
    printed = "4 2.0 1.0\n64 8.1 1.01\n1024 32.0 1.0"
    expect(program.locator("pre")).to_have_text(printed)
    editor = program.get_by_role("textbox")
    editor.fill(LESSON.codes["numbers.py"].replace("(4, 64, 1024)", "(4, 1)"))
    run = program.get_by_role("button", name=say("page.try", language))
    run.click()
    expect(program.locator("pre")).to_have_text(re.compile(r"4 2\.0 1\.0\n1 1\.0 [01]\.\d+"))
    page.reload()
    expect(editor).to_contain_text("(4, 1)")
    editor.fill("1 / 0")
    run.click()
    expect(program.get_by_role("status")).to_contain_text("ZeroDivisionError")
    program.get_by_role("button", name=say("page.reset", language)).click()
    expect(program.locator("pre")).to_have_text(printed)
    expect(editor).to_contain_text("(4, 64, 1024)")


def test_a_program_runs_at_every_press_and_a_stopped_run_is_not_kept(visit, tmp_path):
    page = visit("en", "numbers")
    program = page.locator(".program")
    runs = str(tmp_path / "runs")
    program.get_by_role("textbox").fill(
        f"import os\nfile = open({runs!r}, 'a')\nfile.write('x')\nfile.close()\n"
        f"n = os.path.getsize({runs!r})\nif n == 1: os._exit(3)\nprint(n)\n"
    )
    run, status = program.get_by_role("button", name="Run"), program.get_by_role("status")
    run.click()
    expect(status).to_contain_text(say("grader.died", "en"))
    page.locator("#blank-scale").get_by_role("textbox").fill("log")
    page.locator("#blank-scale").get_by_role("textbox").press("Enter")
    expect(page.locator("#blank-scale").get_by_role("status")).to_contain_text("✗")
    expect(status).to_contain_text(say("grader.died", "en"))  # the page drawn again runs nothing
    for n in (2, 3):
        run.click()
        expect(status.locator("pre")).to_have_text(f"{n}")


# --------------------------------------------------------------------------------- the questions


def answer(page, language, question, given):
    """Answer a question as a reader does."""
    card = page.locator(f"[id='{question.id}']")
    if question.kind == "choice":
        option = next(x for x in question.options if x.id == given)
        name = re.compile(f"^{re.escape(option.text[language])}$")
        card.get_by_role("radio", name=name).click()
    elif question.kind == "blank":
        field = card.get_by_role("textbox", name=say("page.blank", language))
        field.fill(given)
        field.press("Enter")
    else:
        for pair, place in zip(question.pairs, given, strict=True):
            right = question.pairs[int(place)].right[language]
            card.get_by_role("combobox", name=pair.left[language]).select_option(label=right)
    return card.get_by_role("status")


def answers_of(question):
    """Return the right answer, and every wrong one that has a reason."""
    if question.kind == "choice":
        wrong = [x.id for x in question.options if x.id != question.answer]
        return question.answer, wrong
    if question.kind == "blank":
        return question.accept[0], [x.text for x in question.near]
    right = [str(place) for place in range(len(question.pairs))]
    return right, [right[::-1]]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", LESSON.questions)
def test_every_question_right_and_wrong(visit, server, language, name):
    step = next(p.id for p in LESSON.pages if ("question", name) in p.markers("en"))
    page = visit(language, step)
    question = LESSON.questions[name]
    right, wrong = answers_of(question)
    for given in wrong:
        status = answer(page, language, question, given)
        expect(status).to_contain_text("✗")
        if question.kind != "match":
            (place,) = answers.judge(question, given).wrong
            reason = (question.options if question.kind == "choice" else question.near)[place].why
            plain = re.split(r"[$`]", reason[language])[0].strip()
            expect(status).to_contain_text(plain)
    expect(page.locator(".score")).to_contain_text(re.compile(r"\b0\b"))
    status = answer(page, language, question, right)
    expect(status).to_contain_text("✓ " + say("page.right", language))
    expect(page.locator(".score")).to_have_text(say("page.score", language, points=1, most=10))
    kept = server.kept()[name]
    assert (kept["first"]["answer"], kept["best"]["answer"]) == (wrong[0], right)
    assert kept["tries"] >= len(wrong) + 1


def test_a_question_is_answered_by_keys_alone(visit):
    page = visit("en", "attention")
    card = page.locator("#divide-by")
    card.get_by_role("radio").first.focus()
    page.keyboard.press("Space")
    expect(card.get_by_role("status")).to_contain_text("✗")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(card.get_by_role("radio", name="8", exact=True)).to_be_checked()
    expect(card.get_by_role("status")).to_contain_text("✓")
    expect(card.get_by_role("radio", name="8", exact=True)).to_be_focused()


# --------------------------------------------------------------------------------- the exercise

WRONG = {
    "scale.none": "def attention(Q, K, V):\n    A = softmax(Q @ K.T)\n    return A @ V, A\n",
    "axis.queries": "def attention(Q, K, V):\n"
    "    A = softmax(Q @ K.T / np.sqrt(Q.shape[-1]), 0)\n    return A @ V, A\n",
    "returns.output_only": "def attention(Q, K, V):\n"
    "    return softmax(Q @ K.T / np.sqrt(Q.shape[-1])) @ V\n",
}


def grade(page, language, code, name="attention"):
    """Write code into the editor, have it judged, and return where the verdict stands."""
    card = page.locator(f"[id='{name}']")
    tries = card.get_by_role("status").locator(".caption")
    before = int(re.search(r"\d+", tries.inner_text())[0]) if tries.count() else 0
    editor = card.get_by_role("textbox", name=say("page.code", language))
    editor.fill(code)
    card.get_by_role("button", name=say("page.run", language)).click()
    status = card.get_by_role("status")
    expect(tries).to_contain_text(say("page.tries", language, n=before + 1))
    return card, status


def plain(text):
    """Return what a text of Markdown looks like before its first code or formula."""
    return re.split(r"[$`]", text)[0].strip()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_named_and_its_ladder_climbed(visit, server, language, mistake):
    page = visit(language, "exercise")
    card, status = grade(page, language, HEADER + WRONG[mistake])
    hints = EXERCISE.mistakes[mistake]
    expect(status).to_contain_text(plain(hints.did[language]))
    more = card.get_by_role("button", name=say("page.hint", language))
    more.click()
    expect(card.locator(".hints")).to_contain_text(plain(hints.why[language]))
    pictures = card.locator(".hints figure")
    expect(pictures).to_have_count(len(hints.figure.split()[:1]))  # some mistakes have none
    if hints.figure:
        expect(pictures).to_be_visible()
    more.click()
    expect(card.locator(".hints")).to_contain_text(plain(hints.where[language]))
    assert "np.sqrt(d_k)" not in card.locator(".hints").inner_text()
    more.click()
    expect(card.locator(".hints")).to_contain_text("S = Q @ K.T / np.sqrt(d_k)")
    expect(more).to_have_count(0)
    kept = server.kept()["attention"]
    assert (kept["most_hints"], kept["last"]["answer"]["mistakes"]) == (4, [mistake])


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_right_solution_passes(visit, server, language):
    page = visit(language, "exercise")
    card, status = grade(page, language, EXERCISE.solution.replace("round(3)", "round(2)"))
    message = say("grader.prints", language, row=3, column=8)
    expect(status).to_contain_text(message)
    expect(card.locator("pre.printed mark")).to_have_text("5.  ]")
    card, status = grade(page, language, EXERCISE.solution)
    expect(status).to_contain_text(say("grader.right", language))
    expect(card.locator("mark")).to_have_count(0)
    assert card.locator("pre.printed").inner_text().strip() == EXERCISE.expected.strip()
    card.get_by_text(say("page.solution", language), exact=True).first.click()
    expect(card.locator("details .beside")).to_be_visible()
    assert server.kept()["attention"]["best"]["score"] == 1
    card, status = grade(page, language, HEADER + WRONG["scale.none"])
    kept = server.kept()["attention"]
    assert (kept["tries"], kept["best"]["score"], kept["last"]["score"] < 1) == (3, 1, True)


HOSTILE = "*a* _b_ __c__ `d` $e$ \\(f\\) <script>g</script> &amp; [h](i) {j}\n\n- two  spaces\n"


def test_what_a_learner_wrote_is_shown_letter_for_letter(visit):
    page = visit("en", "exercise")
    code = f'"""\n````\n$k$ *l*\n````\n"""\nraise ValueError({HOSTILE!r})'
    card, status = grade(page, "en", code)
    message = status.locator(".fact").last
    assert message.evaluate("x => x.innerText") == HOSTILE
    card.get_by_role("button", name=say("page.hint", "en")).click()
    mine = card.locator(".hints .beside").locator("> div").first.locator("pre")
    expect(mine).to_be_visible()
    assert mine.evaluate("x => x.innerText").strip() == code
    _, status = grade(page, "en", "def __a__(): pass\n\n\ndef _b_(): pass")
    expect(status.locator(".verdict")).to_have_text(
        "There is no function called attention. Functions found: __a__, _b_"
    )


def test_half_a_surrogate_pair_is_kept_as_a_question_mark(visit, server):
    page = visit("en", "numbers")
    typed = r"document.execCommand('insertText', false, '😀\\ud800\ud800\ud801')"
    field = page.get_by_role("textbox", name=say("page.blank", "en"))
    field.focus()
    page.evaluate(typed)
    field.press("Enter")
    expect(page.locator("#blank-scale").get_by_role("status")).to_contain_text("✗")
    assert server.kept()["blank-scale"]["last"]["answer"] == r"😀\ud800??"
    page.goto(f"{server.root}/?lang=en&step=exercise")
    code = r"print('ğ\ud800'); raise OSError('\udfff')  # "
    card, status = grade(page, "en", code)
    expect(status.locator(".verdict")).to_contain_text("OSError: ?")
    expect(card.locator("pre.printed")).to_have_text("ğ?")
    editor = card.get_by_role("textbox")
    editor.press("Control+End")
    page.evaluate(typed)
    card.get_by_role("button", name=say("page.run", "en")).click()
    expect(status.locator(".caption")).to_contain_text(say("page.tries", "en", n=2))
    assert server.kept()["attention"]["code"] == code + r"😀\ud800??"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_further_exercises_are_judged_the_same_way(visit, language):
    page = visit(language, "beyond")
    for name in ("softmax", "causal", "merge"):
        _, status = grade(page, language, LESSON.exercises[name].solution, name)
        expect(status).to_contain_text(say("grader.right", language))


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_endless_loop_is_stopped_and_said_so(visit, server, language):
    page = visit(language, "exercise")
    code = "x = 1\nwhile True:\n    x += 1\n"
    card, status = grade(page, language, code)
    told = status.inner_text()
    assert any(say("grader.timeout", language, line=line, **USUAL.shown) in told for line in (2, 3))
    assert server.kept()["attention"]["code"] == code
    expect(card.get_by_role("textbox")).to_contain_text("while True:")
    _, status = grade(page, language, EXERCISE.solution)
    expect(status).to_contain_text(say("grader.right", language))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_kept_program_without_an_end_does_not_hold_up_the_page(visit, server, language):
    code = f"x = '{language}'\nwhile True:\n    x = x\n"
    item = {"run-numbers.py": {"setting": {"code": code}}}
    state = {"version": progress.VERSION, "lessons": {"attention": item}}
    server.state.write_text(json.dumps(state), encoding="utf-8")
    status = visit(language, "numbers").locator(".program").get_by_role("status")
    expect(status).to_have_text(say("page.running", language, **USUAL.shown))
    expect(status).to_contain_text(say("grader.timeout", language, line=2, **USUAL.shown)[:20])


@pytest.mark.parametrize("language", LANGUAGES)
def test_code_that_could_not_be_checked_is_no_try(monkeypatch, tmp_path, language):
    def busy(exercise, code):
        raise NoVerdict

    monkeypatch.setattr(editor, "judge", busy)
    kept = progress.Progress(tmp_path / "answers.json", "attention")
    setting = Setting(LESSON, language, kept, lambda: None, lambda: None, 0)
    shown = editor.Editor(setting, "attention")
    shown._judge()
    assert say("page.unjudged", language) in shown.html()
    assert kept.items() == {}


def test_starting_over_brings_the_starter_back(visit, server):
    page = visit("tr", "exercise")
    card, _ = grade(page, "tr", "x = 1")
    card.get_by_role("button", name=say("page.reset", "tr")).click()
    expect(card.get_by_role("textbox")).to_contain_text("# buraya yaz")
    assert "code" not in server.kept()["attention"]
    page.get_by_role("link", name="English").click()
    expect(page.locator("#attention").get_by_role("textbox")).to_contain_text("# write here")


# ------------------------------------------------------------------------------ nothing is lost


def test_reload_language_switch_and_restart_lose_nothing(browser, tmp_path):
    state = tmp_path / "answers.json"
    first = Server(state)
    context = browser.new_context(viewport={"width": 1100, "height": 1400})
    page, said, asked = watch(context, first.address)
    go = f"{first.root}/?lang=tr&step="
    page.goto(f"{go}numbers")
    blank, match = LESSON.questions["blank-scale"], LESSON.questions["match-effects"]
    expect(answer(page, "tr", blank, "sqrt")).to_contain_text("✓")
    expect(answer(page, "tr", match, ["0", "1", "3", "2"])).to_contain_text("2 / 4")
    page.goto(f"{go}exercise")
    grade(page, "tr", HEADER + WRONG["scale.none"])

    def all_is_there(root, language):
        page.goto(f"{root}/?lang={language}&step=numbers")
        field = page.get_by_role("textbox", name=say("page.blank", language))
        expect(field).to_have_value("sqrt")
        chosen = page.locator("#match-effects").get_by_role("combobox")
        expect(chosen.nth(2)).to_have_value(match.pairs[3].right[language])
        expect(page.locator(".score")).to_contain_text("2,2" if language == "tr" else "2.2")
        page.goto(f"{root}/?lang={language}&step=exercise")
        card = page.locator("#attention")
        expect(card.get_by_role("textbox")).to_contain_text("A = softmax(Q @ K.T)")
        told = EXERCISE.mistakes["scale.none"].did[language]
        expect(card.get_by_role("status")).to_contain_text(told)

    page.reload()
    all_is_there(first.root, "tr")
    page.get_by_role("link", name="English").click()
    expect(page.locator("html")).to_have_attribute("lang", "en")
    all_is_there(first.root, "en")
    assert (said, asked) == ([], [])
    assert first.stop() == 0
    context.close()
    second = Server(state)
    context = browser.new_context(viewport={"width": 1100, "height": 1400})
    page, said, asked = watch(context, second.address)
    all_is_there(second.root, "tr")
    second.stop()
    context.close()
    assert asked == []


def test_a_lost_server_is_told_in_words(browser, tmp_path):
    server = Server(tmp_path / "answers.json")
    context = browser.new_context()
    page, _, asked = watch(context, server.address)
    expect(page.locator(".lesson")).to_be_visible(timeout=WAIT)
    server.stop()
    closed = page.locator("[data-connection-state=CLOSED]")
    expect(closed).to_have_count(1, timeout=WAIT)
    banner = closed.evaluate("x => getComputedStyle(x, '::before').content")
    assert say("page.lost", "tr") in banner
    assert say("page.lost", "en") in banner
    context.close()
    assert asked == []


def test_answers_are_downloaded(visit):
    page = visit("tr", "attention")
    expect(answer(page, "tr", LESSON.questions["divide-by"], "64")).to_contain_text("✗")
    for kind in ("JSON", "CSV"):
        with page.expect_download() as waiting:
            page.get_by_text(f"{say('page.export', 'tr')} ({kind})").click()
        assert waiting.value.suggested_filename == f"lesson.{kind.lower()}"
        text = Path(waiting.value.path()).read_text(encoding="utf-8-sig")
        if kind == "JSON":
            assert json.loads(text)["lessons"]["attention"]["divide-by"]["last"]["answer"] == "64"
        else:
            (row,) = csv.DictReader(text.splitlines())
            assert (row["item"], row["tries"], row["last"]) == ("divide-by", "1", "0.0")


@pytest.mark.parametrize("language", LANGUAGES)
def test_those_who_only_read_see_all_answers(visit, language):
    page = visit(language, "answers")
    main = page.locator("main")
    assert main.locator(".card").count() == len(LESSON.questions) + len(LESSON.exercises)
    for question in LESSON.questions.values():
        expect(main).to_contain_text(plain(question.prompt[language]))
        for reason in [x.why[language] for x in (*question.options, *question.near)]:
            expect(main).to_contain_text(plain(reason))
    for exercise in LESSON.exercises.values():
        expect(main).to_contain_text(exercise.expected.strip().splitlines()[0].strip())


# ------------------------------------------------------------------------------------- strangers


UPGRADE = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
           "sec-websocket-key": "c2NhbGVkb3RzY2FsZWRvdA=="}  # fmt: skip


def ask(server, path="/", method="GET", body=None, **headers):
    """Ask the server something without the browser, and return status and headers."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        headers = {"host": f"127.0.0.1:{server.port}"} | {x.lower(): y for x, y in headers.items()}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status, {name.lower(): x for name, x in response.getheaders()}


def test_without_token_or_from_elsewhere_nothing_is_served(server):
    path = f"/?{urlsplit(server.address).query}"
    status, headers = ask(server, path)
    assert status in (200, 303)
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    status, headers = ask(server)
    assert status in (303, 401, 403)
    assert headers.get("location", "/auth/login").startswith(("/auth/login", server.root + "/auth"))
    assert ask(server, path, Host="evil.example")[0] == 403
    assert ask(server, path, Host=f"evil.example:{server.port}")[0] == 403
    assert ask(server, path, Origin="http://evil.example")[0] == 403
    assert ask(server, path, Origin=f"http://127.0.0.1:{server.port + 1}")[0] == 403
    assert ask(server, path, Origin="null")[0] == 403
    for origin in ("http://evil.example", f"http://localhost:{server.port + 1}"):
        assert ask(server, "/ws?session_id=s", Origin=origin, **UPGRADE)[0] == 403


STRANGER = """<!doctype html><title>stranger</title><script>
const root = "ROOT";
const post = (type) => fetch(root + "PATH", {method: "POST", mode: "no-cors",
  credentials: "include", headers: {"Content-Type": type}, body: BODY});
const socket = () => new Promise((done) => {
  const ws = new WebSocket(root.replace("http", "ws") + "/ws?session_id=SESSION");
  ws.onopen = ws.onerror = done;
});
window.result = Promise.allSettled([
  fetch(root + "/", {credentials: "include"}),
  post("text/plain"), post("application/x-www-form-urlencoded"), socket(),
]);
</script>"""


@contextmanager
def served(text):
    """Give the address of a page that another server on this machine serves."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{stranger.server_port}/"
        stranger.shutdown()


def sent_by(context, address):
    """Open a page beside the lesson; return (cookie, status) of its requests, and sockets' errors.

    They come from the browser's own record, which knows what is hidden from the page.
    """
    page = context.new_page()
    page.route("**/*", lambda route: route.continue_())  # the context itself refuses it
    record = context.new_cdp_session(page)
    cookies, statuses, errors = {}, {}, []
    for event, note in (
        ("requestWillBeSentExtraInfo",
         lambda x: cookies.update({x["requestId"]: x["headers"].get("Cookie")})),
        ("responseReceivedExtraInfo",
         lambda x: statuses.update({x["requestId"]: x["statusCode"]})),
        ("webSocketFrameError", lambda x: errors.append(x["errorMessage"])),
    ):  # fmt: skip
        record.on(f"Network.{event}", note)
    record.send("Network.enable")
    page.goto(address)
    page.evaluate("window.result")
    page.wait_for_timeout(200)  # the record may come after the page's own events
    page.close()
    assert cookies.keys() == statuses.keys()
    itself, *sent = [(cookies[x], statuses[x]) for x in statuses]
    assert itself[1] == 200
    return sent, errors


def test_a_page_on_another_origin_can_change_nothing(visit, server):
    """What the page itself sends is sent once more by others, with another answer in it."""
    page = visit("tr", "attention")
    with page.expect_request(lambda x: '"64"' in (x.post_data or "")) as own:
        status = answer(page, "tr", LESSON.questions["divide-by"], "64")
    expect(status).to_contain_text("✗")
    before = server.state.read_bytes()
    path, headers = urlsplit(own.value.url).path, own.value.all_headers()
    body, session = own.value.post_data.replace("64", "8"), headers["marimo-session-id"]
    text = STRANGER.replace("ROOT", server.root).replace("PATH", path)
    text = text.replace("BODY", json.dumps(body)).replace("SESSION", session)
    with served(text) as address:
        sent, errors = sent_by(page.context, address)
    assert sent == [(headers["cookie"], 403)] * 3
    (refused,) = errors
    assert refused.endswith("Unexpected response code: 403")
    assert server.state.read_bytes() == before

    socket = f"/ws?session_id={session}"
    origins = ["http://evil.example", "null", server.root.replace("http", "https"), address[:-1]]
    hosts = ["evil.example", f"evil.example:{server.port}", f"127.0.0.1:{server.port + 1}"]
    for strange in [*({"origin": x} for x in origins), *({"host": x} for x in hosts)]:
        known = headers | strange
        assert ask(server, f"/?{urlsplit(server.address).query}", **known)[0] == 403
        assert ask(server, path, "POST", body, **known)[0] == 403
        assert ask(server, socket, **known | UPGRADE)[0] == 403
    assert server.state.read_bytes() == before

    assert ask(server, path, "POST", body, **headers)[0] == 200  # nothing else was amiss
    expect(status).to_contain_text("✓")


# ------------------------------------------------------------------------------------ how it looks


TOO_WIDE = """() => {
  const found = [];
  const walk = (x) => {
    if (x.matches("pre, .cm-editor, .katex-mathml, .hide-tail")) return;  // they scroll, or are cut
    if (x.getBoundingClientRect().right > innerWidth + 1) found.push(x.outerHTML.slice(0, 90));
    for (const child of [...x.children, ...(x.shadowRoot?.children || [])]) walk(child);
  };
  walk(document.querySelector(".lesson"));
  return found;
}"""


LINES = "all => all.map(x => new Set([...x.getClientRects()].map(y => Math.round(y.y))).size)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_step_fits_its_window(browser, server, language, width, scheme):
    server.state.unlink(missing_ok=True)
    context = browser.new_context(
        viewport={"width": width, "height": 2400}, color_scheme=scheme, reduced_motion="reduce"
    )
    page, said, asked = watch(context, server.address)
    n_endings = 0
    for step in (*STEPS, "answers"):
        page.goto(f"{server.root}/?lang={language}&step={step}")
        expect(page.locator("main h1")).to_be_visible(timeout=WAIT)
        if step in ("exercise", "numbers"):
            expect(page.locator(".cm-content")).to_be_visible()
        if step == "exercise":
            grade(page, language, HEADER + WRONG["scale.none"])
            page.get_by_role("button", name=say("page.hint", language)).click()
            expect(page.locator(".hints figure")).to_be_visible()
        page.wait_for_timeout(700)  # marimo's controls are dressed every 300 ms
        wide = page.evaluate(TOO_WIDE)
        assert wide == []
        lines = page.locator(".whole").evaluate_all(LINES)
        assert set(lines) <= {1}  # no line breaks between a formula and its ending
        n_endings += len(lines)
        if SCREENS:
            page.screenshot(path=Path(SCREENS) / f"{step}-{language}-{width}-{scheme}.png")
    context.close()
    assert n_endings
    assert (said, asked) == ([], [])


@pytest.mark.parametrize("language", LANGUAGES)
def test_axe_finds_nothing(browser, server, axe, language):
    server.state.unlink(missing_ok=True)
    context = browser.new_context(
        viewport={"width": 1100, "height": 1400}, reduced_motion="reduce", bypass_csp=True
    )
    page, _, asked = watch(context, server.address)
    for step in (*STEPS, "answers"):
        page.goto(f"{server.root}/?lang={language}&step={step}")
        expect(page.locator("main h1")).to_be_visible(timeout=WAIT)
        if step == "exercise":
            grade(page, language, HEADER + WRONG["scale.none"])
            page.get_by_role("button", name=say("page.hint", language)).click()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            expect(page.locator(f"body.{scheme}")).to_be_attached()
            page.wait_for_timeout(700)  # names are given to marimo's controls every 300 ms
            page.evaluate(axe)
            found = page.evaluate(
                "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
            )
            problems = [
                (x["id"], [n["html"][:160] for n in x["nodes"]]) for x in found["violations"]
            ]
            assert problems == [], (step, scheme)
    context.close()
    assert asked == []


def test_the_picture_of_the_readme(browser, server, tmp_path):
    """`SCALEDOT_SCREENSHOTS=docs/images pytest tests/browser -k readme` writes it."""
    server.state.unlink(missing_ok=True)
    context = browser.new_context(viewport={"width": 960, "height": 1200})
    page, said, asked = watch(context, server.address)
    page.goto(f"{server.root}/?lang=en&step=why")
    expect(page.locator("figure.training polyline")).to_have_count(2)
    page.evaluate("document.fonts.ready")
    page.wait_for_timeout(500)  # fonts of formulas are asked for when a formula is set
    page.evaluate("document.fonts.ready")
    picture = Path(SCREENS or tmp_path) / "lesson.png"
    page.screenshot(path=picture)
    context.close()
    assert picture.stat().st_size > 20_000
    assert (said, asked) == ([], [])
