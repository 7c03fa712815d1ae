"""Make the documentation as a site: `make docs`, or python scripts/docs/make.py.

Writes build/docs/pages (what mkdocs reads: docs/, README.md and pages made of the code) and
build/docs/site, whose pages open from the disk; searching in them needs a server, such as
python -m http.server --directory build/docs/site. A link that leads nowhere, and anything that a
page would load from elsewhere, ends with exit code 1 and its place.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from built import problems
from generated import write_reference
from pages import DeadLinks, write_pages

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "docs"


def main() -> None:
    try:
        num = write_pages(ROOT, BUILD / "pages")
    except DeadLinks as dead:
        sys.exit(f"dead links:\n{dead}")
    num += write_reference(BUILD / "pages")
    print(f"{num} pages in {BUILD / 'pages'}", flush=True)
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--clean"]
    env = os.environ | {
        "NO_MKDOCS_2_WARNING": "1",
        "SITE_NAME": f"agentgym-rl {version('agentgym-rl')}",
    }
    if subprocess.run(mkdocs, cwd=ROOT, env=env).returncode:
        sys.exit(1)
    if found := problems(BUILD / "site"):
        sys.exit("\n".join(["the site is not whole:", *found]))
    print(f"open {BUILD / 'site' / 'index.html'}")


if __name__ == "__main__":
    main()
