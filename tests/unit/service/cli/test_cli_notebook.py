"""``sooner notebook``: what is copied, what is kept, and what JupyterLab is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.cli.notebook import copy_notebooks
from service.runtime.packaged import packaged_folder

OURS = sorted(path.name for path in packaged_folder("notebooks").glob("*.ipynb"))


def sooner(*words: str, folder: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own: it becomes JupyterLab, which a test runner must not."""
    root = Path(__file__).parents[4]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [path, root] if path else [root]))}
    line = [sys.executable, "-m", "service.cli.main", "notebook", *words]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_what_a_person_changed_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "mine"
    assert copy_notebooks(folder) == (OURS, [])
    (folder / OURS[1]).write_text("changed")
    (folder / OURS[2]).unlink()
    assert copy_notebooks(folder) == ([OURS[2]], [OURS[1]])
    assert (folder / OURS[1]).read_text() == "changed"
    assert (folder / OURS[2]).read_bytes() == (packaged_folder("notebooks") / OURS[2]).read_bytes()


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / OURS[0]).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        copy_notebooks(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_copy_only_needs_no_jupyterlab(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    done = CliRunner().invoke(app, ["notebook", "--copy-only", "--folder", str(folder)])
    assert done.exit_code == 0
    assert done.stdout == ""
    assert OURS[0] in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == OURS
    again = CliRunner().invoke(app, ["notebook", "--copy-only", "--folder", str(folder)])
    assert again.stderr == ""


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["notebook", "--copy-only", "--folder", str(tmp_path / "file" / "below")])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: --folder: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_it_becomes_jupyterlab_with_the_options_that_were_given(tmp_path: Path) -> None:
    """A stand-in that is found first tells how it was called; the exit code is its own."""
    package = tmp_path / "path" / "jupyterlab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    done = sooner("--port", "9001", "--no-browser", "--", "--allow-root", folder=tmp_path, path=package.parent)
    assert done.stdout.strip() == "['--port=9001', '--no-browser', '--allow-root', 'sooner-notebooks']"
    assert done.returncode == 7
    assert sorted(path.name for path in (tmp_path / "sooner-notebooks").iterdir()) == OURS


def test_without_jupyterlab_one_line_says_what_to_do_and_nothing_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # What Python looks up is what is installed: with None there an import fails, whatever the environment has.
    monkeypatch.setitem(sys.modules, "jupyterlab", None)  # type: ignore[arg-type]
    done = CliRunner().invoke(app, ["notebook"])
    assert done.exit_code == 1
    assert "pip install 'sooner[notebooks]'" in done.stderr
    assert "--copy-only" in done.stderr
    assert list(tmp_path.iterdir()) == []
