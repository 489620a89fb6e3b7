"""What the tests share: the engines that every law holds for, and blocks of any size."""

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from strategies import ENGINES

settings.register_profile(
    "scaledot",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("scaledot")


@pytest.fixture(params=ENGINES, scope="session")
def engine(request):
    """The name of an engine; a test that takes it holds for each."""
    return request.param


@pytest.fixture(params=(*ENGINES, None), ids=str, scope="session")
def any_engine(request):
    """The name of an engine, or None for the one the plan chooses."""
    return request.param


@pytest.fixture(scope="session")
def blocks():
    """A context in which the engines work in blocks of so many rows, keys and heads."""
    from scaledot import planning

    @contextmanager
    def blocks(rows, keys, heads=1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planning, "BLOCK_ROWS", rows)
            patch.setattr(planning, "BLOCK_KEYS", keys)
            patch.setattr(planning, "BLOCK_SCORES", rows * keys * heads)
            planning.clear()
            yield
        planning.clear()

    return blocks


@pytest.fixture
def numbers():
    """A generator with the same numbers in every run."""
    return np.random.default_rng(17)
