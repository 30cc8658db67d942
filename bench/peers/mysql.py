"""MySQL's own server, without an installation: the newest from Debian's unstable suite (60 MB), and
8.0 from Maven (550 MB). Both are unpacked into `.work/`, once.
"""

import platform
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import NamedTuple

from bench.peers.provision import BENCH, PeerUnavailableError, copy_jars, once, run

_PACKAGE, _SUITE = "mysql-server-core", "sid"
_POM = BENCH / "mysql" / "pom.xml"
_OF_8_0 = ("share/", "lib/private/", "lib/plugin/component_", "LICENSE")


class MySqlBinaries(NamedTuple):
    command: list[str]  # starts mysqld
    basedir: Path


def mysql_newest() -> MySqlBinaries:
    """The server of Debian's unstable suite, with the libraries (libc among them) that it was
    linked with. The suite has one version at a time, so none is named here.
    """
    folder = once("mysql-newest", [_PACKAGE, _SUITE], ["apt-get", "dpkg-deb"], _unpack_packages)
    loaders = sorted(folder.glob("root/usr/lib/*/ld-linux-*.so.*"))
    if not loaders:
        raise PeerUnavailableError(f"no loader among the packages of {_PACKAGE}")
    base = folder / "root" / "usr"
    libraries = ["--library-path", str(loaders[0].parent)]
    return MySqlBinaries([str(loaders[0]), *libraries, str(base / "sbin" / "mysqld")], base)


def mysql_8_0() -> MySqlBinaries:
    if platform.machine() != "x86_64":
        raise PeerUnavailableError("MySQL 8.0 is there for x86_64 only")
    folder = once("mysql-8.0", [_POM], ["java", "mvn"], _unpack_archive)
    return MySqlBinaries([str(folder / "bin" / "mysqld")], folder)


def _unpack_packages(folder: Path) -> None:
    """By apt with lists and a cache of its own: nothing is installed, and root is not needed."""
    apt = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb {_debian_mirror()} {_SUITE} main\n")
    options = {
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "root",  # `_apt` may not write here
        "Debug::NoLocking": "1",  # of dpkg, which has no part in this
        "Acquire::Languages": "none",
        "APT::Update::Error-Mode": "any",  # else a mirror that does not answer is only warned of
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    run([*command, "update"])
    run([*command, "install", "-y", "--no-install-recommends", "--download-only", _PACKAGE])
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        run(["dpkg-deb", "-x", str(package), str(folder / "root")])
    shutil.rmtree(apt)


def _debian_mirror() -> str:
    """The one from which this machine has its packages."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Identifier: Packages"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    for address in found:
        if address.endswith("/debian/"):
            return address
    raise PeerUnavailableError(f"{_PACKAGE} comes from a mirror of Debian, and apt knows none")


def _unpack_archive(folder: Path) -> None:
    copy_jars(_POM, folder)
    (archive,) = (folder / "libs").iterdir()
    with zipfile.ZipFile(archive) as packed:
        needed = [name for name in packed.namelist() if name.startswith(_OF_8_0)]
        packed.extractall(folder, ["bin/mysqld", *needed])
    (folder / "bin" / "mysqld").chmod(0o755)
    shutil.rmtree(folder / "libs")
    run([str(folder / "bin" / "mysqld"), "--no-defaults", "--version"])  # says what libraries lack
