"""The parts of an iteration by hand, from constants that are known by construction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.profile.advice import Advice, advise, seconds
from service.profile.measure import Measured
from service.profile.stalls import Parts, Place, Run, cost, parts


def runs(
    gpu: float | None, server: float | None, servers: float | None, *, waits: float | None = None, gpus: int = 4
) -> dict[Place, Run]:
    """Runs of these seconds per iteration, of which ``waits`` are input."""
    sizes = {Place.GPU: (gpu, 1, 1), Place.SERVER: (server, gpus, 1), Place.SERVERS: (servers, gpus, 2)}
    return {
        place: Run(place, count, on, Measured(value, value, value, 20.0, 20.0, waits))
        for place, (value, count, on) in sizes.items()
        if value is not None
    }


def codes(found: list[Advice]) -> list[str]:
    return [each.code for each in found]


def test_the_parts_are_the_constants_that_made_the_times() -> None:
    """0.5 s compute, 0.125 s input, 0.25 s interconnect, 1 s network: exact in binary."""
    made = runs(0.625, 0.875, 1.875, waits=0.125)
    assert parts(made, Place.GPU, split_batch=False) == Parts(0.5, 0.125, 0.0, 0.0)
    assert parts(made, Place.SERVER, split_batch=False) == Parts(0.5, 0.125, 0.25, 0.0)
    assert parts(made, Place.SERVERS, split_batch=False) == Parts(0.5, 0.125, 0.25, 1.0)


def test_a_batch_of_fixed_size_is_computed_by_all_gpus() -> None:
    """2 s of computing on one GPU are 0.5 s on four."""
    made = runs(2.0, 0.75, 1.75)
    assert parts(made, Place.SERVERS, split_batch=True) == Parts(0.5, None, 0.25, 1.0)
    assert cost(made, Place.SERVER, split_batch=True).speed == pytest.approx(2.0 / 0.75)
    assert cost(made, Place.GPU, split_batch=True).gpu_hours == pytest.approx(2000 / 3600)
    assert cost(made, Place.SERVER, split_batch=True).gpu_hours == pytest.approx(3000 / 3600)


def test_what_is_not_measured_is_not_separated() -> None:
    assert parts(runs(None, 0.75, 1.75), Place.SERVERS, split_batch=False) == Parts(0.75, None, None, 1.0)
    assert parts(runs(0.5, None, 1.75), Place.SERVERS, split_batch=False) == Parts(1.75, None, None, None)
    assert parts(runs(0.5, 0.75, None), Place.SERVER, split_batch=False) == Parts(0.5, None, 0.25, 0.0)


@given(st.tuples(*[st.floats(0.001, 10.0)] * 3), st.one_of(st.none(), st.floats(0.0, 0.001)), st.booleans())
def test_the_parts_add_up_and_none_is_negative(
    times: tuple[float, float, float], waits: float | None, split: bool
) -> None:
    made = runs(*times, waits=waits)
    for place, run in made.items():
        found = parts(made, place, split_batch=split)
        values = [found.compute_s, found.input_s or 0.0, found.interconnect_s or 0.0, found.network_s or 0.0]
        assert min(values) >= 0.0
        assert sum(values) == pytest.approx(run.measured.seconds)


def test_a_slow_network_and_slow_input_are_named_with_their_numbers() -> None:
    found = advise(runs(1.0, 1.25, 2.0, waits=0.5), split_batch=False)
    assert codes(found) == ["one_server", "cheapest", "input"]
    assert found[0].text == (
        "On 2 servers an iteration takes 1.60 times as long as on one (1.25 s and 2 s): "
        "ask for one server with --topology server."
    )
    assert "4 GPUs on one server do 3.2 times the work of 1 GPU, 80% of what 4 GPUs could." in found[1].text
    assert "Cheapest per iteration is 1 GPU: 0.278 GPU-hours for the work that costs 0.347 there." in found[1].text
    assert found[2].text.startswith("1 GPU: 50% of an iteration waits for input. More loader workers")
    assert found[2].text.endswith("from 1 s to 500 ms.")


def test_a_program_that_scales_needs_no_topology() -> None:
    found = advise(runs(1.0, 1.0, 1.01, waits=0.0), split_batch=False)
    assert codes(found) == ["any_placement", "scales"]
    assert "2 servers are about as fast as one (1.01 s and 1 s)" in found[0].text
    assert "do 4.0 times the work of 1 GPU for the same GPU-hours" in found[1].text


def test_a_program_that_gains_nothing_from_gpus_is_told_to_use_one() -> None:
    assert "one_gpu" in codes(advise(runs(1.0, 1.0, 1.0), split_batch=True))
    assert codes(advise(runs(1.0, 4.5, 9.0), split_batch=False)) == ["one_server", "one_gpu", "input_unknown"]


def test_doubts_about_the_measurement_are_said() -> None:
    assert "split_batch" in codes(advise(runs(1.0, 0.3, 0.3), split_batch=False))
    assert "split_batch" not in codes(advise(runs(1.0, 0.3, 0.3), split_batch=True))
    uneven = runs(1.0, None, None, waits=0.0)
    uneven[Place.GPU] = Run(Place.GPU, 1, 1, Measured(1.0, 0.8, 1.2, 20.0, 20.0, 0.0))
    assert codes(advise(uneven, split_batch=False)) == ["uneven"]
    assert "quartiles are 40% apart" in advise(uneven, split_batch=False)[0].text


@pytest.mark.parametrize(("value", "text"), [(0.0123456, "12.3 ms"), (0.5, "500 ms"), (1.0, "1 s"), (75.0, "75 s")])
def test_seconds_have_three_digits(value: float, text: str) -> None:
    assert seconds(value) == text
