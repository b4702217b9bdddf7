"""Explanations as sentences, by hand."""

import pytest

from policies.model.reasons import SENTENCES, Explanation, Reason


@pytest.mark.parametrize(
    ("explanation", "head"),
    [
        (Explanation(Reason.RESOURCES, 1, 1, 1, jobs_ahead=1), "Needs 1 GPU; 1 free on 1 server; 1 job precedes it. "),
        (
            Explanation(Reason.FRAGMENTED, 8, 9, 5, servers_wanted=2, jobs_ahead=3),
            "Needs 8 GPUs on <=2 servers; 9 free on 5 servers; 3 jobs precede it. ",
        ),
        (
            Explanation(Reason.PRIORITY, 4, 0, 0, servers_wanted=1, jobs_ahead=0),
            "Needs 4 GPUs on <=1 server; 0 free on 0 servers; 0 jobs precede it. ",
        ),
        (Explanation(Reason.RESOURCES, 4, 3, 1, gpu_type="A100"), "Needs 4 GPUs; 3 A100 free on 1 server. "),
        (Explanation(Reason.STARTED, 2, 0, 0), "Holds 2 GPUs. "),
        (Explanation(Reason.HELD, 2, 0, 0, stopping=True), "Holds 2 GPUs until its program has stopped. "),
    ],
)
def test_a_sentence_begins_with_the_numbers(explanation: Explanation, head: str) -> None:
    assert explanation.sentence == head + SENTENCES[explanation.reason]


def test_a_detail_replaces_the_sentence_of_the_reason() -> None:
    assert Explanation(Reason.RESOURCES, 2, 1, 1, detail="Ask Ada.").sentence.endswith("1 free on 1 server. Ask Ada.")


def test_every_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(Reason)
