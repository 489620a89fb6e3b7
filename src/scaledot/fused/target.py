"""What the machine has: the width of a vector, and how many cores."""

import os
import sys
from functools import cache
from pathlib import Path

VECTOR_BYTES = (64, 32, 16)
"""Widths that kernels exist for: AVX-512, AVX, and SSE or NEON."""


@cache
def vector_bytes() -> int:
    """Return the bytes of a vector of this machine, or of SCALEDOT_VECTOR_BYTES."""
    forced = os.environ.get("SCALEDOT_VECTOR_BYTES")
    if forced is not None:
        if forced not in map(str, VECTOR_BYTES):
            raise ValueError(
                f"SCALEDOT_VECTOR_BYTES must be one of {', '.join(map(str, VECTOR_BYTES))}, "
                f"got {forced!r}"
            )
        return int(forced)
    features = cpu_features()
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= features:
        return 64
    return 32 if {"avx2", "fma"} <= features else 16


@cache
def cpu_features() -> frozenset[str]:
    """Return the names of what the processor can do, as LLVM spells them."""
    from llvmlite import binding

    return frozenset(name for name, has in binding.get_host_cpu_features().items() if has)


def n_threads() -> int:
    """Return how many threads work: SCALEDOT_NUM_THREADS, or the CPUs this process may use."""
    forced = os.environ.get("SCALEDOT_NUM_THREADS")
    if forced is not None:
        if not forced.isdecimal() or int(forced) < 1:
            raise ValueError(f"SCALEDOT_NUM_THREADS must be a number from 1 on, got {forced!r}")
        return int(forced)
    return _usable_cpus()


@cache
def _usable_cpus() -> int:
    """Return the CPUs of the affinity mask, fewer where a container's quota is smaller."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _cgroup_quota() if sys.platform == "linux" else None
    return count if quota is None else max(1, min(count, quota))


def _cgroup_quota() -> int | None:
    """Return the CPUs that a control group grants, rounded up; None without a limit."""
    quota, period = _numbers("/sys/fs/cgroup/cpu.max")  # version 2: "max" or a number, and a period
    if period is None:  # version 1: -1 without a limit
        quota, _ = _numbers("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period, _ = _numbers("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return -(-quota // period) if quota and period else None


def _numbers(path: str) -> tuple[int | None, int | None]:
    """Return the first two positive numbers of a file, None for what is not there."""
    try:
        words = Path(path).read_text(encoding="ascii").split()
    except OSError:
        words = []
    found = [int(word) if word.isdecimal() else None for word in words]
    first, second, *_ = (*found, None, None)
    return first, second
