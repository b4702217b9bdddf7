"""Every command line that a page shows exists as it stands, whether or not the tests execute it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.generate import cli
from tests.docs.markdown import ROOT, pages

FLAGS = {
    command.words: {name for each in command.parameters if each.is_option for name in each.names}
    for command in cli.commands()
}
ANYWHERE = {"--help", "-h"}
AT_THE_TOP = {"--version", "--install-completion", "--show-completion"}


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _shown(page: Path) -> Iterator[list[str]]:
    """The words of each call of ``sooner`` in code blocks and in inline code."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```(?:bash|ini|yaml)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`(sooner [^`\n]+)`", text)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()] + inline
    for line in lines:
        found = re.search(r"(?:^|[\s/=])sooner\s+(.+)", line)
        if found is not None and "'sooner[" not in line:
            yield ["sooner", *shlex.split(found[1], comments=True)]


def problem(words: list[str]) -> str | None:
    """What is wrong with a call: an unknown command or flag, or a job without a name. Words after ``--`` are the job's."""
    if "--" in words:
        words = words[: words.index("--")]
        if words[1:3] == ["job", "submit"] and "--name" not in words:
            return "sooner job submit needs --name with a command"
    flags = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[A-Za-z]", word)}
    plain = [word for word in words if not word.startswith("-")]
    for length in (3, 2):
        command = " ".join(plain[:length])
        if command in FLAGS:
            unknown = flags - FLAGS[command] - ANYWHERE
            return f"{command} has no {', '.join(sorted(unknown))}" if unknown else None
    group = " ".join(plain)
    if len(plain) == 1 and flags <= ANYWHERE | AT_THE_TOP:
        return None
    if any(command.startswith(f"{group} ") for command in FLAGS) and not flags - ANYWHERE:
        return None
    return f"no such command: {' '.join(words)}"


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_commands_and_flags_exist(page: Path) -> None:
    for words in _shown(page):
        if "|" in words[1:2] or words[1:] == ["NOUN", "VERB"]:
            continue
        assert problem(words) is None, f"{_name(page)}: {problem(words)}"


def test_the_check_sees_what_is_wrong() -> None:
    submit = ["sooner", "job", "submit", "--gpus", "2"]
    assert problem([*submit, "--name", "a", "--", "python", "--anything"]) is None
    assert problem([*submit, "--", "python"]) == "sooner job submit needs --name with a command"
    assert problem(["sooner", "job", "submit", "--nodes", "2"]) == "sooner job submit has no --nodes"
    assert problem(["sooner", "jobs", "list"]) == "no such command: sooner jobs list"
    assert sum(1 for page in pages() for _ in _shown(page)) > 60


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in pages():
        text = page.read_text(encoding="utf-8")
        blocks = "\n".join(re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        called = set(re.findall(r"^make ([a-z-]+)", blocks, re.MULTILINE)) | set(re.findall(r"`make ([a-z-]+)`", text))
        assert called <= targets, _name(page)


def test_the_gate_runs_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^make demo ", readme, re.MULTILINE)
    assert re.search(r"^make test ", readme, re.MULTILINE)
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
