"""``python -m docs.site [FOLDER]``: build the site."""

import sys
from pathlib import Path

from docs.site.build import SITE, SiteError, build


def main() -> None:
    """Build, or say why not."""
    out = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else SITE
    try:
        build(out)
    except SiteError as error:
        sys.exit(str(error))
    print(f"built {out}")


if __name__ == "__main__":
    main()
