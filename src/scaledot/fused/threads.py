"""One pool of threads for all kernels: lazy, shared, made anew after a fork, patient with Ctrl-C.

A kernel releases the GIL and fetches its work item by item from a counter, so threads balance among
themselves; the caller always takes a share. Each call of a kernel ends after some milliseconds and
is called again, so that Python sees Ctrl-C.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

Kernel = Callable[[np.ndarray, int], None]
"""Does items fetched from a counter (an int64 array of one) until none is left, or so many."""


class Job:
    """The share of the pool in one call."""

    def __init__(self, kernel: Kernel, counter: np.ndarray, n_items: int, budget: int) -> None:
        self._kernel, self._counter = kernel, counter
        self._n_items, self._budget = n_items, budget
        self._lock = threading.Lock()
        self._is_open = True
        self._n_running = 0
        self._idle = threading.Condition(self._lock)
        self._error: BaseException | None = None

    def help(self) -> None:
        """Take part, if there is still something to do: what a thread of the pool runs."""
        with self._lock:
            if not self._is_open:
                return
            self._n_running += 1
        try:
            self.work()
        except BaseException as error:
            self._error = error
            self._counter[0] = self._n_items
        finally:
            with self._lock:
                self._n_running -= 1
                self._idle.notify()

    def work(self) -> None:
        """Do items until none is left."""
        while self._counter[0] < self._n_items:
            self._kernel(self._counter, self._budget)

    def close(self) -> None:
        """Let nobody else in, and wait for those who are at work."""
        with self._lock:
            self._is_open = False
            while self._n_running:
                self._idle.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Leave the remaining items undone."""
        self._counter[0] = self._n_items


class Pool:
    """Threads that wait for jobs."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._n_threads = 0
        self._lock = threading.Lock()

    def offer(self, job: Job, n_helpers: int) -> None:
        """Ask so many threads to help with a job."""
        if self._n_threads < n_helpers:
            self._grow(n_helpers)
        for _ in range(n_helpers):
            self._jobs.put(job)

    def _grow(self, n: int) -> None:
        with self._lock:
            while self._n_threads < n:
                self._n_threads += 1
                threading.Thread(target=self._serve, name="scaledot", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._jobs.get().help()


_pool = Pool()


def _renew() -> None:
    """Begin without threads: those of the parent did not come through the fork."""
    global _pool
    _pool = Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def run(kernel: Kernel, n_items: int, budget: int, n_threads: int) -> None:
    """Do all items of a call on so many threads, that of the caller among them."""
    counter = np.zeros(1, np.int64)
    if n_threads == 1:
        while counter[0] < n_items:
            kernel(counter, budget)
        return
    job = Job(kernel, counter, n_items, budget)
    _pool.offer(job, n_threads - 1)
    try:
        job.work()
    except BaseException:
        job.stop()
        raise
    finally:
        job.close()
