"""Build the site with mkdocs, strictly and the same every time."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.site.sources import ROOT

SITE = ROOT / "service" / "_site"
"""Where the service and the wheel look for it."""

_LEFT_OUT = ("404.html", "sitemap.xml", "sitemap.xml.gz", "assets/javascripts/lunr", "assets/images/favicon.png")
"""Pages for a site at the root of a host, word stems of languages that no page is in, and an icon that we replace."""


class SiteError(Exception):
    """mkdocs is missing or refused the pages; the message is its output."""


def build(out: Path, root: Path = ROOT) -> None:
    """Replace the folder ``out`` by the site of the checkout ``root``. Raises SiteError, and leaves ``out`` as it is."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix="_site-") as scratch:
        new, old = Path(scratch) / "new", Path(scratch) / "old"
        _run_mkdocs(root, new)
        _leave_out(new)
        if out.exists():
            out.rename(old)
        new.rename(out)


def _run_mkdocs(root: Path, out: Path) -> None:
    if find_spec("mkdocs") is None or find_spec("material") is None:
        raise SiteError("mkdocs and mkdocs-material are not installed; they are in the extras 'docs' and 'build'")
    # A fixed date: mkdocs writes the date of a build into what it builds. The other variable silences an advertisement.
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "0", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SiteError(f"mkdocs failed (status {done.returncode}):\n{done.stderr}")


def _leave_out(site: Path) -> None:
    for path in [*(site / name for name in _LEFT_OUT), *site.rglob("*.map")]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
