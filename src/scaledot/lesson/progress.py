"""What a learner did, in one JSON file that is the learner's own.

Every change reads the file, changes one item, and replaces the file, so that two open pages lose
nothing of each other's. Nothing is kept elsewhere.
"""

import csv
import io
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scaledot import files

VERSION = 1
COLUMNS = ("lesson", "item", "tries", "first", "last", "best", "hints", "at")

_LOCK = threading.Lock()


class Unreadable(ValueError):
    """A state file that is none, or of a later version."""


def default_file() -> Path:
    """Return where answers are kept if nobody says otherwise."""
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    else:
        home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "scaledot" / "lesson.json"


class Progress:
    """The answers to one lesson in a state file."""

    def __init__(self, file: Path, lesson: str) -> None:
        self.file, self.lesson = file, lesson
        _read(file)

    def item(self, name: str) -> Mapping[str, Any]:
        """Return what is known of a question or an exercise."""
        found: Mapping[str, Any] = self.items().get(name, {})
        return found

    def items(self) -> Mapping[str, Any]:
        """Return what is known of all questions and exercises."""
        found: Mapping[str, Any] = _read(self.file)["lessons"].get(self.lesson, {})
        return found

    def answer(self, name: str, answer: Any, score: float) -> None:
        """Note an answer: the first, the last, and the best one of all tries."""
        attempt = {"answer": answer, "score": score, "at": _now()}
        with self._changing(name) as item:
            item["tries"] = item.get("tries", 0) + 1
            item.setdefault("first", attempt)
            item["last"] = attempt
            if score > item.get("best", {"score": -1})["score"]:
                item["best"] = attempt
            item.pop("hints", None)

    def hint(self, name: str, n_shown: int) -> None:
        """Note how many rungs of the ladder are shown, and the most that ever were."""
        with self._changing(name) as item:
            item["hints"] = n_shown
            item["most_hints"] = max(n_shown, item.get("most_hints", 0))

    def code(self, name: str, code: str | None) -> None:
        """Keep the code of an exercise; None for the starter."""
        with self._changing(name) as item:
            item.pop("code", None)
            if code is not None:
                item["code"] = code

    def set(self, name: str, setting: Any) -> None:
        """Keep how a figure is set."""
        with self._changing(name) as item:
            item["setting"] = setting

    @contextmanager
    def _changing(self, name: str) -> Iterator[dict[str, Any]]:
        """Give an item to change, and write it."""
        with _LOCK:
            state = _read(self.file)
            yield state["lessons"].setdefault(self.lesson, {}).setdefault(name, {})
            _write(self.file, state)


def _now() -> str:
    """Return the time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read(file: Path) -> dict[str, Any]:
    """Return the state in a file; an empty one if there is none."""
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"version": VERSION, "lessons": {}}
    except (ValueError, OSError) as error:
        raise Unreadable(
            f"cannot read the answers in {file}: {error}; move the file away, or name another "
            "with --state"
        ) from error
    if not (isinstance(state, dict) and isinstance(state.get("lessons"), dict)):
        raise Unreadable(f"{file} holds no answers; name another file with --state")
    if state.get("version") != VERSION:
        raise Unreadable(
            f"{file} is of version {state.get('version')}, this scaledot knows {VERSION}; "
            "name another file with --state"
        )
    return state


def _write(file: Path, state: Mapping[str, Any]) -> None:
    """Replace the file, so that there is a whole one at any time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(file) as draft:
        text = json.dumps(state, ensure_ascii=False, indent=1)
        # half of a surrogate pair, which a str may hold, is no text: it becomes a question mark
        draft.write_text(text, encoding="utf-8", errors="replace")


# --------------------------------------------------------------------------------------- export


def to_json(progress: Progress) -> str:
    """Return everything that is known of the lesson, as JSON."""
    found = {"version": VERSION, "lessons": {progress.lesson: progress.items()}}
    return json.dumps(found, ensure_ascii=False, indent=1)


def to_csv(progress: Progress) -> str:
    """Return a line for each question and exercise: tries, scores, most hints shown, when."""
    stream = io.StringIO()
    table = csv.writer(stream, lineterminator="\r\n")  # RFC 4180
    table.writerow(COLUMNS)
    for name, item in sorted(progress.items().items()):
        if "setting" in item:
            continue
        scores = (item.get(which, {}).get("score", "") for which in ("first", "last", "best"))
        when = item.get("last", {}).get("at", "")
        hints = item.get("most_hints", 0)
        table.writerow([progress.lesson, name, item.get("tries", 0), *scores, hints, when])
    return stream.getvalue()
