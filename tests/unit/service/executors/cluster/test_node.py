"""Node programs: an attempt on several servers starts, ends and stops as one."""

import json
from pathlib import Path

from policies.model.job import Launch as LaunchMode
from policies.model.job import PreemptionSignal
from policies.model.parallelism import ParallelismConfig
from service.executors.cluster import folder as shared
from service.executors.cluster.node import EXIT_REFUSED
from service.executors.supervisor import EXIT_TAKEN
from tests.local_executor import python, wait_for
from tests.node_programs import Servers, code_of, servers

__all__ = ["servers"]

SHOW_ENVIRONMENT = python("import os, json; print(json.dumps(dict(os.environ)))")
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
WARNING = PreemptionSignal("SIGUSR1", 60.0)


def environments(servers: Servers, rank: int) -> list[dict[str, str]]:
    """The environments that the ranks of a node printed, in order."""
    lines = sorted(line for line in servers.output(rank).splitlines() if "{" in line)
    return [json.loads(line[line.index("{") :]) for line in lines]


def only_on(node: int, code: str, otherwise: str = WAIT) -> tuple[str, ...]:
    """A command that runs ``code`` on one node, and other code on the others."""
    return python(f"import os\nexec({code!r} if os.environ['NODE_RANK'] == '{node}' else {otherwise!r})")


class TestEnvironment:
    def test_a_rank_a_server(self, servers: Servers) -> None:
        ends = servers.run(SHOW_ENVIRONMENT, (2, 3), resume_iteration=70, env={"LR": "0.1"})
        assert [(end["outcome"], end["exit_code"]) for end in ends] == [("exited", 0)] * 2
        (first,), (second,) = environments(servers, 0), environments(servers, 1)
        common = {
            "LR": "0.1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(shared.read_rendezvous(servers.inbox(), servers.seal())),
            "NNODES": "2",
            "WORLD_SIZE": "5",
            "SOONER_JOB_ID": "1",
            "SOONER_ATTEMPT": "1.1",
            "SOONER_RESUME_ITERATION": "70",
            "SOONER_CHECKPOINT_DIR": str(servers.folder / "checkpoints/1"),
        }
        assert common.items() <= first.items()
        assert common.items() <= second.items()
        for rank, seen in enumerate((first, second)):
            assert seen["NODE_RANK"] == str(rank)
            assert seen["SOONER_PROGRESS_FILE"] == str(servers.inbox() / f"node-{rank}/progress.jsonl")
        assert (first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]) == ("0,1", "0,1,2")
        assert 20000 <= int(first["MASTER_PORT"]) < 30000

    def test_a_rank_a_gpu(self, servers: Servers) -> None:
        servers.run(SHOW_ENVIRONMENT, (2, 1), mode=LaunchMode.GPU)
        seen = [
            (e["RANK"], e["LOCAL_RANK"], e["NODE_RANK"], e["WORLD_SIZE"])
            for rank in (0, 1)
            for e in environments(servers, rank)
        ]
        assert seen == [("0", "0", "0", "3"), ("1", "1", "0", "3"), ("2", "0", "1", "3")]

    def test_the_node_of_the_first_stage_is_that_of_rank_0(self, servers: Servers) -> None:
        """It finds the port. The engine and the shared folder know the nodes by their order in the placement."""
        spread = {"replicas": ((0, 1), (2, 0)), "parallelism": ParallelismConfig((2, 1), (1, 1))}
        servers.run(SHOW_ENVIRONMENT, (1, 2), mode=LaunchMode.GPU, **spread)
        (last,), first = environments(servers, 0), environments(servers, 1)
        assert [(e["RANK"], e["LOCAL_RANK"], e["NODE_RANK"]) for e in (*first, last)] == [
            ("0", "0", "0"),
            ("1", "1", "0"),
            ("2", "0", "1"),
        ]
        assert {line[:4] for line in servers.output(1).splitlines()} == {"[0] ", "[1] "}, (
            "lines are marked with the rank"
        )
        assert len({e["MASTER_PORT"] for e in (*first, last)}) == 1

    def test_only_what_is_allowed_of_the_nodes_own(self, servers: Servers) -> None:
        plan = servers.plan(SHOW_ENVIRONMENT, (1,), env={"TZ": "job"})
        (program,) = servers.start(plan, AWS_SECRET_ACCESS_KEY="x", SLURM_JOB_ID="7", HOME="/h", TZ="node")
        assert code_of(program) == 0
        (seen,) = environments(servers, 0)
        assert not {"AWS_SECRET_ACCESS_KEY", "SLURM_JOB_ID", "SOONER_LAUNCH", "SOONER_NODE"} & set(seen)
        assert (seen["HOME"], seen["TZ"]) == ("/h", "job")

    def test_the_name_that_slurm_gives(self, servers: Servers) -> None:
        plan = servers.plan(SHOW_ENVIRONMENT, (1,))
        (program,) = servers.start(plan, SOONER_NODE="", SLURMD_NODENAME="node0")
        assert (code_of(program), servers.node(0).end is not None) == (0, True)


