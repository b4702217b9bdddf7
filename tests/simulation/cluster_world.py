"""A cluster on virtual time: an engine, its servers and their node programs, which work on real folders in simulated processes.

Everything is driven by :meth:`World.step`, so that one seed gives one history. Services may die in any call and at any crash
point.
"""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from policies.model.cluster import Cluster, Server
from service.engine.ports import Abilities
from service.executors import folder as names
from service.executors.cluster import executor as module
from service.executors.cluster import folder as shared
from service.executors.cluster.driver import (
    EngineEnd,
    EngineJob,
    EngineJobState,
    EngineNode,
    EngineRefused,
    EngineUnavailable,
    NodeLaunch,
    NodeState,
)
from service.executors.cluster.executor import ClusterExecutor
from service.executors.files import write_json
from service.executors.seal import Seal

NODES = ("node1", "node2", "node3")
GPUS = 4
CLUSTER = Cluster("simulated", tuple(Server(name, GPUS) for name in NODES))
GRACE_S = 5.0
LEASE_S = 20.0
STEP_S = 0.5


class Crash(BaseException):
    """The service dies here. No ``except Exception`` stops it."""


class Program:
    """The node program of one attempt on one server. ``seen``: whether the engine knows of it."""

    def __init__(self, world: "World", launch: NodeLaunch, server: str, word: str) -> None:
        plan = json.loads(launch.plan)
        self.world = world
        self.attempt = launch.attempt
        self.server = server
        self.word = word
        self.inbox = Path(plan["attempts_dir"])
        self.seal = Seal(plan["seal"])
        self.nodes = [node["name"] for node in plan["nodes"]]
        self.rank = self.nodes.index(server)
        self.code: int | None = None
        self.ranks_run = False
        self.signalled = False
        self.by_engine = False
        self.stop_at_s = float("inf")
        self.ends_at_s = float("inf")
        self.begins_at_s = world.now_s + world.luck.choice([0.0, 0.5, 3.0])
        self.halted: int | None = None
        self.published = False

    @property
    def over(self) -> bool:
        return self.code is not None

    @property
    def folder(self) -> Path:
        return shared.node_folder(self.inbox, self.rank)

    def kill(self) -> None:
        """It ends without a word, with its ranks."""
        if not self.over:
            self.code, self.ranks_run = -9, False

    def step(self) -> None:
        """Do what is due."""
        if self.over or self.world.now_s < self.begins_at_s:
            return
        if not self.published:
            self._publish()
        elif self._heed():
            self._finish("exited", None, names.STOPPED_FIRST) if not self.ranks_run else None
        elif not self.ranks_run and all(
            shared.node_folder(self.inbox, rank).exists() for rank in range(len(self.nodes))
        ):
            self._run()
        if self.ranks_run:
            self._end_when_due()

    def _publish(self) -> None:
        if shared.claim(self.inbox, self.word) != self.word:
            self.code = 3
            return
        self.folder.mkdir()
        self._write(names.SUPERVISOR, {"gpus": []})
        self.published = True

    def _heed(self) -> bool:
        """Whether something wants the attempt to stop."""
        halt = shared.read_halt(self.inbox, self.seal)
        if halt is not None and halt.node != self.rank:
            self.halted = halt.node
        wanted = shared.read_stop(self.inbox, self.seal) is not None
        if not (wanted or self.halted is not None or self.by_engine):
            return False
        if self.ranks_run and self.stop_at_s == float("inf"):
            self.signalled = True
            self.stop_at_s = self.world.now_s + self.world.luck.uniform(0.0, 2.0 * GRACE_S)
        return True

    def terminate(self) -> None:
        """SIGTERM of the engine."""
        self.by_engine = True

    def _run(self) -> None:
        self.ranks_run = True
        self.world.ran(self)
        self._write(names.STARTED, {"at_s": self.world.now_s})
        self.ends_at_s = self.world.now_s + self.world.luck.choice([0.0, 2.0, 20.0, 1e9])

    def _end_when_due(self) -> None:
        now_s = self.world.now_s
        if now_s >= min(self.stop_at_s, self.ends_at_s):
            stopped = self.stop_at_s < self.ends_at_s
            code = self.world.luck.choice([75, 143] if stopped else [0, 0, 75, 1])
            if code not in (0, 75) and self.halted is None:
                detail = "a rank failed"
                shared.write_halt(
                    self.inbox, shared.Halt(self.rank, now_s, self.by_engine, detail, None, GRACE_S), self.seal
                )
            self._finish("exited", code, "")

    def _finish(self, outcome: str, code: int | None, detail: str) -> None:
        self.ranks_run = False
        record = names.end_record(
            outcome, self.world.now_s, exit_code=code, detail=detail, stop_signalled=self.signalled or code is None
        )
        if self.halted is not None:
            record["halted_by"] = self.halted
        self._write(names.EXIT, record)
        self.code = 0

    def _write(self, name: str, record: dict[str, Any]) -> None:
        write_json(self.folder / name, self.seal.sealed(name, record))


