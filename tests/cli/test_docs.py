"""docs/cli.md is what the commands say of themselves."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_reference_is_current():
    generator = ROOT / "tools" / "generate_cli_docs.py"
    checked = subprocess.run(
        [sys.executable, generator, "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
