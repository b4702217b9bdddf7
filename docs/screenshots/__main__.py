"""``python -m docs.screenshots``: take the screenshots of the documentation anew."""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from docs.screenshots import FOLDER, take
from tests.api.conftest import NOW_S, TOKEN
from tests.web.scene import serving


def main() -> None:
    """Write them; needs Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        sys.exit("Chromium is missing: `make test-web` installs it")
    with TemporaryDirectory() as folder, serving(Path(folder)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        take(browser, url, TOKEN, NOW_S, FOLDER)
        browser.close()
    print(f"wrote {FOLDER}")


if __name__ == "__main__":
    main()
