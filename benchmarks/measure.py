"""Medians in turns: each call in slices of its own, so that none disturbs the next.

Worker threads of some libraries spin for milliseconds after a call and take a core from whoever is
timed next; so each turn begins with a pause and a call that does not count.
"""

import time
from collections.abc import Callable, Mapping

import numpy as np

PAUSE = 0.06
"""Seconds before a turn, longer than any library's threads spin."""
TURN = 0.06
"""Seconds of a turn, at least."""
ROUNDS = 15.0
"""Seconds of rounds, at least."""


def medians(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call over its turns."""
    return {name: float(np.median(found)) for name, found in turns(calls, rounds).items()}


def turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call, the median of each of its turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(PAUSE)
            call()
            found: list[float] = []
            while sum(found) < TURN or len(found) < 2:
                start = time.perf_counter()
                call()
                found.append(time.perf_counter() - start)
            times[name].append(float(np.median(found)))
    return times


def shares(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return how long each call takes, as a multiple of the first.

    A round is a pause, a call that does not count, and then all calls, one after another; they are
    compared within it: a clock that swings from round to round moves both alike. The medians are
    over as many rounds as `ROUNDS` seconds hold, at least `rounds`. For calls whose threads wait at
    rest; others need turns of their own.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    begun = time.perf_counter()
    warm, first = next(iter(calls.values())), next(iter(found.values()))
    while len(first) < rounds or time.perf_counter() - begun < ROUNDS:
        time.sleep(PAUSE)
        warm()
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - start)
    return {name: float(np.median(np.divide(times, first))) for name, times in found.items()}
