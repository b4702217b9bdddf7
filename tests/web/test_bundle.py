"""The bundle that is shipped is the one that the sources make, and small."""

import filecmp
import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

from tests.web.conftest import lacking
from tests.web.run import WEB

STATIC = WEB / "static"
CORE_BYTES_MAX = 25_000
ALL_BYTES_MAX = 300_000


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _compressed(paths: list[Path]) -> int:
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in paths)


def test_the_sources_make_the_shipped_files(tmp_path: Path) -> None:
    if shutil.which("npm") is None or not (WEB / "node_modules").exists():
        lacking("node_modules")
    for command in (["npx", "tsc", "--noEmit"], ["node", "build.mjs", str(tmp_path / "static")]):
        done = subprocess.run(command, cwd=WEB, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    made = tmp_path / "static"
    assert _files(made) == _files(STATIC), "run `make web`"
    _, different, unreadable = filecmp.cmpfiles(made, STATIC, _files(made), shallow=False)
    assert (different, unreadable) == ([], []), "run `make web`"


def test_what_is_shipped_is_small() -> None:
    shipped = [path for path in STATIC.rglob("*") if path.suffix in (".js", ".css")]
    core = STATIC / "core.js"
    at_once = re.findall(r'(?:from|import) ?"\./(chunks/[^"]+)"', core.read_text(encoding="utf-8"))
    assert _compressed([core, *(STATIC / name for name in at_once)]) < CORE_BYTES_MAX
    assert _compressed(shipped) < ALL_BYTES_MAX


def test_versions_are_exact_and_name_no_registry() -> None:
    about = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    for version in (about["dependencies"] | about["devDependencies"]).values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))
    for name, entry in lock["packages"].items():
        assert "resolved" not in entry, name
        assert name == "" or entry["integrity"].startswith("sha512-"), name


def test_licences_name_every_bundled_library() -> None:
    text = (STATIC / "LICENSES.txt").read_text(encoding="utf-8")
    about = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    named = set(re.findall(r"^(\S+ \d+\.\d+\.\d+) \(", text, re.MULTILINE))
    assert {f"{name} {version}" for name, version in about["dependencies"].items()} <= named


def test_nothing_loads_from_elsewhere_or_parses_text_as_a_page() -> None:
    for path in (WEB / "src").rglob("*.ts"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|eval\(|new Function",
            text.replace('morphStyle: "innerHTML"', ""),
        ), path
        assert not re.search(r"localStorage|sessionStorage|indexedDB", text), path
        assert not re.search(r"https?://", text), path
