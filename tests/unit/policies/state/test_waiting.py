"""The index of waiting jobs against a sorted list."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.ids import JobId
from policies.state.keys import GangClass, JobKey, Owner
from policies.state.waiting import WaitingIndex

OPERATIONS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 8), st.sampled_from([1, 2, 4]), st.integers(0, 3), st.integers(0, 2)),
    max_size=40,
)


def gang(gpus: int) -> GangClass:
    return GangClass(gpus, ())


@settings(max_examples=150, deadline=None)
@given(OPERATIONS)
def test_the_index_agrees_with_a_sorted_list(operations: list[tuple[bool, int, int, int, int]]) -> None:
    index = WaitingIndex()
    model: dict[JobId, tuple[GangClass, JobKey]] = {}

    def owner(job: JobId) -> Owner:
        return Owner("nlp", f"u{job % 3}")

    for adds, number, gpus, rank, priority in operations:
        job = JobId(number)
        if adds and job not in model:
            key = JobKey(1, -priority, 0, float(rank), 0.0, job)
            model[job] = (gang(gpus), key)
            same_class = sorted(key for known, key in model.values() if known == gang(gpus))
            assert index.add(gang(gpus), key, owner(job)) == (same_class[0] == key), "whether it is the head now"
        else:
            known = model.pop(job, None)
            assert index.remove(job) == (None if known is None else (*known, owner(job)))
        index.check()
        order = sorted(key for _, key in model.values())
        assert [index.jobs_ahead(key.job) for key in order] == list(range(len(order)))
        assert index.following(None, len(order)) == order
        for number, key in enumerate(order):
            assert index.following(key, 2) == order[number + 1 : number + 3]
        # A key whose job has left the queue still says where to go on.
        between = JobKey(1, 0, 0, 2.5, 0.0, JobId(0))
        assert index.following(between, 3) == [key for key in order if key > between][:3]
        assert (len(index), set(index.keys)) == (len(model), set(model))
        assert all(known in index for known in model)
        assert {each: jobs for each, (_, jobs) in index.owned.items()} == {
            each: {job for job in model if owner(job) == each} for each in map(owner, model)
        }
