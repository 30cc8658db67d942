"""S3Proxy: a server that speaks S3, checks signatures, and keeps its objects in files."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.ports import free_port
from bench.peers.process import BrokerFailedError
from bench.peers.provision import s3proxy_libs

BUCKET = "headwater"
IDENTITY = "archivist"
SECRET = "not-a-secret-on-this-machine"
START_TIMEOUT_S = 60


@dataclass
class S3Server:
    endpoint: str
    bucket_path: Path  # where the objects lie

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": IDENTITY, "AWS_SECRET_ACCESS_KEY": SECRET}


@contextmanager
def s3_server(folder: Path, port: int | None = None) -> Iterator[S3Server]:
    """The server, with one empty bucket, until the block ends."""
    port = port or free_port()
    bucket_path = folder / "objects" / BUCKET
    bucket_path.mkdir(parents=True, exist_ok=True)
    properties = folder / "s3proxy.conf"
    properties.write_text(
        f"""
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v4
s3proxy.identity={IDENTITY}
s3proxy.credential={SECRET}
jclouds.provider=filesystem
jclouds.filesystem.basedir={bucket_path.parent}
jclouds.identity=unused
jclouds.credential=unused
"""
    )
    # Without this class of its own, its logging tells every byte.
    quiet = folder / "logback.xml"
    quiet.write_text('<configuration><root level="WARN"/></configuration>')
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", f"-Dlogback.configurationFile={quiet}",
               "-cp", f"{s3proxy_libs()}/*", "org.gaul.s3proxy.Main",
               "--properties", str(properties)]  # fmt: skip
    with (folder / "s3proxy.out").open("ab") as sink:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    try:
        _wait_for(port, child, folder / "s3proxy.out")
        yield S3Server(f"http://127.0.0.1:{port}", bucket_path)
    finally:
        child.kill()
        child.wait()


def _wait_for(port: int, child: subprocess.Popen[bytes], output: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if child.poll() is not None or time.monotonic() > deadline_s:
            raise BrokerFailedError(f"S3Proxy did not start:\n{output.read_text()[-3000:]}")
        time.sleep(0.02)
