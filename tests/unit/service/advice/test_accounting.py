"""Reading the accounting step by step: what is asked for, what is kept, and what a crash or a damaged answer does."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.advice import accounting
from service.advice.accounting import DAY_S, AccountingError, AccountingStore, read_file, whole_jobs
from service.slurm.accounting import FIELDS, AccountedJob
from service.slurm.commands import SlurmAway, SlurmCommands, SlurmRefused, SlurmUnreadable

NOW_S = 100 * DAY_S


def row(job: str, end_s: float, *, submit_s: float | None = None, state: str = "COMPLETED", **cells: str) -> str:
    """A line of sacct: a job of two GPUs that ran 100 s."""
    submitted_s = end_s - 200.0 if submit_s is None else submit_s
    values = {
        **dict.fromkeys(FIELDS, ""),
        "JobID": job,
        "State": state,
        "User": "ann",
        "Submit": f"{submitted_s:.0f}",
        "Start": f"{end_s - 100.0:.0f}",
        "End": f"{end_s:.0f}",
        "ElapsedRaw": "100",
        "AllocTRES": "gres/gpu:a100=2,gres/gpu=2",
        "NodeList": "node[1-2]",
        "JobName": "train",
        **cells,
    }
    return "|".join(values.values())


class Sacct(SlurmCommands):
    """Answers as a database that holds ``rows`` (end, line) would; ``before`` may raise first."""

    def __init__(self, rows: Sequence[tuple[float, str]]) -> None:
        super().__init__(environ={})
        self.rows = list(rows)
        self.windows: list[tuple[float, float]] = []
        self.before: Callable[[float, float], None] = lambda since_s, until_s: None

    def run(self, command: str, *arguments: str, **_: Any) -> str:
        assert command == "sacct"
        since_s, until_s = (
            float(arguments[arguments.index(name) + 1].removeprefix("uts")) for name in ("--starttime", "--endtime")
        )
        self.windows.append((since_s, until_s))
        self.before(since_s, until_s)
        # As sacct does: whatever was there in the window, also if it ended later.
        lines = [line for end_s, line in self.rows if end_s >= since_s and end_s - 200.0 <= until_s]
        return "\n".join(("|".join(FIELDS), *lines)) + "\n"


def jobs_a_day(days: int) -> list[tuple[float, str]]:
    ends = [NOW_S - day * DAY_S - 3600.0 for day in range(days)]
    return [(end_s, row(str(number), end_s)) for number, end_s in enumerate(ends)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AccountingStore]:
    opened = AccountingStore(tmp_path / "accounting.db")
    yield opened
    opened.close()


def test_the_past_is_read_in_windows_and_then_from_the_last_end_on(store: AccountingStore) -> None:
    sacct = Sacct(jobs_a_day(10))
    step = store.update(sacct, NOW_S)
    assert (step.new, len(store.jobs())) == (10, 10)
    assert sacct.windows[0] == (NOW_S - 56 * DAY_S, NOW_S - 55 * DAY_S)
    assert all(until_s - since_s <= DAY_S for since_s, until_s in sacct.windows)
    sacct.windows.clear()
    assert store.update(sacct, NOW_S + 60.0).new == 0
    # The last end was an hour before, and another hour overlaps.
    assert sacct.windows == [(NOW_S - 7200.0, NOW_S + 60.0)]


def test_jobs_have_all_fields_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "accounting.db"
    first = AccountingStore(path)
    first.update(Sacct([(NOW_S - 5.0, row("7_1", NOW_S - 5.0, TimelimitRaw="60", Priority="12", NNodes="2"))]), NOW_S)
    first.close()
    again = AccountingStore(path)
    assert again.jobs() == [
        AccountedJob(
            id="7_1",
            state="COMPLETED",
            submit_s=NOW_S - 205.0,
            start_s=NOW_S - 105.0,
            end_s=NOW_S - 5.0,
            run_s=100.0,
            name="train",
            user="ann",
            gpus=2,
            gpu_type="a100",
            time_limit_s=3600.0,
            node_count=2,
            nodes=("node1", "node2"),
            priority=12,
        )
    ]
    assert again.jobs(NOW_S) == []
    assert path.stat().st_mode & 0o777 == 0o600
    again.close()


def test_an_end_that_slurm_reports_days_later_is_read(store: AccountingStore) -> None:
    sacct = Sacct([(NOW_S - 3600.0, row("1", NOW_S - 3600.0))])
    store.update(sacct, NOW_S)
    late_s = NOW_S + DAY_S
    # The database was away for three days: this end reaches it after they were asked about.
    store.update(sacct, NOW_S + 3 * DAY_S)
    sacct.rows.append((late_s, row("2", late_s)))
    assert store.update(sacct, NOW_S + 3 * DAY_S + 60.0).new == 1


def test_a_long_silence_is_not_read_again_from_its_start(store: AccountingStore) -> None:
    sacct = Sacct([(NOW_S - 3600.0, row("1", NOW_S - 3600.0))])
    store.update(sacct, NOW_S)
    store.update(sacct, NOW_S + 30 * DAY_S)
    sacct.windows.clear()
    store.update(sacct, NOW_S + 30 * DAY_S + 60.0)
    assert sacct.windows[0][0] == NOW_S + 23 * DAY_S - 3600.0


class _Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("crash_at", range(6))
def test_a_crash_at_any_step_loses_no_job(tmp_path: Path, crash_at: int) -> None:
    path = tmp_path / "accounting.db"
    sacct = Sacct(jobs_a_day(5))

    def crash(since_s: float, until_s: float) -> None:
        if len(sacct.windows) == 52 + crash_at:
            raise _Crash

    sacct.before = crash
    store = AccountingStore(path)
    try:
        store.update(sacct, NOW_S)
    except _Crash:
        pass
    store.close()
    sacct.before = lambda since_s, until_s: None
    sacct.windows.clear()
    again = AccountingStore(path)
    again.update(sacct, NOW_S)
    assert sorted(job.id for job in again.jobs()) == ["0", "1", "2", "3", "4"]
    # What was read before the crash is not read again, but for the seven days in which ends may be late.
    assert len(sacct.windows) <= 5 + 7 + 1
    again.close()


@pytest.mark.parametrize("statement", ["INSERT OR REPLACE", "INSERT INTO progress", "COMMIT"])
def test_a_window_is_kept_whole_or_not_at_all(tmp_path: Path, statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash within the transaction: the connection of a killed process is closed by the system, without a rollback."""

    class Killed(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith(statement):
                raise _Crash
            return super().execute("SELECT 1") if sql == "ROLLBACK" else super().execute(sql, *values)

    path = tmp_path / "accounting.db"
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=Killed))
    store = AccountingStore(path)
    sacct = Sacct(jobs_a_day(3))
    with pytest.raises(_Crash):
        store.update(sacct, NOW_S)
    store.close()
    monkeypatch.setattr(sqlite3, "connect", connect)
    again = AccountingStore(path)
    assert again.jobs() == []
    assert again.update(sacct, NOW_S).new == 3
    again.close()


