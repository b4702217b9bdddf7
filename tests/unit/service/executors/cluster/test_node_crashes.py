"""Node programs when something else ends: the engine ends them, a process is killed, the lease ends, launches compete."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from policies.model.job import PreemptionSignal
from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.cluster.node import NodeSupervisor, watch
from service.executors.cluster.runtime import PROGRAM, RUNTIME
from service.executors.supervisor import EXIT_TAKEN
from service.runtime.processes import descendants
from tests.local_executor import lives, python, wait_for
from tests.node_programs import Servers, code_of, servers

__all__ = ["servers"]

# Each waits in small steps: a handler in Python that is due a moment before `pause` would run only after it.
WAIT = "import signal\nprint('ready', flush=True)\nwhile True: signal.sigtimedwait([], 0.05)"
WARNED = (
    "import signal, os\n"
    "signal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b'warned\\n'), os._exit(75)))\n"
    "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'terminated\\n'), os._exit(9)))\n" + WAIT
)
STUBBORN = (
    "import os, signal\n"
    "for n in (signal.SIGUSR1, signal.SIGTERM): signal.signal(n, lambda n, _: os.write(1, b'got %d\\n' % n))\n" + WAIT
)
WARNING = PreemptionSignal(signal="SIGUSR1", grace_s=600.0)
# Each run of the command leaves a line here, so that doubled runs are seen.
COUNT = "import os; open(os.environ['SOONER_CHECKPOINT_DIR'] + '/runs', 'a').write(os.environ['NODE_RANK'] + '\\n');"


def runs(servers: Servers) -> list[str]:
    """The node rank of each rank that ran."""
    file = servers.folder / "checkpoints/1/runs"
    return sorted(file.read_text().split()) if file.exists() else []


class TestEndedByTheEngine:
    def test_sigterm_warns_all_nodes(self, servers: Servers) -> None:
        programs = servers.start(servers.plan(python(WARNED), preemption=WARNING))
        servers.wait_output("ready", 0, 1)
        programs[0].send_signal(signal.SIGTERM)
        assert [code_of(program) for program in programs] == [0, 0]
        ends = [servers.end(0), servers.end(1)]
        assert [(end["exit_code"], end["stop_signalled"]) for end in ends] == [(75, True)] * 2
        assert servers.output(0) == servers.output(1) == "ready\nwarned\n"
        halt = shared.read_halt(servers.inbox(), servers.seal())
        assert halt is not None
        assert (halt.node, halt.by_engine) == (0, True)
        assert "ended by the engine" in ends[0]["detail"]
        assert ends[1]["halted_by"] == 0

    @pytest.mark.parametrize("kill_wait_s", [2.0, 3.0])
    def test_all_is_ended_and_recorded_before_sigkill(self, servers: Servers, kill_wait_s: float) -> None:
        """As ``scancel``: SIGCONT and SIGTERM to all processes of the step; after KillWait it sends SIGKILL."""
        plan = servers.plan(python(STUBBORN), (1,), preemption=WARNING, plan={"kill_wait_s": kill_wait_s})
        (program,) = servers.start(plan)
        servers.wait_output("ready", 0)
        step = [program.pid, *(info.id.pid for info in descendants(program.pid))]
        assert len(step) == 3
        for signum in (signal.SIGCONT, signal.SIGTERM):
            for pid in step:
                os.kill(pid, signum)
        # SIGKILL does not come here, and the grace period is ten minutes: the program ends all by itself in time.
        assert code_of(program) == 0
        end = servers.end(0)
        assert (end["outcome"], end["exit_code"], end["stop_signalled"]) == ("exited", 137, True)
        assert "got 10" in servers.output(0)

    @pytest.mark.parametrize("ranks_first", [False, True])
    def test_ranks_that_die_of_its_signal_have_not_failed(self, servers: Servers, ranks_first: bool) -> None:
        programs = servers.start(servers.plan(python(WAIT)))
        servers.wait_output("ready", 0, 1)
        for info in sorted(descendants(programs[1].pid), key=lambda info: info.id.pid, reverse=ranks_first):
            with contextlib.suppress(ProcessLookupError):  # one that has ended with those before
                os.kill(info.id.pid, signal.SIGTERM)
        assert [code_of(program) for program in programs] == [0, 0]
        halt = shared.read_halt(servers.inbox(), servers.seal())
        assert halt is not None
        assert (halt.node, halt.by_engine) == (1, True)

    def test_while_the_nodes_gather(self, servers: Servers) -> None:
        (program,) = servers.start(servers.plan(python("print('ran')")), [0])
        wait_for(lambda: servers.node(0).exists, "its folder")
        program.send_signal(signal.SIGTERM)
        assert code_of(program) == 0
        assert servers.end(0)["exit_code"] is None
        (late,) = servers.start(servers.plan(python("print('ran')")), [1], "launch 1")
        assert code_of(late) == 0
        assert (servers.end(1)["halted_by"], servers.output(1)) == (0, "")

    def test_at_any_moment_of_its_start(self, servers: Servers) -> None:
        for attempt, pause_s in enumerate((0.0, 0.02, 0.05, 0.08, 0.12, 0.2), 1):
            (program,) = servers.start(servers.plan(python(WAIT), (1,), number=attempt))
            time.sleep(pause_s)
            program.send_signal(signal.SIGTERM)
            # Before the program has a handler it dies of the signal, and nothing has begun.
            code = code_of(program)
            assert code in (0, -signal.SIGTERM)
            assert (servers.node(0, f"1.{attempt}").end is not None) == (code == 0)

    def test_with_the_process_that_started_it(self, servers: Servers) -> None:
        plan = servers.plan(python(WAIT), (1,))
        script = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
        with subprocess.Popen(
            [sys.executable, "-c", script, *servers.arguments()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=servers.environment(0, 1, "word"),
        ) as engine:
            servers.feed(engine, plan)
            servers.wait_output("ready", 0)
            engine.kill()
        end = servers.end(0)
        assert (end["exit_code"], "ended by the engine" in end["detail"]) == (143, True)
        wait_for(lambda: not servers.processes(), "the end of its processes")


class TestKilled:
    @pytest.mark.parametrize("victim", ["supervisor", "keeper"])
    def test_one_process_of_one_node(self, servers: Servers, victim: str) -> None:
        programs = servers.start(servers.plan(python(COUNT + WAIT)))
        servers.wait_output("ready", 0, 1)
        supervisor, keeper = servers.supervisor(1)
        assert keeper == programs[1].pid
        os.kill(supervisor if victim == "supervisor" else keeper, signal.SIGKILL)
        # No engine is here: what is left of the program stops the other node.
        assert code_of(programs[0]) == 0
        assert code_of(programs[1]) != 0
        end = servers.end(1)
        assert (end["outcome"], end["reason"]) == ("lost", "node_lost")
        assert servers.end(0)["halted_by"] == 1
        both = shared.combined_end([servers.end(0), end], 1)
        assert (both["outcome"], both["reason"]) == ("lost", "node_lost")
        wait_for(lambda: not servers.processes(), "the end of its processes")

    def test_both_processes_of_one_node(self, servers: Servers) -> None:
        programs = servers.start(servers.plan(python(COUNT + WAIT)))
        servers.wait_output("ready", 0, 1)
        supervisor, keeper = servers.supervisor(1)
        # The supervisor must not see the end of its keeper before its own.
        os.kill(supervisor, signal.SIGSTOP)
        for pid in (keeper, supervisor):
            os.kill(pid, signal.SIGKILL)
        assert code_of(programs[1]) == -signal.SIGKILL
        wait_for(lambda: not lives(supervisor), "the end of the supervisor")
        assert servers.node(1).end is None
        # The engine sees the exit code, and ends the other node.
        assert programs[0].poll() is None
        programs[0].send_signal(signal.SIGTERM)
        assert code_of(programs[0]) == 0
        wait_for(lambda: not servers.processes(), "the end of its processes")

    def test_a_second_launch_after_it_never_runs(self, servers: Servers) -> None:
        plan = servers.plan(python(COUNT + WAIT))
        programs = servers.start(plan)
        servers.wait_output("ready", 0, 1)
        for program in programs:
            program.kill()
            code_of(program)
        assert [code_of(program) for program in servers.start(plan)] == [EXIT_TAKEN] * 2
        assert runs(servers) == ["0", "1"]
        servers.end(0)
        servers.end(1)

    def test_the_same_launch_after_it_never_runs(self, servers: Servers) -> None:
        """An engine may start a job again after its node has failed."""
        plan = servers.plan(python(COUNT), (1,))
        assert [code_of(program) for program in servers.start(plan, None, "word")] == [0]
        assert [code_of(program) for program in servers.start(plan, None, "word")] == [EXIT_TAKEN]
        assert runs(servers) == ["0"]

    def test_a_hanging_supervisor_is_killed_by_its_keeper(self) -> None:
        """As one that waits for the shared folder: it reports no renewed lease any more."""
        for pulses in (0, 3):
            pulse, writing = os.pipe()
            child = os.fork()
            if child == 0:
                for _ in range(pulses):
                    time.sleep(0.3)
                    os.write(writing, b"!")
                signal.pause()
            began = time.monotonic()
            status = watch([], pulse, 0.5, os.getppid())(child)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
            assert 0.5 + 0.3 * pulses <= time.monotonic() - began
            os.close(pulse)
            os.close(writing)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class TestLease:
    def test_it_ends_all_nodes(self, servers: Servers) -> None:
        programs = servers.start(servers.plan(python(WAIT), plan={"lease_s": 1.5}))
        assert [code_of(program) for program in programs] == [0, 0]
        # The first that notices it stops the other.
        halt = shared.read_halt(servers.inbox(), servers.seal())
        end = shared.combined_end([servers.end(0), servers.end(1)], halt.node if halt is not None else None)
        assert end["outcome"] == "lost"
        assert "the service did not renew its lease for 1.5 s" in end["detail"]
        assert end["server"] in ("node0", "node1"), "lost with its server, so it uses up no retry"

    def test_the_first_that_notices_it_stops_the_others_at_once(self, servers: Servers) -> None:
        """Else the ranks there would end because they miss this one's, and the attempt would count as one that failed."""
        plan = servers.plan(python(STUBBORN), plan={"grace_s": 600.0})
        programs = servers.start(plan | {"lease_s": 1.5}, [0], "word") + servers.start(plan, [1], "word")
        servers.wait_output("got 15", 1)
        assert not servers.node(0).end
        halt = shared.read_halt(servers.inbox(), servers.seal())
        assert halt is not None
        assert (halt.node, "lease" in halt.detail) == (0, True)
        shared.write_stop(servers.inbox(), None, 0.1, servers.seal())
        assert [code_of(program) for program in programs] == [0, 0]
        end = shared.combined_end([servers.end(0), servers.end(1)], halt.node)
        assert (end["outcome"], end["server"]) == ("lost", "node0")

    def test_renewals_keep_it(self, servers: Servers) -> None:
        (program,) = servers.start(servers.plan(python(WAIT), (1,), plan={"lease_s": 4.0}))
        servers.wait_output("ready", 0)
        until = time.monotonic() + 5.0
        while time.monotonic() < until:
            servers.renew()
            time.sleep(0.1)
            assert program.poll() is None

    def test_the_age_counts_from_the_renewal(self, servers: Servers) -> None:
        os.utime(servers.site.lease_file, (time.time() - 50.0,) * 2)
        (program,) = servers.start(servers.plan(python(WAIT), (1,), plan={"lease_s": 52.0}))
        assert code_of(program) == 0
        assert servers.end(0)["outcome"] == "lost"

    def test_a_late_program_does_not_start(self, servers: Servers) -> None:
        os.utime(servers.site.lease_file, (time.time() - 100.0,) * 2)
        (program,) = servers.start(servers.plan(python(COUNT), (1,)))
        assert code_of(program) == 0
        end = servers.end(0)
        assert (end["outcome"], "lease" in end["detail"], runs(servers)) == ("launch_failed", True, [])

    def test_a_renewal_that_is_seen_late_counts_from_its_time(
        self, servers: Servers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = servers.plan(python(WAIT), (1,))
        folder = shared.node_folder(servers.inbox(), 0)
        (folder / names.OUTPUT).mkdir(parents=True)
        (folder / names.LOCK).touch()
        pulse, writing = os.pipe()
        part = plan | {"node": 0, "pulse": writing, "ranks": [{"NODE_RANK": "0"}]}
        supervisor = NodeSupervisor(part, folder, os.getppid(), ())
        assert not supervisor._lease_is_over()
        now = time.monotonic()
        os.utime(servers.site.lease_file, (time.time() - 40.0,) * 2)
        assert not supervisor._lease_is_over()
        assert supervisor.lease_seen == pytest.approx(now - 40.0, abs=5.0)
        assert os.read(pulse, 10) == b"!"
        supervisor.output.finish([])
        os.close(pulse)
        os.close(writing)

    def test_the_clock_of_the_machine_does_not_matter(self, servers: Servers) -> None:
        """The age is a difference of two times of the file system."""
        os.utime(servers.site.lease_file, (time.time() + 3600.0,) * 2)
        programs = servers.start(servers.plan(python("pass"), (1,)))
        assert [code_of(program) for program in programs] == [0]
        assert servers.end(0)["exit_code"] == 0


class TestManyLaunches:
    @pytest.mark.parametrize("seed", range(3))
    def test_exactly_one_runs(self, servers: Servers, seed: int) -> None:
        draw = random.Random(seed)
        plan = servers.plan(python(COUNT))
        order = [(rank, word) for word in ("a", "b", "c") for rank in (0, 1)]
        draw.shuffle(order)
        programs = {(rank, word): servers.start(plan, [rank], word)[0] for rank, word in order}
        codes = {key: code_of(program) for key, program in programs.items()}
        winner = shared.claimed(servers.inbox())
        assert codes == {(rank, word): 0 if word == winner else EXIT_TAKEN for rank, word in order}
        assert runs(servers) == ["0", "1"]
        assert [servers.end(rank)["exit_code"] for rank in (0, 1)] == [0, 0]

    @pytest.mark.parametrize("seed", range(3))
    def test_a_stop_among_them_ends_all_or_comes_first(self, servers: Servers, seed: int) -> None:
        draw = random.Random(seed)
        plan = servers.plan(python(COUNT + WAIT))
        programs = servers.start(plan, [0], "a")
        wait = draw.choice([0.0, 0.03, 0.06, 0.1, 0.15])
        time.sleep(wait)
        holder = shared.claim(servers.inbox(), shared.STOPPED)
        shared.write_stop(servers.inbox(), None, 0.5, servers.seal())
        programs += servers.start(plan, [1], "a")
        codes = [code_of(program) for program in programs]
        assert codes == ([EXIT_TAKEN] * 2 if holder == shared.STOPPED else [0, 0])
        assert runs(servers) == []


def test_nodes_of_two_releases(servers: Servers) -> None:
    """A service that is upgraded in the middle of a launch leaves programs of both."""
    other = servers.folder / RUNTIME / "other"
    shutil.copytree(servers.folder / RUNTIME / servers.digest, other)
    program = other / PROGRAM
    program.write_text(program.read_text() + "# another release\n")
    plan = servers.plan(python(COUNT))
    plan["an entry of a later release"] = True
    plan["nodes"][0]["another"] = 1
    programs = servers.start(plan, [0], "word")
    servers.digest = "other"
    programs += servers.start(plan, [1], "word")
    assert [code_of(program) for program in programs] == [0, 0]
    assert runs(servers) == ["0", "1"]
