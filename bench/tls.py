"""Over TLS 1.3: Java's producer and consumer, which both brokers' users are likely to have."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.clients.rdkafka import QUIET, TOPIC, LoadFailedError
from bench.peers.kafka import WARM_JVM, run_tool
from bench.rounds import Measured, StartBroker, data_directory

TIMEOUT_S = 600


@dataclass(frozen=True)
class Certificate:
    """A self-signed one for 127.0.0.1, as PEM files; `both` has the key and the certificate."""

    cert: Path
    key: Path
    both: Path

    @classmethod
    def make(cls, directory: Path) -> "Certificate":
        made = cls(directory / "cert.pem", directory / "key.pem", directory / "both.pem")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
             "-nodes", "-days", "2", "-subj", "/CN=bench",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", made.key, "-out", made.cert],
            check=True, capture_output=True,
        )  # fmt: skip
        made.both.write_text(made.key.read_text() + made.cert.read_text())
        return made


def tls(start: StartBroker, size_bytes: int, count: int) -> Measured:
    """One partition, acks=all (Java's default)."""
    with data_directory() as directory:
        certificate = Certificate.make(directory)
        client = directory / "client.properties"
        client.write_text(
            "security.protocol=SSL\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={certificate.cert}\n"
        )
        with start(directory, certificate) as broker:
            _create_topic(broker.address, certificate)
            idle_s = broker.cpu_s
            produced = _produce_rate(broker.address, client, size_bytes, count)
            produced_s = broker.cpu_s
            consumed = _consume_rate(broker.address, client, count)
            return {
                f"TLS: produce {size_bytes} B, records/s": produced,
                f"TLS: consume {size_bytes} B, records/s": consumed,
                f"TLS: broker CPU to produce {count:,} × {size_bytes} B, s": produced_s - idle_s,
                f"TLS: broker CPU to consume {count:,} × {size_bytes} B, s": (
                    broker.cpu_s - produced_s
                ),
            }


def _create_topic(address: str, certificate: Certificate) -> None:
    admin = AdminClient(
        {
            "bootstrap.servers": address,
            "security.protocol": "ssl",
            "ssl.ca.location": str(certificate.cert),
            **QUIET,
        }
    )
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(60)


def _produce_rate(address: str, client: Path, size_bytes: int, count: int) -> float:
    """Records per second behind the first fifth, in which the JVM warms up."""
    done = run_tool(
        "ProducerPerformance",
        *("--bootstrap-server", address, "--topic", TOPIC, "--command-config", str(client)),
        *("--num-records", str(count), "--record-size", str(size_bytes), "--throughput", "-1"),
        *("--warmup-records", str(count // 5)),
        jvm=WARM_JVM,
        timeout_s=TIMEOUT_S,
    )
    found = re.findall(r"steady state records sent.*?([\d.]+) records/sec", done.stdout)
    if done.returncode or not found:
        raise LoadFailedError(done.stdout[-2000:] + done.stderr[-2000:])
    return float(found[-1])


def _consume_rate(address: str, client: Path, count: int) -> float:
    """Records per second of fetching, without the time to join the group."""
    done = run_tool(
        "ConsumerPerformance",
        *("--bootstrap-server", address, "--topic", TOPIC, "--command-config", str(client)),
        *("--num-records", str(count), "--timeout", "60000"),
        jvm=WARM_JVM,
        timeout_s=TIMEOUT_S,
    )
    lines = [line.split(", ") for line in done.stdout.splitlines() if ", " in line]
    if done.returncode or len(lines) < 2:
        raise LoadFailedError(done.stdout[-2000:] + done.stderr[-2000:])
    figures = dict(zip(lines[0], lines[-1], strict=True))
    return float(figures["fetch.nMsg.sec"])
