"""`headwater completion`: scripts that shells understand."""

import shutil
import subprocess

import pytest

from headwater.cli.main import COMMANDS


def completed(script, *words):
    """What bash offers behind these words."""
    typed = " ".join(f"'{word}'" for word in words)
    lines = f"""
set -u
source {script}
COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}
COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}
_of=$(complete -p headwater | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$_of headwater "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", lines], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def script(offline):
    path = offline.cwd / "completion.bash"
    path.write_text(offline("completion", "bash"))
    return path


def test_bash_completes_commands_subcommands_and_options(script):
    assert completed(script, "headwater", "top") == ["topic"]
    assert {*completed(script, "headwater", "")} >= {*COMMANDS}
    assert completed(script, "headwater", "topic", "cr") == ["create"]
    assert completed(script, "headwater", "topic", "create", "t", "--part") == ["--partitions"]
    assert completed(script, "headwater", "--config", "x.toml", "stat") == ["status"]
    assert completed(script, "headwater", "completion", "z") == ["zsh"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish"])
def test_every_shell_has_a_script(offline, shell):
    shown = offline("completion", shell)
    assert "redrive" in shown
    if shutil.which(shell) and shell != "tcsh":  # which has no check of syntax
        subprocess.run([shell, "-n"], input=shown, text=True, check=True)


def test_other_shells_are_refused(offline):
    assert "invalid choice: 'ksh'" in offline.error("completion", "ksh", code=2)
