"""Values as people write them: commands split as a shell splits them, and nothing left out that only a shell can do."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.short_forms import array_of, gpu_types_of, topology_of, volume_of, words_of

WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=8), min_size=1)


@given(WORDS)
def test_quoted_words_come_back(words: list[str]) -> None:
    assert words_of(shlex.join(words)) == words


PIECES = st.lists(st.sampled_from(["a", " ", "'", "\\\n", "\\$", "\\`", '\\"', "\\\\", "\\a"]), max_size=4).map("".join)
"""What stands in double quotes without being acted on by a shell."""


@given(st.text(st.sampled_from(" ab'\"\\\n$`|&;<>()"), max_size=12) | PIECES.map('x"{}"'.format))
def test_what_is_accepted_means_the_same_to_a_shell(text: str) -> None:
    try:
        words = words_of(text)
    except ValueError:
        return
    told = subprocess.run(["sh", "-c", f"printf '%s\\0' {text.strip()}"], capture_output=True, text=True, check=True)
    assert told.stdout.split("\0")[:-1] == (words or [""])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python t.py --lr 0.1", ["python", "t.py", "--lr", "0.1"]),
        ("python t.py \\\n  --lr 0.1\n", ["python", "t.py", "--lr", "0.1"]),
        ("sh -c 'cd x && echo $HOME > y'", ["sh", "-c", "cd x && echo $HOME > y"]),
        (r"echo \$HOME", ["echo", "$HOME"]),
        (r'echo "\$5 \` \a"', ["echo", r"$5 ` \a"]),
        ('python -c "a;\nb"', ["python", "-c", "a;\nb"]),
        ("", []),
    ],
)
def test_the_words_of_a_command(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@pytest.mark.parametrize("text", ["a && b", "a | b", "a > b", "a $B", 'a "$B"', "a `b`", "a (b)", "a; b", 'a "`b`"'])
def test_a_command_that_needs_a_shell_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="needs a shell, and none is used"):
        words_of(text)


def test_a_command_of_several_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="a second line needs a shell"):
        words_of("cd x\npython t.py\n")


def test_the_other_forms() -> None:
    assert array_of("0-2,7%2") == {"indices": [0, 1, 2, 7], "max_running": 2}
    assert gpu_types_of("H100, A100") == {"gpu_types": ["H100", "A100"]} and gpu_types_of("V100") == {
        "gpu_type": "V100"
    }
    assert topology_of("rack?") == {"level": "rack", "required": False}
    assert volume_of("/a") == {"source": "/a", "target": "/a", "read_only": False}
    assert volume_of("/a:/b:ro") == {"source": "/a", "target": "/b", "read_only": True}
    for reader, text in ((array_of, "3-0"), (array_of, "1%x"), (volume_of, ":/b"), (volume_of, "/a:/b:x")):
        with pytest.raises(ValueError, match=text):
            reader(text)
