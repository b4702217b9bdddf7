"""The index of running jobs against a plain dictionary."""

import math
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.ids import JobId
from policies.state.keys import JobKey, RankLine
from policies.state.running import RunningIndex

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "protect", "remove", "refresh"]),
        st.integers(1, 9),
        st.sampled_from([1, 2, 4]),
        st.sampled_from([-2.0, -1.0, -0.5, 0.0, 1.0]),
        st.integers(0, 20),
        st.tuples(st.sampled_from([0.0, 0.5, 4.0, -1.0]), st.sampled_from([8, 8, 8, 6]), st.integers(0, 9)),
    ),
    max_size=60,
)
"""What to do, job, GPUs, slope, a rank or a time; then how much later the order is read, for which cluster, and how far."""


@settings(max_examples=150, deadline=None)
@given(OPERATIONS)
def test_the_index_agrees_with_a_dictionary(
    operations: list[tuple[str, int, int, float, int, tuple[float, int, int]]],
) -> None:
    index, now_s = RunningIndex(), 3.0
    lines: dict[JobId, tuple[RankLine, JobKey]] = {}
    due_s: dict[JobId, float] = {}
    protected: set[JobId] = set()
    for operation, number, gpus, slope, value, (later_s, cluster_gpus, read) in operations:
        job = JobId(number)
        if operation == "refresh":
            expected = sorted((at_s, each) for each, at_s in due_s.items() if at_s <= value)
            assert list(index.due_refreshes(float(value))) == [each for _, each in expected]
            due_s = {each: at_s for each, at_s in due_s.items() if at_s > value}
        else:
            index.remove(job)
            lines.pop(job, None)
            due_s.pop(job, None)
            protected.discard(job)
        if operation == "add":
            line, key = RankLine(gpus, slope), JobKey(1, 0, 0, float(value), 0.0, job)
            refresh_at_s = float(value) if value % 2 else None
            index.add(line, key, refresh_at_s)
            lines[job] = (line, key)
            if refresh_at_s is not None:
                due_s[job] = refresh_at_s
        elif operation == "protect":
            until_s = math.inf if value == 0 else float(value)
            index.protect(job, until_s)
            protected.add(job)
            if until_s < math.inf:
                due_s[job] = until_s
        index.check()
        assert (index.keys, set(index.protected)) == (lines, protected)
        assert index.next_refresh_s() == min(due_s.values(), default=None)
        assert index.rising() == any(line.slope > 0 for line, _ in lines.values())
        now_s += later_s
        ranks = {job: key.rank + line.slope * line.gpus / cluster_gpus * now_s for job, (line, key) in lines.items()}
        worst_first = sorted(ranks, key=lambda job: (-ranks[job], -job))
        for each in (index, index.copy()):
            victims = islice(each.victim_order(cluster_gpus, now_s), read)
            assert [(victim.job, victim.rank) for victim in victims] == [
                (job, ranks[job]) for job in worst_first[:read]
            ]
            each.check()