@dataclass
class Job:
    """A submission in the engine."""

    id: str
    launch: NodeLaunch
    state: EngineJobState = EngineJobState.PENDING
    programs: dict[str, Program] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)
    end: EngineEnd | None = None
    ending: EngineEnd | None = None
    failed: tuple[str, ...] = ()
    kill_at_s: float = float("inf")


class Engine:
    """The engine with its servers."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.nodes = dict.fromkeys(NODES, NodeState.UP)
        self.jobs: dict[str, Job] = {}
        self.programs: list[Program] = []
        self._numbers = itertools.count(1)

    def submit(self, launch: NodeLaunch) -> str:
        job = Job(str(next(self._numbers)), launch)
        self.jobs[job.id] = job
        return job.id

    def cancel(self, engine_id: str, end: EngineEnd = EngineEnd.CANCELLED) -> None:
        job = self.jobs.get(engine_id)
        if job is None or job.state is EngineJobState.ENDED:
            return
        if job.state is EngineJobState.PENDING:
            job.state, job.end = EngineJobState.ENDED, end
        elif job.ending is None:
            job.state, job.ending = EngineJobState.ENDING, end
            job.kill_at_s = self.world.now_s + 10.0
            for server, program in job.programs.items():
                if server not in job.unseen:
                    program.terminate()

    def lose(self, server: str, *, alive: bool) -> None:
        """A server fails; its programs die, or live on unseen."""
        self.nodes[server] = NodeState.DOWN
        for job in self.jobs.values():
            if server in job.programs and job.state in (EngineJobState.RUNNING, EngineJobState.ENDING):
                if not alive:
                    job.programs[server].kill()
                job.unseen.add(server)
                job.failed = (*job.failed, server)
                self.cancel(job.id, EngineEnd.NODE_FAILED)
                job.ending = EngineEnd.NODE_FAILED

    def forget(self, *, running: bool) -> None:
        """The engine restarts without its memory."""
        for engine_id, job in list(self.jobs.items()):
            if running or job.state is EngineJobState.ENDED:
                del self.jobs[engine_id]

    def held(self, server: str) -> int:
        """GPUs of a server that are not free."""
        return sum(
            share.gpus
            for job in self.jobs.values()
            if job.state in (EngineJobState.RUNNING, EngineJobState.ENDING)
            for share in job.launch.shares
            if share.server == server
        )

    def held_anywhere(self) -> int:
        """GPUs of all servers that are not free."""
        return sum(self.held(server) for server in NODES)

    def step(self) -> None:
        """Start what fits, let programs go on, and end what is over."""
        for job in self.jobs.values():
            shares = job.launch.shares
            if job.state is EngineJobState.PENDING and all(
                self.nodes[share.server] is NodeState.UP and self.held(share.server) + share.gpus <= GPUS
                for share in shares
            ):
                job.state = EngineJobState.RUNNING
                word = f"launch {job.id}"
                job.programs = {share.server: Program(self.world, job.launch, share.server, word) for share in shares}
                self.programs += job.programs.values()
        for program in self.programs:
            program.step()
        for job in self.jobs.values():
            self._end(job)

    def _end(self, job: Job) -> None:
        if job.state not in (EngineJobState.RUNNING, EngineJobState.ENDING):
            return
        seen = [program for server, program in job.programs.items() if server not in job.unseen]
        if self.world.now_s >= job.kill_at_s:
            for program in seen:
                program.kill()
        if any(program.code not in (None, 0, 3) for program in seen):
            for program in seen:
                program.terminate()
        if all(program.over for program in seen):
            job.state, job.end = EngineJobState.ENDED, job.ending or EngineEnd.COMPLETED


class SimulatedDriver:
    """One service's connection to the engine. Calls fail as the world decides."""

    name = "simulated engine"
    abilities = Abilities(exact_gpus=False)
    kill_wait_s = 10.0

    def __init__(self, world: "World") -> None:
        self._world = world

    def submit(self, launch: NodeLaunch) -> str:
        return self._call("submit", lambda: self._world.engine.submit(launch))

    def cancel(self, ids: Sequence[str]) -> None:
        self._call("cancel", lambda: [self._world.engine.cancel(engine_id) for engine_id in ids])

    def jobs(self) -> Sequence[EngineJob]:
        return self._call("jobs", self._jobs)

    def nodes(self) -> Sequence[EngineNode]:
        states = self._world.engine.nodes.items()
        return self._call("nodes", lambda: [EngineNode(Server(name, GPUS), state, name) for name, state in states])

    def close(self) -> None:
        pass

    def _jobs(self) -> list[EngineJob]:
        return [
            EngineJob(
                job.id,
                job.launch.attempt,
                job.state,
                tuple(share.server for share in job.launch.shares),
                {share.server: tuple(range(share.gpus)) for share in job.launch.shares},
                job.end,
                "",
                job.failed,
            )
            for job in self._world.engine.jobs.values()
        ]

    def _call(self, name: str, effect: Callable[[], Any]) -> Any:
        world = self._world
        kind = world.weather()
        if kind == "dies before":
            raise Crash
        if kind == "refused" and name == "submit":
            raise EngineRefused("no")
        if kind == "late" and name in ("submit", "cancel"):
            world.late.append(effect)
        if kind in ("times out", "late"):
            raise EngineUnavailable(name)
        answer = effect()
        if kind == "twice" and name == "submit":
            effect()
        if kind == "dies after":
            raise Crash
        if kind == "answer lost":
            raise EngineUnavailable(name)
        return answer


