"""A swarm of seeded faults: first everything goes wrong while the promises must hold, then nothing does and all must finish.

``python -m tests.simulation.swarm --seeds 1000`` runs many; a seed that fails prints the command that repeats it.
"""

import argparse
import random
import sys
import traceback
from collections.abc import Sequence
from itertools import count

from policies.lifecycle import JobState
from policies.model.ids import JobId, ServerIndex, attempt_id
from service.engine.crash_points import on_reached
from service.engine.engine import CycleOutcome
from service.engine.events import Report, ReportKind
from tests.crash.dying import Crash, Death, Reaper
from tests.scenarios.chance import Flaky
from tests.simulation.checked import EPSILON_S, Checked, assert_all_over
from tests.simulation.trouble import HOUR_S, JumpyClock, StormyWire
from tests.simulation.weather import LOSSY, Weather, draw_job, weather

FAULTS_UNTIL_S = 600
STEP_S = 5
JOBS = 25


class Swarm(Checked):
    """Ten minutes of whatever the seed draws."""

    def __init__(self, seed: int, name: str | None = None) -> None:
        self.dice = random.Random(seed)
        self.weather: Weather = weather(self.dice, name)
        self.flaky = Flaky(seed, failing=0.0, stale=0.05 if "stale" in self.weather.kinds else 0.0)
        self.submitted: dict[str, float] = {}
        super().__init__(
            "",
            self.weather.make(),
            costs=self.weather.costs,
            settings=self.weather.settings,
            store=self.flaky,
            names=self.weather.servers,
            network=self.weather.network,
        )
        self.memory = self.flaky.inner
        self.wire: StormyWire = StormyWire(self.executor, self.clock, self.dice)
        self.service_clock = self.jumpy = JumpyClock(self.clock)
        self.reaper = Reaper()
        self.deaths = 0
        self.engine = self._engine()
        for at_s in sorted(self.dice.randrange(30) * 10.0 for _ in range(JOBS)):
            self.submit(at_s)

    def cycle(self) -> CycleOutcome:
        """One pass; a service that dies in it is started again."""
        on_reached(self.reaper)
        try:
            while True:
                try:
                    outcome = super().cycle()
                    break
                except Crash:
                    self._rise()
        finally:
            on_reached(None)
        if self._wake_at_s is not None and not outcome.failed:
            self._wake_at_s -= self.jumpy.offset_s
        return outcome

    def _rise(self) -> None:
        """Start the service again, however often it dies of that."""
        while True:
            self.deaths += 1
            try:
                return _come_back(self)
            except Crash:
                continue

    def submit(self, at_s: float) -> None:
        """Another job of the weather's kind."""
        name = f"j{len(self.ids)}"
        earlier = [other for other, other_at_s in self.submitted.items() if other_at_s <= at_s]
        self.submitted[name] = at_s
        self.job(name, at_s=at_s, **draw_job(self.dice, self.weather, earlier))


def swarm(seed: int, name: str | None = None) -> Swarm:
    """Ten minutes of faults, then peace until the end, where everything is accounted for."""
    story = Swarm(seed, name)
    story.flaky.failing = 0.02 if "store" in story.weather.kinds else 0.0
    placed: dict[JobId, tuple[int, ...]] = {}
    for at_s in range(5, FAULTS_UNTIL_S, STEP_S):
        story.until(float(at_s))
        _nobody_starts_on_a_server_that_is_out(story, placed)
        _fault(story)
        if story.weather.kinds.isdisjoint(LOSSY):
            story.cycle()
    _peace(story)
    story.to_the_end()
    _check_the_end(story)
    return story


def _peace(story: Swarm) -> None:
    story.flaky.failing = story.flaky.stale = 0.0
    story.until(story.clock.now_s())  # whoever was submitted at this very instant is to be released too
    for server in range(len(story.engine.world.servers)):
        story.executor.repair_server(ServerIndex(server))
        story.resume(server)
    for server in sorted(story.wire.away):
        story.wire.come_back(server)
    for name in story.ids:
        story.release(name)
    story.wire.cut = False
    story.wire.tardy = 0.0
    story.reaper = Reaper()
    story.cycle()
    story.engine.reconcile()