class TestGpus:
    def test_those_that_the_engine_gives(self, servers: Servers) -> None:
        (program,) = servers.start(servers.plan(SHOW_ENVIRONMENT, (2,)), CUDA_VISIBLE_DEVICES="3,GPU-5ab")
        assert code_of(program) == 0
        assert environments(servers, 0)[0]["CUDA_VISIBLE_DEVICES"] == "3,GPU-5ab"
        assert servers.node(0).gpus == ("3", "GPU-5ab")

    def test_too_few(self, servers: Servers) -> None:
        plan = servers.plan(SHOW_ENVIRONMENT, (1, 2))
        programs = servers.start(plan, [0]) + servers.start(plan, [1], "launch 1", CUDA_VISIBLE_DEVICES="7")
        assert [code_of(program) for program in programs] == [0, 0]
        end = servers.end(1)
        assert (end["outcome"], end["reason"]) == ("launch_failed", "launch_failed")
        expected = "node1: the launch has 2 GPUs on this node, and the engine gave 1: CUDA_VISIBLE_DEVICES=7"
        assert end["detail"] == expected
        assert servers.end(0)["halted_by"] == 1
        assert servers.output(0) == servers.output(1) == ""
        both = shared.combined_end([servers.end(0), end])
        assert (both["outcome"], both["detail"]) == ("launch_failed", f"node 1: {expected}")

    def test_exactly_those_of_the_launch(self, servers: Servers) -> None:
        plan = servers.plan(SHOW_ENVIRONMENT, (2,), exact_gpus=True)
        (program,) = servers.start(plan, CUDA_VISIBLE_DEVICES="6,7")
        assert code_of(program) == 0
        assert environments(servers, 0)[0]["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert servers.node(0).gpus == ()


class TestRefused:
    def test_a_node_that_the_launch_does_not_have(self, servers: Servers) -> None:
        plan = servers.plan(python(WAIT))
        (right,) = servers.start(plan, [0], "word")
        (wrong,) = servers.start(plan, [1], "word", SOONER_NODE="node7")
        assert code_of(wrong) == EXIT_REFUSED
        assert wrong.stderr is not None
        assert wrong.stderr.read().decode() == "sooner: SOONER_NODE=node7: the launch is for node0, node1\n"
        # The other node does not wait for it.
        assert code_of(right) == 0
        assert "SOONER_NODE=node7" in servers.end(0)["detail"]

    def test_no_word(self, servers: Servers) -> None:
        (program,) = servers.start(servers.plan(python(WAIT), (1,)), SOONER_LAUNCH="")
        assert code_of(program) == EXIT_REFUSED
        assert shared.claimed(servers.inbox()) is None

    def test_no_shared_folder(self, servers: Servers, tmp_path: Path) -> None:
        plan = servers.plan(python(WAIT), (1,), plan={"attempts_dir": str(tmp_path / "unmounted")})
        (program,) = servers.start(plan)
        assert code_of(program) not in (0, EXIT_TAKEN)
        assert program.stderr is not None
        assert f"the shared folder {tmp_path}/unmounted: No such file" in program.stderr.read().decode()


class TestEnds:
    def test_a_node_that_is_done_waits_for_none(self, servers: Servers) -> None:
        programs = servers.start(servers.plan(only_on(0, "raise SystemExit(0)")))
        assert code_of(programs[0]) == 0
        assert servers.end(0)["exit_code"] == 0
        servers.wait_output("ready", 1)
        assert programs[1].poll() is None
        assert shared.read_halt(servers.inbox(), servers.seal()) is None

    def test_one_failure_ends_all_nodes(self, servers: Servers, tmp_path: Path) -> None:
        # A node whose rank has not begun when the failure comes would end without an exit code.
        begun = tmp_path / "begun"
        fail = f"import os, time\nwhile not os.path.exists({str(begun)!r}): time.sleep(0.02)\nraise SystemExit(3)"
        programs = servers.start(servers.plan(only_on(1, fail), (1, 1, 1)))
        servers.wait_output("ready", 0, 2)
        begun.touch()
        assert [code_of(program) for program in programs] == [0] * 3
        ends = [servers.end(rank) for rank in range(3)]
        assert [end["exit_code"] for end in ends] == [143, 3, 143]
        assert [end.get("halted_by") for end in ends] == [1, None, 1]
        assert ends[0]["detail"].startswith("stopped because node 1 could not go on: rank 1: exit code 3")
        halt = shared.read_halt(servers.inbox(), servers.seal())
        assert halt is not None
        assert (halt.node, halt.by_engine, halt.detail) == (1, False, "rank 1: exit code 3")
        found = shared.combined_end(ends, halt.node)
        assert (found["outcome"], found["exit_code"], found["detail"]) == ("exited", 3, "node 1: rank 1: exit code 3")

    def test_a_yield_is_no_failure(self, servers: Servers) -> None:
        ends = servers.run(only_on(0, "raise SystemExit(75)", "pass"))
        assert [end["exit_code"] for end in ends] == [75, 0]
        assert shared.combined_end(ends)["exit_code"] == 75

    def test_a_command_that_only_one_node_lacks(self, servers: Servers, tmp_path: Path) -> None:
        plan = servers.plan(("./program",), working_dir=str(tmp_path))
        (tmp_path / "program").write_text("#!/bin/sh\nexec sleep 1000\n")
        (tmp_path / "program").chmod(0o755)
        programs = servers.start(plan, [0], "word")
        programs += servers.start(plan | {"working_dir": str(tmp_path.parent)}, [1], "word")
        assert [code_of(program) for program in programs] == [0, 0]
        found = shared.combined_end([servers.end(0), servers.end(1)])
        assert (found["outcome"], found["reason"]) == ("launch_failed", "command_not_found")

    def test_a_node_that_never_begins(self, servers: Servers) -> None:
        (program,) = servers.start(servers.plan(python("print('ran')"), plan={"gather_s": 0.3}), [0])
        assert code_of(program) == 0
        end = servers.end(0)
        assert (end["outcome"], end["detail"]) == ("launch_failed", "no program began within 0.3 s on node1")
        assert servers.output(0) == ""

    def test_a_first_node_that_never_begins(self, servers: Servers) -> None:
        (program,) = servers.start(servers.plan(python("print('ran')"), plan={"gather_s": 0.3}), [1])
        assert code_of(program) == 0
        assert servers.end(1)["detail"] == "no program began within 0.3 s on node0"
        assert servers.output(1) == ""


class TestStops:
    def test_a_stop_warns_all_nodes(self, servers: Servers) -> None:
        programs = servers.start(servers.plan(python(WARNED)))
        servers.wait_output("ready", 0, 1)
        shared.write_stop(servers.inbox(), "SIGUSR1", 60.0, servers.seal())
        assert [code_of(program) for program in programs] == [0, 0]
        ends = [servers.end(0), servers.end(1)]
        assert [(end["exit_code"], end["stop_signalled"]) for end in ends] == [(75, True)] * 2
        assert not any("halted_by" in end for end in ends)
        assert servers.output(0) == servers.output(1) == "ready\nwarned\n"
        assert shared.read_halt(servers.inbox(), servers.seal()) is None

    def test_a_stop_kills_in_the_end(self, servers: Servers) -> None:
        programs = servers.start(servers.plan(python(STUBBORN)))
        servers.wait_output("ready", 0, 1)
        shared.write_stop(servers.inbox(), None, 0.3, servers.seal())
        assert [code_of(program) for program in programs] == [0, 0]
        assert [servers.end(rank)["exit_code"] for rank in (0, 1)] == [137, 137]

    def test_a_stop_before_the_claim(self, servers: Servers) -> None:
        plan = servers.plan(python("print('ran')"))
        assert shared.claim(servers.inbox(), shared.STOPPED) == shared.STOPPED
        assert [code_of(program) for program in servers.start(plan)] == [EXIT_TAKEN] * 2
        assert not servers.node(0).exists

    def test_a_stop_while_the_nodes_gather(self, servers: Servers) -> None:
        (program,) = servers.start(servers.plan(python("print('ran')")), [0])
        wait_for(lambda: servers.node(0).exists, "its folder")
        shared.write_stop(servers.inbox(), None, 1.0, servers.seal())
        assert code_of(program) == 0
        end = servers.end(0)
        assert (end["outcome"], end["exit_code"], end["stop_signalled"]) == ("exited", None, True)
        assert servers.output(0) == ""

    def test_a_stop_of_another_attempt_is_ignored(self, servers: Servers) -> None:
        servers.start(servers.plan(only_on(0, "print('ready', flush=True)")))
        shared.write_stop(servers.inbox(), None, 1.0, servers.seal("1.2"))
        servers.wait_output("ready", 1)
        assert servers.end(0)["exit_code"] == 0
