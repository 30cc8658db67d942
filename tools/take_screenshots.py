"""Takes the pictures of README.md from the running product: `python tools/take_screenshots.py`.

Runs the demo until its stores follow the load, and stores the console's page of the flow in
docs/images. Needs Debian's Chromium, and what `make test` installs.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
WIDTH, HEIGHT = 1280, 800
LOAD_S = 25  # of load before the picture: rates and latencies are there
MOST_BYTES = 200_000


def main() -> None:
    demo = subprocess.Popen(
        [Path(sys.executable).parent / "headwater", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160"},
    )
    try:
        take(console_of(demo))
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate()


def console_of(demo: "subprocess.Popen[str]") -> str:
    assert demo.stdout is not None
    for line in demo.stdout:
        print(line, end="", flush=True)
        found = re.match(r"console\s+(http://\S+)", line)
        if found:
            return found[1]
    raise SystemExit("the demo has ended before it was ready")


def take(console: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=arguments
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(f"{console}/flow")
        page.wait_for_timeout(LOAD_S * 1000)
        path = IMAGES / "flow.png"
        page.screenshot(path=path)
        browser.close()
    size_bytes = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size_bytes:,} bytes")
    if size_bytes > MOST_BYTES:
        raise SystemExit(f"a picture has more than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
