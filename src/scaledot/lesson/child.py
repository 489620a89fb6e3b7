"""Run a learner's code: the job comes on stdin, what was found goes to a file. Stands alone.

A thread watches time and, where the system sets no limit itself, memory; so the limits hold on
every platform, and what was stopped can say at which line. This guards against accidents, not
against malice.
"""

import ast
import json
import math
import os
import sys
import threading
import time
import traceback
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

FILE = "model.py"
"""What the learner's code is called in its own tracebacks."""
LARGEST = 10_000
"""Numbers of an array that are reported; no case needs a hundredth of them."""
RESERVE = [bytearray(2**22) for _ in range(4)]
"""Memory that is kept back, so that what a program which used up the rest did can still be said."""


class Report:
    """What is known so far; written once, by whoever is first to end the process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.line: int | None = None
        """The learner's line that ran when the watch last looked."""
        self.found: dict[str, Any] = {"stage": "died"}
        self._once = threading.Lock()

    def end(self, **more: Any) -> NoReturn:
        """Write everything that was found, and end the process whatever else it is doing."""
        RESERVE.clear()
        if self._once.acquire(blocking=False):
            self.found |= more | {"printed": "".join(PRINTED), "complained": "".join(COMPLAINED)}
            part = Path(self.path + ".part")
            # half of a surrogate pair, which a str may hold, is no text: it becomes a question mark
            found = json.dumps(self.found, ensure_ascii=False)
            part.write_text(found, encoding="utf-8", errors="replace")
            part.replace(self.path)
            os._exit(0)
        threading.Event().wait()
        raise AssertionError


PRINTED: list[str] = []
COMPLAINED: list[str] = []


class Sink:
    """A stream that keeps what is written, up to a limit."""

    encoding, errors = "utf-8", "replace"

    def __init__(self, pieces: list[str], report: Report, most: int) -> None:
        self.pieces, self.report, self.room = pieces, report, most
        self.silent = False

    def write(self, text: str) -> int:
        """Keep a text; the one that exceeds the limit is the last."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not self.silent:
            self.pieces.append(text[: self.room])
            self.room -= len(text)
            if self.room < 0:
                self.report.end(stage="output", line=learners_line(sys._getframe()))
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def isatty(self) -> bool:
        """Say that nobody watches."""
        return False


def main() -> None:
    """Do the job."""
    job = json.load(sys.stdin)
    sys.path[:] = job["path"]
    import numpy as np

    report = Report(job["result"])
    streams = Sink(PRINTED, report, job["output"]), Sink(COMPLAINED, report, job["output"])
    sys.stdout, sys.stderr = streams
    traced = not (job["system_limits"] and limit_by_system(job))
    threading.Thread(target=watch, args=(job, report, traced), daemon=True).start()

    names: dict[str, Any] = {"__name__": "__main__", "__file__": FILE}
    report.found["stage"] = "done"
    try:
        exec(compile(ast.parse(job["code"], FILE), FILE, "exec"), names)
    except (SyntaxError, ValueError) as error:  # the latter of a null byte
        if isinstance(error, SyntaxError) and error.filename == FILE:
            report.end(stage="syntax", error=describe(error) | {"line": error.lineno})
        report.found |= {"stage": "raised", "error": describe(error)}
    except BaseException as error:
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            report.found |= {"stage": "raised", "error": describe(error, report.line)}
    make_room()
    report.found["functions"] = [
        name for name, x in names.items() if getattr(x, "__module__", None) == "__main__"
    ]
    function = names.get(job["entry"])
    report.found["defined"] = callable(function)
    if callable(function):
        for stream in streams:
            stream.silent = True
        call(np, function, job["cases"], report)
    report.end()


def call(np: Any, function: Any, cases: list[Any], report: Report) -> None:
    """Call the learner's function on every case, and note what it returns or raises."""
    outcomes = report.found["outcomes"] = []
    report.found["touched"] = False
    for case in cases:
        if isinstance(case, str):
            arguments = eval(case, {"np": np})
        else:
            arguments = tuple(decode(np, x) for x in case)
        before = [np.array(x) for x in arguments]
        try:
            outcomes.append(encode(np, function(*arguments)))
        except MemoryError as error:
            report.end(stage="memory", line=describe(error, report.line)["line"])
        except BaseException as error:
            outcomes.append({"raised": describe(error)})
        for x, old in zip(arguments, before, strict=True):
            if not np.array_equal(x, old, equal_nan=True):
                report.found["touched"] = True


def decode(np: Any, x: Any) -> Any:
    """Return an argument from JSON."""
    return np.array(x["values"], float).reshape(x["shape"]) if isinstance(x, dict) else x


def encode(np: Any, x: Any) -> dict[str, Any]:
    """Return a result for JSON: several results, one array, or what it is instead."""
    if isinstance(x, tuple) or (isinstance(x, list) and any(isinstance(y, np.ndarray) for y in x)):
        return {"items": [encode(np, y) for y in x]}
    try:
        array = np.asarray(x)
    except ValueError:  # lists of unequal lengths
        return {"type": type(x).__name__}
    if x is None or array.dtype.kind not in "biuf" or array.size > LARGEST:
        return {"type": type(x).__name__}
    values = array.astype(np.float64).ravel().tolist()
    return {"shape": list(array.shape), "dtype": array.dtype.name, "values": values}


def describe(error: BaseException, seen: int | None = None) -> dict[str, Any]:
    """Return kind, message and the learner's last line of an error.

    `seen` is the line that was seen last: without memory Python notes none.
    """
    if isinstance(error, MemoryError):
        make_room()
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == FILE
    ]
    text = f"{error.msg}" if isinstance(error, SyntaxError) else f"{error}"
    line = lines[-1] if lines else seen
    return {"kind": type(error).__name__, "message": text[:500], "line": line}


def make_room() -> None:
    """Give back some of the memory that is kept back."""
    if RESERVE:
        RESERVE.pop()


def learners_line(frame: FrameType | None) -> int | None:
    """Return the innermost line of the learner's code that is running."""
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            return frame.f_lineno
        frame = frame.f_back
    return None


# -------------------------------------------------------------------------------------- limits


def limit_by_system(job: dict[str, Any]) -> bool:
    """Let the system limit what it can; return whether that includes memory.

    It does on Linux. Windows has no module `resource`, and macOS ignores RLIMIT_AS.
    """
    try:
        import resource
    except ModuleNotFoundError:
        return False
    for name, most in (
        ("RLIMIT_AS", job["memory"]),
        ("RLIMIT_FSIZE", max(job["output"], 2**20)),  # the report itself is a file
        ("RLIMIT_CPU", math.ceil(job["seconds"]) + 2),  # what no thread can watch: a loop in C
        ("RLIMIT_CORE", 0),
    ):
        _, hard = resource.getrlimit(getattr(resource, name))
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(getattr(resource, name), (allowed, hard))
    return sys.platform == "linux"


def watch(job: dict[str, Any], report: Report, traced: bool) -> None:
    """End the process when its time is up, or its memory where the system has no limit of it."""
    main_thread = threading.main_thread().ident or 0
    stop = time.monotonic() + job["seconds"]
    if traced:
        tracemalloc.start()
    while True:
        time.sleep(0.02)
        line = report.line = learners_line(sys._current_frames().get(main_thread))
        if time.monotonic() > stop:
            report.end(stage="timeout", line=line)
        if traced and tracemalloc.get_traced_memory()[0] > job["memory"]:
            report.end(stage="memory", line=line)


if __name__ == "__main__":
    main()
