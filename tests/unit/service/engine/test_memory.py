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


def test_without_durability_the_very_record_is_handed_out_and_then_forgotten() -> None:
    store, record = MemoryStore(), job()
    request = store.submit(record)
    assert store.jobs([JobId(1)])[0] is record
    assert not store.commit(CycleBatch(1, 0.0, (), (), writes={record.id: JobWrite(record, 0, requests=[request.id])}))
    assert store.jobs([JobId(1)]) == []
    assert store.load().jobs == []


def test_with_durability_a_copy_is_kept() -> None:
    store, record = DurableStore(), job()
    store.submit(record)
    (copy,) = store.jobs([JobId(1)])
    assert copy == record
    assert copy is not record
    assert store.load().jobs == [], "it is not admitted yet"


def test_a_fact_gets_its_number_from_the_store() -> None:
    store = MemoryStore()
    requests = [store.add_request(EngineRequest(77, RequestKind.CANCEL, 0.0, JobId(1))) for _ in range(2)]
    assert [request.id for request in requests] == [1, 2]
    assert list(store.pending_requests(1)) == requests[:1]


def test_a_fact_is_consumed_once() -> None:
    store = MemoryStore()
    request = store.add_request(EngineRequest(0, RequestKind.CANCEL, 0.0, JobId(1)))
    store.commit(CycleBatch(1, 0.0, (), (), requests=[request.id]))
    with pytest.raises(KeyError):
        store.commit(CycleBatch(2, 0.0, (), (), requests=[request.id]))
