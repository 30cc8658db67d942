"""The wheel, in an environment that has nothing but what `pip install headwater` brings.

No network is needed: the distributions that the wheel's own metadata asks for, and what they ask
for in turn, are linked from the environment that runs the tests. Everything else is absent there.
"""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser as MetadataParser
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headwater import extras

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120
LIGHT_BYTES = 130 * 10**6  # of all files, in whole blocks; compiled Python files included
HEAVY = sorted({module for modules in extras.EXTRAS.values() for module in modules})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT_S)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return MetadataParser().parsestr(archive.read(name).decode())


def closure(requirements: list[str]) -> dict[str, Distribution]:
    """The distributions that pip would install for these, by name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    left = [(text, "") for text in requirements]
    while left:
        text, of_extra = left.pop()
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": of_extra}):
            continue
        name = canonicalize_name(wanted.name)
        found.setdefault(name, distribution(name))
        for extra in ("", *wanted.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                left += [(text, extra) for text in found[name].requires or ()]
    return found


@pytest.fixture(scope="module")
def light(metadata: Any) -> dict[str, Distribution]:
    return closure(metadata.get_all("Requires-Dist"))


@pytest.fixture(scope="module")
def programs(wheel: Path, light: dict[str, Distribution], tmp_path_factory) -> Path:
    """The bin directory of the environment."""
    home = tmp_path_factory.mktemp("light")
    venv.create(home, symlinks=True, with_pip=False)
    python = home / "bin" / "python"
    (site,) = home.glob("lib/python*/site-packages")
    for found in light.values():
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            link, target = site / top, Path(str(found.locate_file(top)))
            if top != "__pycache__" and target.exists() and not link.exists():
                link.symlink_to(target)
    command = ("uv", "pip", "install", "--offline", "--no-cache", "--no-deps", "--python", python)
    subprocess.run(
        [Path(sys.executable).parent / command[0], *command[1:], wheel],
        check=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    return home / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "headwater.toml").write_text(
        """
[capture.shop]
source = "postgresql://shop@127.0.0.1:1/shop"
tables = ["public.*"]

[capture.films]
source = "mongodb://127.0.0.1:1/films"

[pipeline.orders]
file = "orders.py"
"""
    )
    (tmp_path / "orders.py").write_text("import headwater as hw\n")
    return tmp_path


def environment(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}


def headwater(programs: Path, project: Path, *arguments: str, **options: Any) -> Any:
    return subprocess.run(
        [programs / "headwater", *arguments],
        cwd=project, env=environment(project), capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False, **options,
    )  # fmt: skip


@contextmanager
def running(programs: Path, project: Path, *arguments: str) -> Iterator[dict[str, Any]]:
    """A command that announces itself by one line of JSON."""
    command = [programs / "headwater", *arguments, "--json"]
    with subprocess.Popen(
        command, cwd=project, env=environment(project), stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0


def test_the_wheel_has_what_is_not_python(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for wanted in (
        "console/static/vendor/htmx.min.js",
        "console/static/vendor/idiomorph-ext.min.js",
        "console/static/vendor/uPlot.iife.min.js",
        "console/templates/base.html",
        "demo/files/headwater.toml",
        "demo/files/pipelines/orders.py",
        "demo/files/schema.sql",
        "pipelines/java/headwater.jar",
        "project_template/headwater.toml",
        "project_template/tests/test_orders.py",
        "sql_project_template/views/revenue.sql",
        "py.typed",
    ):
        assert f"headwater/{wanted}" in names
    assert not any("__pycache__" in name or name.startswith("tests") for name in names)


def test_its_extras_are_those_of_the_program(metadata: Any, light: dict[str, Distribution]):
    assert {*metadata.get_all("Provides-Extra")} == {*extras.EXTRAS, "all"}
    assert not {"numpy", "pyarrow", "pyspark", "numba", "pandas"} & {*light}


def test_the_light_installation_stays_small(light: dict[str, Distribution]):
    blocks = sum(
        path.stat().st_blocks
        for found in light.values()
        for file in found.files or ()
        if (path := Path(str(found.locate_file(file)))).is_file()
    )
    assert blocks * 512 < LIGHT_BYTES


def test_no_optional_package_is_there(programs: Path, project: Path):
    code = (
        "import sys; from headwater import extras; "
        "print([m for m in sys.argv[1:] if extras.is_installed(m)])"
    )
    command = [programs / "python", "-c", code, *HEAVY]
    done = subprocess.run(
        command, cwd=project, env=environment(project), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_the_light_parts_import_no_optional_package(programs: Path, project: Path):
    code = """
