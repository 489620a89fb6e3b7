"""One run of a learner's code, in a process of its own with limits of time, memory and output."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

CHILD = Path(__file__).with_name("child.py")

Case = str | tuple[Any, ...]
"""Arguments of one call: arrays and ints, or a Python expression of their tuple that the child
evaluates."""


@dataclass(frozen=True)
class Limits:
    """What one run may use."""

    seconds: float = 10.0
    """Of the wall clock, from when NumPy is loaded. The exercises take hundredths; a right program
    of slow loops takes seconds, on a busy machine more."""
    memory: int = 2**30
    """Bytes."""
    output: int = 2**16
    """Characters printed."""
    start: float = 30.0
    """Seconds within which Python and NumPy must have loaded."""
    system: bool = True
    """Whether the system's own limits are used where it has them."""

    @property
    def shown(self) -> dict[str, str]:
        """What texts say of them: seconds, and memory in GiB."""
        return {"seconds": f"{self.seconds:g}", "memory": f"{self.memory / 2**30:g}"}


USUAL = Limits()


class Error(NamedTuple):
    """What Python raised."""

    kind: str
    message: str
    line: int | None
    """The learner's line, None where it was outside the code."""


class Result(NamedTuple):
    """One array that a call returned."""

    values: np.ndarray
    """Of float64."""
    dtype: str


class Outcome(NamedTuple):
    """What one call did: it raised, or returned results, one bare or several in a tuple."""

    results: tuple[Result | str, ...] = ()
    """Arrays, and names of types of what was none."""
    several: bool = False
    error: Error | None = None


class Run(NamedTuple):
    """What became of one run."""

    stage: str
    """"done"; or what ended it: "syntax", "raised", "timeout", "memory", "output" or "died"."""
    printed: str = ""
    complained: str = ""
    """What went to stderr, such as warnings."""
    error: Error | None = None
    line: int | None = None
    """Where it was stopped."""
    defined: bool = False
    """Whether the wanted function is there."""
    functions: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    """One for each case."""
    touched: bool = False
    """Whether a call changed its arguments."""


def run(code: str, entry: str = "", cases: Sequence[Case] = (), limits: Limits = USUAL) -> Run:
    """Run code, then call the function named `entry` on every case."""
    with TemporaryDirectory(prefix="scaledot-", ignore_cleanup_errors=True) as folder:
        work, result = Path(folder, "work"), Path(folder, "result.json")
        work.mkdir()
        job = {
            "code": code,
            "entry": entry,
            "cases": [x if isinstance(x, str) else [_argument(y) for y in x] for x in cases],
            "path": [p for p in sys.path if p],
            "result": str(result),
            "seconds": limits.seconds,
            "memory": limits.memory,
            "output": limits.output,
            "system_limits": limits.system,
        }
        with _child(work) as child, suppress(subprocess.TimeoutExpired, BrokenPipeError):
            child.communicate(json.dumps(job).encode(), timeout=limits.start + limits.seconds)
        try:
            found = json.loads(result.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Run("timeout" if child.returncode in _OVERTIME else "died")
    return _found(found)


_DONE: dict[tuple[str, str, tuple[str, ...]], Run] = {}


def remembered(code: str, entry: str = "", cases: tuple[str, ...] = ()) -> Run:
    """Return a run of a lesson's own code, from memory if it came to its end before.

    A run that did not is not remembered: the machine may have been busy.
    """
    key = code, entry, cases
    if key in _DONE:
        return _DONE[key]
    found = run(code, entry, cases)
    if found.stage == "done":
        _DONE[key] = found
    return found


_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
# What ends a loop inside a library that the child's own watch cannot: our kill, or the system's.
_OVERTIME = (-_KILL, -getattr(signal, "SIGXCPU", _KILL), 1 if os.name == "nt" else -_KILL)


@contextmanager
def _child(work: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Give a child in a folder and a session of its own, which nothing survives."""
    kept = ("SYSTEMROOT", "PATH", "LD_LIBRARY_PATH")  # without the first Windows has no sockets
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    for library in ("OPENBLAS", "OMP", "MKL", "VECLIB_MAXIMUM"):
        environment[f"{library}_NUM_THREADS"] = "1"
    child = subprocess.Popen(
        [sys.executable, "-I", "-B", "-X", "utf8", str(CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=work,
        env=environment | {"HOME": str(work), "TMPDIR": str(work)},
        start_new_session=True,
    )
    try:
        yield child
    finally:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, _KILL)
        child.kill()
        child.wait()
        if child.stdin is not None:
            with suppress(BrokenPipeError):
                child.stdin.close()


def _argument(x: Any) -> Any:
    """Return an argument for JSON."""
    if not isinstance(x, np.ndarray):
        return x
    return {"shape": list(x.shape), "values": x.ravel().tolist()}


def _found(found: Mapping[str, Any]) -> Run:
    """Return what the child reports."""
    return Run(
        stage=found["stage"],
        printed=found["printed"],
        complained=found["complained"],
        error=_error(found.get("error")),
        line=found.get("line"),
        defined=found.get("defined", False),
        functions=tuple(found.get("functions", ())),
        outcomes=tuple(map(_outcome, found.get("outcomes", ()))),
        touched=found.get("touched", False),
    )


def _error(found: Mapping[str, Any] | None) -> Error | None:
    """Return an error from JSON."""
    return None if found is None else Error(found["kind"], found["message"], found["line"])


def _outcome(found: Mapping[str, Any]) -> Outcome:
    """Return what one call did from JSON."""
    if "raised" in found:
        return Outcome(error=_error(found["raised"]))
    several = "items" in found
    return Outcome(tuple(map(_result, found["items"] if several else [found])), several)


def _result(found: Mapping[str, Any]) -> Result | str:
    """Return one result from JSON."""
    if "values" in found:
        values = np.array(found["values"], np.float64).reshape(found["shape"])
        return Result(values, found["dtype"])
    return str(found.get("type", "tuple"))
