"""What the memory store does besides the contract of all stores (tests/conformance)."""

import pytest

from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.engine.events import EngineRequest, RequestKind
from service.engine.memory import MemoryStore
from service.engine.ports import CycleBatch, JobWrite
from service.engine.record import JobRecord
from tests.durable_store import DurableStore


def job(number: int = 1) -> JobRecord:
    return JobRecord(JobId(number), JobSpec("j", "u", 1), 0.0)


def test_the_memory_store_returns_the_same_record_and_forgets_it_after_admission() -> None:
    store, record = MemoryStore(), job()
    request = store.submit(record)
    assert store.jobs([JobId(1)])[0] is record
    assert not store.commit(CycleBatch(1, 0.0, (), (), writes={record.id: JobWrite(record, 0, requests=[request.id])}))
    assert store.jobs([JobId(1)]) == []
    assert store.load().jobs == []


def test_the_memory_store_keeps_jobs_that_are_needed() -> None:
    store, record = MemoryStore(needed={JobId(1)}), job()
    request = store.submit(record)
    store.commit(CycleBatch(1, 0.0, (), (), writes={record.id: JobWrite(record, 0, requests=[request.id])}))
    assert store.jobs([JobId(1), JobId(2)]) == [record]


def test_the_durable_store_keeps_a_copy() -> None:
    store, record = DurableStore(), job()
    store.submit(record)
    (copy,) = store.jobs([JobId(1)])
    assert copy == record
    assert copy is not record
    assert store.load().jobs == [], "it is not admitted yet"


def test_the_store_numbers_requests() -> None:
    store = MemoryStore()
    requests = [store.add_request(EngineRequest(77, RequestKind.CANCEL, 0.0, JobId(1))) for _ in range(2)]
    assert [request.id for request in requests] == [1, 2]
    assert list(store.pending_requests(1)) == requests[:1]


def test_a_request_is_consumed_once() -> None:
    store = MemoryStore()
    request = store.add_request(EngineRequest(0, RequestKind.CANCEL, 0.0, JobId(1)))
    store.commit(CycleBatch(1, 0.0, (), (), requests=[request.id]))
    with pytest.raises(KeyError):
        store.commit(CycleBatch(2, 0.0, (), (), requests=[request.id]))