def _fault(story: Swarm) -> None:
    """One kind of trouble of those that the weather has, or none."""
    dice, kinds = story.dice, sorted(story.weather.kinds)
    if not kinds or dice.random() < 0.2:
        return
    kind = dice.choice(kinds)
    server = ServerIndex(dice.randrange(len(story.engine.world.servers)))
    known = sorted(story.records)
    running = [name for name in known if story.state(name) is JobState.RUNNING]
    if kind == "server":
        (
            story.executor.fail_server
            if dice.random() < 0.5 or server in story.wire.away
            else story.executor.repair_server
        )(server)
    elif kind == "drain":
        (story.drain if dice.random() < 0.5 else story.resume)(server)
    elif kind == "cut":
        story.wire.cut = dice.random() < 0.5
        if not story.wire.cut:
            story.engine.reconcile()
    elif kind == "repeat" and story.wire.sent:
        command = dice.choice(story.wire.sent)
        if story.wire.hears(command.attempt):
            story.executor.send([command])
    elif kind == "restart":
        _come_back(story)
    elif kind == "server_added" and not story.weather.communication:
        # The simulated machines do not know its NIC, so only where nobody asks for it; and a few are enough.
        if len(story.engine.world.servers) < len(story.cluster.servers) + 2:
            story.add_server(4, story.weather.servers[0].gpu_type)
    elif kind == "away":
        (story.wire.come_back if server in story.wire.away else story.wire.leave)(server)
    elif kind == "tardy":
        story.wire.tardy = dice.choice((0.0, 5.0, 60.0, 1e5))
    elif kind == "clock":
        story.jumpy.offset_s = dice.choice((0.0, HOUR_S, 2 * HOUR_S))
    elif kind == "death":
        story.reaper = Reaper([Death(None, dice.randrange(1, 12)), Death(None, dice.randrange(1, 4))])
    elif kind == "late_jobs":
        story.submit(story.clock.now_s())
    elif kind == "crash" and running:
        story.crash(dice.choice(running))
    elif kind == "echo" and running:
        _say_again(story, dice.choice(running))
    elif known:
        _ask(story, kind, dice.choice(known))


def _ask(story: Swarm, kind: str, name: str) -> None:
    """What users do."""
    dice = story.dice
    if kind == "hold":
        if dice.random() < 0.5:
            story.hold(name, preempt=dice.random() < 0.5)
        else:
            story.release(name)
    elif kind == "cancel" and dice.random() < 0.3:
        story.cancel(name)
    elif kind == "priority":
        story.prioritise(name, dice.choice((0, 0, 1, 2)))


def _say_again(story: Swarm, name: str) -> None:
    """Old reports once more: the start of this attempt, and the start and an end of the one before."""
    job, number, now_s = story.ids[name], story.records[name].attempts, story.clock.now_s()
    story.says(Report(ReportKind.STARTED, now_s, attempt_id(job, number)))
    if number > 1:
        before = attempt_id(job, number - 1)
        story.says(Report(ReportKind.STARTED, now_s, before))
        story.says(Report(ReportKind.EXITED, now_s, before, exit_code=story.dice.choice((0, 1, 75))))


def _come_back(story: Swarm) -> None:
    """The network is whole again, and the service starts anew; until it can load, it cannot."""
    story.wire.cut = False
    failing, story.flaky.failing = story.flaky.failing, 0.0
    story.restart()
    story.flaky.failing = failing


def _nobody_starts_on_a_server_that_is_out(story: Swarm, placed: dict[JobId, tuple[int, ...]]) -> None:
    """``placed``: servers of each job at the last look."""
    world = story.engine.world
    out = {index for index, record in enumerate(world.servers) if not record.usable}
    for event in story.log.events[story.log.seen :]:
        if event.target is JobState.STARTING and event.at_s == world.now_s:
            job = world.jobs.get(event.job)
            if job is not None and job.placement is not None and job.state is JobState.STARTING:
                assert not out.intersection(job.placement.servers)


def _check_the_end(story: Swarm) -> None:
    """All have ended, as somebody wanted them to; nothing is left on any GPU; and no second is unaccounted for."""
    assert_all_over(story)
    states = {name: story.state(name) for name in story.ids}
    assert JobState.FAILED not in states.values()
    if "cancel" not in story.weather.kinds:
        assert set(states.values()) == {JobState.SUCCEEDED}
    for name, job in story.ids.items():
        record, truth = story.record(name), story.truths[job]
        if "clock" in story.weather.kinds:
            continue  # what was held is counted on the service's clock
        held_s = record.held_gpu_s / record.spec.gpus
        assert held_s >= truth.productive_s - EPSILON_S
        if story.weather.kinds.isdisjoint(LOSSY):
            costs = story.costs
            overhead_s = record.attempts * (costs.launch_latency_s + costs.restart_s)
            overhead_s += record.attempts * (costs.stop_latency_s + costs.checkpoint_s)
            assert held_s - truth.productive_s <= truth.lost_s + overhead_s + EPSILON_S, (
                f"{name} wastes more than it may"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds that are asked for; 1 if one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.swarm", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of them")
    parser.add_argument("--policy", help="one policy instead of any")
    asked = parser.parse_args(arguments)
    failed = 0
    for seed in (number for number, _ in zip(count(asked.first), range(asked.seeds), strict=False)):
        try:
            swarm(seed, asked.policy)
        except Exception:
            failed += 1
            traceback.print_exc()
            print(how_to_repeat(seed, asked.policy), file=sys.stderr)
    print(f"{asked.seeds} seeds, {failed} failed")
    return 1 if failed else 0


def how_to_repeat(seed: int, name: str | None = None) -> str:
    """The command for one seed, and what it drew."""
    chosen = f" --policy {name}" if name is not None else ""
    drawn = weather(random.Random(seed), name)
    return f"repeat with: python -m tests.simulation.swarm --from {seed} --seeds 1{chosen}\n{drawn}"


if __name__ == "__main__":
    sys.exit(main())