def test_ends_of_jobs_without_gpus_are_not_read_again_and_again(store: AccountingStore) -> None:
    end_s = NOW_S + 3 * DAY_S
    sacct = Sacct([(NOW_S - 3600.0, row("1", NOW_S - 3600.0)), (end_s, row("2", end_s, AllocTRES="cpu=1"))])
    store.update(sacct, end_s)
    sacct.windows.clear()
    store.update(sacct, end_s + 60.0)
    assert sacct.windows == [(end_s - 3600.0, end_s + 60.0)]
    assert [job.id for job in store.jobs()] == ["1"]


def test_damaged_rows_steps_and_jobs_without_gpus_are_left_out(store: AccountingStore, tmp_path: Path) -> None:
    end_s = NOW_S - 5.0
    good = row("1", end_s)
    lines = [
        good,
        row("1.batch", end_s),
        row("2", end_s, AllocTRES="cpu=1"),
        row("3", end_s, End="Unknown"),
        "half a|row",
        row("4", end_s, state="RUNNING", End="Unknown"),
    ]
    step = store.update(Sacct([(end_s, line) for line in lines]), NOW_S)
    assert (step.ended, step.new) == (1, 1)
    path = tmp_path / "jobs.txt"
    path.write_text("\n".join(("|".join(FIELDS), *lines)))
    assert read_file(path)[1] == {
        "a step of a job": 1,
        "the job has no GPU": 1,
        "End is not a date and time": 1,
        "the row has not as many cells as the header (a job's name may hold a bar)": 1,
    }
    assert [job.id for job in store.jobs()] == ["1"]


