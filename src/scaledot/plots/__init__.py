"""Pictures of results: functions that take a result, draw on axes and return them.

They need matplotlib: ``pip install "scaledot[plots]"``.

>>> import numpy as np
>>> from scaledot import attention, plots
>>> query, key, value = np.zeros((3, 4, 2))
>>> ax = plots.weights(attention(query, key, value), keys="I see you too".split())
>>> ax.get_xlabel(), ax.get_ylabel()
('key', 'query')
"""

from scaledot.plots.files import save
from scaledot.plots.heat_maps import weights, weights_by_head
from scaledot.plots.rows import concentration, received, scores
from scaledot.plots.scale import study, training
from scaledot.plots.together import overview

__all__ = [
    "concentration",
    "overview",
    "received",
    "save",
    "scores",
    "study",
    "training",
    "weights",
    "weights_by_head",
]