import importlib, pkgutil
for part in ("backup", "broker", "cli", "console", "protocol", "supervisor"):
    package = importlib.import_module(f"headwater.{part}")
    for module in pkgutil.walk_packages(package.__path__, f"headwater.{part}."):
        importlib.import_module(module.name)
"""
    done = subprocess.run(
        [programs / "python", "-c", code],
        cwd=project, env=environment(project), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_broker_command_line_and_console_work(programs: Path, project: Path):
    (project / "headwater.toml").unlink()
    listen = ("--listen", "127.0.0.1:0")
    with running(programs, project, "broker", *listen) as broker:
        address = ("-b", broker["listen"])
        produced = headwater(programs, project, "produce", "greetings", *address, input="hello\n")
        assert produced.returncode == 0, produced.stderr
        consumed = headwater(
            programs, project, "consume", "greetings", "-o", "start", "-e", *address
        )
        assert "hello" in consumed.stdout, consumed.stderr
        assert headwater(programs, project, "status", *address).returncode == 0
        with running(programs, project, "console", *listen, *address) as console:
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

            def page(path: str, data: bytes | None = None) -> str:
                with opener.open(console["url"] + path, data, timeout=TIMEOUT_S) as answer:
                    return answer.read().decode()

            assert "greetings" in page("/topics/")
            assert "hello" in page("/topics/greetings/records/")
            assert "hello" in page("/topics/greetings/export")
            assert "htmx" in page("/static/vendor/htmx.min.js")
            token = re.search(r'name="csrf" value="([^"]+)"', page("/topics/greetings/search/"))[1]
            with pytest.raises(urllib.error.HTTPError) as refused:
                page("/topics/greetings/search", f"csrf={token}&value=hello".encode())
            with refused.value:
                assert "headwater[fast]" in refused.value.read().decode()


def test_the_console_shows_a_project_with_pipelines_without_their_extra(
    programs: Path, project: Path, broker: str
):
    with running(programs, project, "console", "--listen", "127.0.0.1:0", "-b", broker) as console:
        for path in ("/captures", "/flow", "/pipelines", "/stores"):
            with urllib.request.urlopen(console["url"] + path, timeout=TIMEOUT_S) as answer:
                page = answer.read().decode()
            assert "pip install &#39;headwater[pipelines]&#39;" in page, path
            if path == "/captures":
                assert "films" in page


@pytest.mark.parametrize(
    ("arguments", "purpose", "extra"),
    [
        (("pipeline", "run"), "headwater pipeline run", "pipelines"),
        (("pipeline", "rebuild", "orders"), "pipeline orders", "pipelines"),
        (("verify", "orders"), "headwater verify", "pipelines"),
        (("capture", "run", "shop"), "capture shop", "postgres"),
        (("capture", "run", "films"), "capture films", "mongo"),
        (("demo",), "headwater demo", "demo"),
    ],
)
def test_a_missing_extra_is_an_error_that_shows_how_to_install_it(
    programs: Path, project: Path, broker: str, arguments: tuple[str, ...], purpose: str, extra: str
):
    options = () if arguments == ("demo",) else ("-b", broker)
    done = headwater(programs, project, *arguments, *options)
    assert done.returncode == 2
    assert f"error: {purpose} needs packages that are not installed\n" in done.stderr
    assert f"hint: pip install 'headwater[{extra}]'\n" in done.stderr


def test_the_python_api_says_it_too(programs: Path, project: Path):
    command = [programs / "python", "-c", "import headwater as hw; hw.spark()"]
    done = subprocess.run(
        command, cwd=project, env=environment(project), capture_output=True, text=True, check=False
    )
    assert "MissingExtra: Spark needs packages that are not installed" in done.stderr


def test_a_new_project_names_what_it_needs(programs: Path, project: Path):
    assert "pip install 'headwater[pipelines]'" in headwater(programs, project, "init", "a").stdout


def test_doctor_lists_the_extras(programs: Path, project: Path):
    done = headwater(programs, project, "doctor")
    assert "installed: none" in done.stdout
    for purpose in ("capture shop", "pipeline orders"):
        assert f"{purpose} needs packages that are not installed" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def broker(programs: Path, tmp_path_factory) -> Iterator[str]:
    with running(
        programs, tmp_path_factory.mktemp("broker"), "broker", "--listen", "127.0.0.1:0"
    ) as ready:
        yield ready["listen"]