def test_the_runs_of_a_requeued_job_are_one_job(store: AccountingStore) -> None:
    first_s, last_s = NOW_S - 5000.0, NOW_S - 100.0
    rows = [
        (first_s, row("9", first_s, state="NODE_FAIL", Eligible=f"{first_s - 150.0:.0f}")),
        (last_s, row("9", last_s, submit_s=first_s, Eligible=f"{first_s + 10.0:.0f}", ElapsedRaw="77")),
        (last_s, row("10", last_s, state="NODE_FAIL")),
    ]
    sacct = Sacct(rows[:1])
    store.update(sacct, NOW_S - 4000.0)
    assert [(job.id, job.state) for job in store.jobs()] == [("9", "NODE_FAIL")]
    sacct.rows = rows
    store.update(sacct, NOW_S)
    found = {job.id: (job.state, job.submit_s, job.waits_from_s, job.run_s) for job in store.jobs()}
    assert found == {
        "9": ("COMPLETED", first_s - 200.0, first_s - 150.0, 77.0),
        "10": ("NODE_FAIL", last_s - 200.0, last_s - 200.0, 100.0),
    }


def test_a_number_that_slurm_used_again_is_another_job() -> None:
    first = AccountedJob("1", "COMPLETED", 0.0, end_s=10.0, name="a", user="u")
    second = AccountedJob("1", "COMPLETED", 50.0, end_s=60.0, name="a", user="u")
    assert whole_jobs([second, first]) == [first, second]


def test_a_window_whose_answer_is_too_large_is_halved(store: AccountingStore) -> None:
    sacct = Sacct(jobs_a_day(3))

    def refuse(since_s: float, until_s: float) -> None:
        if until_s - since_s > 20_000.0:
            raise SlurmUnreadable("sacct wrote more than 268435456 bytes")

    sacct.before = refuse
    assert store.update(sacct, NOW_S).new == 3


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SlurmAway("sacct: Problem talking to the database"), "Problem talking to the database"),
        (SlurmRefused("sacct: Slurm accounting storage is disabled"), "no accounting database"),
        (SlurmUnreadable("sacct wrote more than 1 bytes"), "more than 1 bytes"),
    ],
)
def test_an_answer_that_fails_keeps_the_windows_before_it(
    store: AccountingStore, error: Exception, message: str
) -> None:
    sacct = Sacct(jobs_a_day(10))

    def fail(since_s: float, until_s: float) -> None:
        if until_s > NOW_S - 3 * DAY_S:
            raise error

    sacct.before = fail
    with pytest.raises(AccountingError, match=message):
        store.update(sacct, NOW_S)
    assert len(store.jobs()) == 7


def test_old_jobs_and_too_many_jobs_are_dropped(store: AccountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.update(Sacct(jobs_a_day(10)), NOW_S)
    store.update(Sacct([]), NOW_S + 50 * DAY_S)
    assert len(store.jobs()) == 6
    monkeypatch.setattr(accounting, "JOBS_MAX", 4)
    store.update(Sacct([]), NOW_S + 50 * DAY_S + 1.0)
    assert [job.id for job in store.jobs()] == ["3", "2", "1", "0"]


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "accounting.db"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(AccountingError, match=r"accounting\.db: file is not a database; a damaged file may be removed"):
        AccountingStore(path)
    with pytest.raises(AccountingError, match="No such file or directory"):
        AccountingStore(tmp_path / "absent" / "accounting.db")


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "accounting.db"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(AccountingError, match="format 7 is unknown"):
        AccountingStore(path)


def test_a_file_with_the_output_of_sacct_is_read_in_the_same_way(tmp_path: Path) -> None:
    first_s = NOW_S - 5000.0
    lines = [
        row("9", first_s, state="NODE_FAIL"),
        row("9", NOW_S, submit_s=first_s),
        row("9.batch", NOW_S),
        row("10", NOW_S, AllocTRES="cpu=1"),
        row("11", NOW_S, state="PENDING", End="Unknown"),
    ]
    path = tmp_path / "jobs.txt"
    path.write_text("\n".join(("|".join(FIELDS), *lines)))
    jobs, left_out = read_file(path)
    assert [(job.id, job.submit_s, job.end_s) for job in jobs] == [("9", first_s - 200.0, NOW_S)]
    assert left_out == {"a step of a job": 1, "the job has no GPU": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, r"jobs\.txt.*No such file"), ("JobID|State\n", r"jobs\.txt:1: Submit: this column is missing")],
)
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "jobs.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AccountingError, match=message):
        read_file(path)