class StepWorkers:
    """Workers whose tasks run when the world says so."""

    def __init__(self, world: "World", owner: "Service") -> None:
        self._world = world
        self._tasks: dict[str, tuple[Callable[[], float | None], float]] = {}
        owner.pools.append(self)

    def start(self, key: str, task: Callable[[], float | None]) -> None:
        self._tasks[key] = (task, self._world.now_s)

    def wake(self, key: str) -> None:
        if key in self._tasks:
            self._tasks[key] = (self._tasks[key][0], self._world.now_s)

    def forget(self, key: str) -> None:
        self._tasks.pop(key, None)

    def close(self) -> None:
        self._tasks.clear()

    def run_due(self) -> None:
        """Run what is due, in any order; some of it waits for another step."""
        due = sorted(key for key, (_, at_s) in self._tasks.items() if at_s <= self._world.now_s)
        self._world.luck.shuffle(due)
        for key in due:
            if key not in self._tasks or self._world.luck.random() < self._world.delays:
                continue
            task, _ = self._tasks[key]
            self._tasks[key] = (task, float("inf"))
            pause_s = task()
            current = self._tasks.get(key)
            if current is not None and current[0] is task and pause_s is not None:
                self._tasks[key] = (task, min(current[1], self._world.now_s + pause_s))


class Clock:
    """The world's time."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def now_s(self) -> float:
        return self._world.now_s


class Service:
    """One service with an executor; ``token``: of its lead."""

    def __init__(self, world: "World", token: int) -> None:
        self.pools: list[StepWorkers] = []
        self.token = token
        self.alive = True
        module.Workers = lambda *_: StepWorkers(world, self)  # type: ignore[assignment,misc]
        self.executor = ClusterExecutor(
            SimulatedDriver(world),
            world.folder,
            CLUSTER,
            clock=Clock(world),
            poll_s=1.0,
            lease_s=LEASE_S,
            term_grace_s=GRACE_S,
            elapsed_s=lambda: world.now_s,
        )

    def step(self) -> None:
        """Let its threads go on."""
        try:
            for pool in self.pools:
                pool.run_due()
        except Crash:
            self.alive = False


class World:
    """All of it. ``faults``: the chance that a call fails."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.luck = random.Random(seed)
        self.now_s = 1_000_000.0
        self.faults = 0.15
        self.delays = 0.2
        self.deaths = 0.01
        self.late: list[Callable[[], object]] = []
        self.ran_on: Counter[tuple[str, str]] = Counter()
        self.words: dict[str, str] = {}
        self.engine = Engine(self)
        self.services: list[Service] = []

    def weather(self) -> str:
        """What becomes of a call."""
        luck = self.luck.random()
        if luck < self.deaths:
            return self.luck.choice(["dies before", "dies after"])
        if luck < self.deaths + self.faults:
            return self.luck.choice(["times out", "answer lost", "late", "twice", "refused"])
        return "works"

    def ran(self, program: Program) -> None:
        """The ranks of an attempt start on a server: for the first time, and for one launch alone."""
        self.ran_on[(program.attempt, program.server)] += 1
        assert self.ran_on[(program.attempt, program.server)] == 1, f"{program.attempt} runs again on {program.server}"
        assert self.words.setdefault(program.attempt, program.word) == program.word, (
            f"two launches of {program.attempt} run"
        )

    def running(self, attempt: str) -> list[Program]:
        """The programs of an attempt whose ranks run now."""
        return [program for program in self.engine.programs if program.attempt == attempt and program.ranks_run]

    def step(self) -> None:
        """Half a second."""
        self.now_s += STEP_S
        if self.late and self.luck.random() < 0.1:
            self.late.pop(self.luck.randrange(len(self.late)))()
        self.engine.step()
        for service in self.services:
            if service.alive:
                service.step()

    def trouble(self) -> None:
        """Something may happen to the engine or a server."""
        luck, engine = self.luck, self.engine
        happenings: list[tuple[float, Callable[[], object]]] = [
            (0.01, partial(engine.forget, running=False)),
            (0.002, partial(engine.forget, running=True)),
            (0.01, lambda: engine.lose(luck.choice(NODES), alive=luck.random() < 0.5)),
            (0.05, lambda: engine.nodes.update({luck.choice(NODES): NodeState.UP})),
            (0.01, lambda: engine.jobs and engine.cancel(luck.choice(sorted(engine.jobs)))),
        ]
        for chance, happens in happenings:
            if luck.random() < chance:
                happens()

    def calm(self) -> None:
        """No more trouble; what is late comes now."""
        self.faults = self.deaths = self.delays = 0.0
        self.engine.nodes = dict.fromkeys(NODES, NodeState.UP)
        for effect in self.late:
            effect()
        self.late.clear()
