"""Real PyTorch under real torchrun: a warned gang checkpoints, and goes on elsewhere as if it had not been stopped."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.model.job import Launch as LaunchMode
from service.engine.events import ReportKind, Warned
from tests.cluster_house import ClusterHouse
from tests.engines.run import REQUIRED
from tests.engines.slurm_cluster import SlurmCluster
from tests.engines.test_slurm_conformance import slurm_house
from tests.engines.torch_program import PROGRAM, PYTHON, losses, missing, torchrun
from tests.local_executor import House, house, launch

__all__ = ["house"]

ITERATIONS = 40


@pytest.fixture(scope="module", autouse=True)
def torch() -> None:
    """PyTorch, or the tests are skipped (under ``make test-engines`` they fail)."""
    lacking = missing()
    if lacking and not os.environ.get(REQUIRED):
        pytest.skip(lacking)
    assert not lacking, lacking


class TestOnOneMachine:
    def test_preempted_under_torchrun_and_resumed_under_two_launchers(self, house: House) -> None:
        assert house.run(torchrun("--iterations", str(ITERATIONS)), gpus=(2,)).exit_code == 0, house.output()
        undisturbed = losses(house.output())
        assert sorted(undisturbed) == list(range(1, ITERATIONS + 1))

        paced = torchrun("--iterations", str(ITERATIONS), "--step-seconds-min", "0.1")
        house.executor.send([launch(paced, job=2, gpus=(2,))])
        house.wait_output("iteration 5 loss", job=2)
        house.stop("2.1", warning="SIGUSR1", grace_s=60.0)
        end = house.wait_end("2.1")
        before = losses(house.output(2))
        assert end.warning is Warned.DELIVERED, house.output(2)
        # The ranks exit with 75, and torchrun with a code of its own.
        assert (end.kind, end.exit_code, end.stop_signalled) == (ReportKind.EXITED, 1, True), house.output(2)
        assert end.checkpoint_iteration == end.iteration == max(before) < ITERATIONS

        house.executor.send([launch(torchrun("--iterations", str(ITERATIONS)), job=2, number=2, gpus=(1, 1))])
        assert house.wait_end("2.2").exit_code == 0, house.output(2)
        after = losses(house.output(2))
        assert sorted(after) == list(range(max(before) + 1, ITERATIONS + 1)), "no iteration is repeated or left out"
        assert before | after == pytest.approx(undisturbed, rel=1e-4)
        assert undisturbed[ITERATIONS] < 0.5 * undisturbed[1], "it learns"

    def test_each_rank_started_by_sooner_keeps_its_exit_code(self, house: House) -> None:
        command = (str(PYTHON), str(PROGRAM), "--iterations", "100000", "--step-seconds-min", "0.05")
        house.executor.send([launch(command, gpus=(1, 1), mode=LaunchMode.GPU)])
        house.wait_report(ReportKind.PROGRESS)
        house.stop(warning="SIGUSR1", grace_s=60.0)
        end = house.wait_end()
        assert (end.exit_code, end.warning) == (75, Warned.DELIVERED), house.output()
        assert end.checkpoint_iteration == end.iteration


@pytest.mark.slow
class TestOverSlurm:
    @pytest.fixture
    def house(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[ClusterHouse]:
        house = slurm_house(slurm_cluster, tmp_path / "shared")
        yield house
        house.close()

    def test_preempted_on_two_nodes_and_resumed_on_two_others(self, house: ClusterHouse) -> None:
        assert house.run(torchrun("--iterations", str(ITERATIONS)), gpus=(1, 1)).exit_code == 0, house.output()
        undisturbed = losses(house.output())

        paced = torchrun("--iterations", str(ITERATIONS), "--step-seconds-min", "0.1")
        house.executor.send([launch(paced, job=2, gpus=(1, 1))])
        house.until(lambda: "iteration 5 loss" in house.output(2), "the fifth iteration")
        house.stop("2.1", warning="SIGUSR1", grace_s=60.0)
        end = house.wait_end("2.1")
        before = losses(house.output(2))
        assert (end.warning, end.stop_signalled) == (Warned.DELIVERED, True), house.output(2)
        assert end.checkpoint_iteration == end.iteration == max(before) < ITERATIONS
        house.executor.acknowledge([end])

        moved = launch(torchrun("--iterations", str(ITERATIONS)), job=2, number=2, gpus=(0, 0, 1, 1))
        house.executor.send([moved])
        assert house.wait_end("2.2").exit_code == 0, house.output(2)
        after = losses(house.output(2))
        assert sorted(after) == list(range(max(before) + 1, ITERATIONS + 1)), "no iteration is repeated or left out"
        assert before | after == pytest.approx(undisturbed, rel=1e-4)
