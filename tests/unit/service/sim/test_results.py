"""The summary of a simulation."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.sim.results import percentile


@given(st.lists(st.floats(0.0, 1e9), min_size=1, max_size=300), st.sampled_from([0, 50, 90, 99, 100]))
def test_percentiles_are_those_of_numpy(values: list[float], percent: int) -> None:
    assert percentile(sorted(values), percent) == np.percentile(values, percent)
