"""The archive of Spark's classes, for quicker starts."""

import subprocess
import sys

import pytest
from tiers import long

from headwater.pipelines.class_archive import archive_of, make_archive, sharing_options
from headwater.pipelines.session import find_java

LOADED = """
import headwater as hw
spark = hw.spark("archive", "local[1]", **{"spark.driver.memory": "512m"})
with open(f"/proc/{spark._jvm.java.lang.ProcessHandle.current().pid()}/maps") as maps:
    print(maps.read())
"""


def test_without_an_archive_nothing_is_asked_of_java(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = find_java()
    assert sharing_options(java) == ""
    archive = archive_of(java)
    archive.parent.mkdir()
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in sharing_options(java)


@pytest.mark.slow
@long  # a minute; without an archive Spark only starts later
def test_an_archive_is_made_and_used(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")  # Java would report it on stderr
    archive = make_archive()
    result = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=240
    )
    assert str(archive) in result.stdout
    assert result.stderr == ""
