"""Apache Kafka itself: one KRaft node, and its command-line tools."""

import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers.ports import free_port
from bench.peers.process import BrokerProcess, running
from bench.peers.provision import kafka_libs

if TYPE_CHECKING:
    from bench.tls import Certificate

NAME = "Apache Kafka 4.3.0"
# As kafka-server-start.sh sets them.
SERVER_JVM = ["-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
TOOL_TIMEOUT_S = 60
CLUSTER_ID = "aGVhZHdhdGVyLWJlbmNoLQ"

# Errors, and what the cleaner has done: a line for each pass.
LOGGING = """
appender.out.type=Console
appender.out.name=out
rootLogger.level=error
rootLogger.appenderRef.out.ref=out
logger.passes.name=org.apache.kafka.storage.internals.log.LogCleaner$CleanerThread
logger.passes.level=info
"""

TOOLS = "org.apache.kafka.tools"
# A tool lives for a second: a JVM that does not warm up for a long life starts faster.
TOOL_JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx512m"]
WARM_JVM = ["-XX:+UseG1GC", "-Xmx1g"]  # for a tool that is itself the load


@contextmanager
def kafka(
    data_dir: Path, tls: "Certificate | None" = None, jvm: Sequence[str] = SERVER_JVM
) -> Iterator[BrokerProcess]:
    """One node, broker and controller, with Kafka's defaults wherever one node allows them."""
    port = free_port()
    protocol, security, context = "PLAINTEXT", "", None
    if tls is not None:
        protocol, context = "SSL", ssl.create_default_context(cafile=tls.cert)
        security = (
            f"ssl.keystore.type=PEM\nssl.keystore.location={tls.both}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={tls.cert}\n"
            "security.inter.broker.protocol=SSL\n"
            "listener.security.protocol.map=SSL:SSL,CONTROLLER:PLAINTEXT\n"
        )
    listeners = f"{protocol}://127.0.0.1:{port}"
    with _node(data_dir, port, listeners, security, context, jvm) as broker:
        yield broker


@contextmanager
def secured_kafka(
    data_dir: Path, users: Mapping[str, str], jvm: Sequence[str] = SERVER_JVM
) -> Iterator[str]:
    """One node that asks for users with passwords (SCRAM-SHA-256) and allows them what ACLs say;
    the first one everything. The address is where it asks; beside it there is a listener that does
    not, by which it is found out that the node serves.
    """
    asking, open_to_all = free_port(), free_port()
    first, password = next(iter(users.items()))
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    security = (
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        f"super.users=User:{first};User:ANONYMOUS\n"
        "listener.security.protocol.map="
        "SASL:SASL_PLAINTEXT,OPEN:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        "inter.broker.listener.name=OPEN\n"
        "sasl.enabled.mechanisms=SCRAM-SHA-256\n"
        "listener.name.sasl.scram-sha-256.sasl.jaas.config="
        f'{login} username="{first}" password="{password}";\n'
    )
    listeners = f"SASL://127.0.0.1:{asking},OPEN://127.0.0.1:{open_to_all}"
    added = [
        argument
        for name, password in users.items()
        for argument in ("--add-scram", f"SCRAM-SHA-256=[name={name},password={password}]")
    ]
    with _node(data_dir, open_to_all, listeners, security, None, jvm, added):
        yield f"127.0.0.1:{asking}"


@contextmanager
def _node(
    data_dir: Path,
    port: int,
    listeners: str,
    security: str,
    context: ssl.SSLContext | None,
    jvm: Sequence[str],
    format_arguments: Sequence[str] = (),
) -> Iterator[BrokerProcess]:
    """`port` is that of a listener that answers without a login."""
    data_dir.mkdir(parents=True, exist_ok=True)
    controller_port = free_port()
    properties = data_dir / "server.properties"
    log_dir = data_dir / "log"
    properties.write_text(
        f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
{security}listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
log.dirs={log_dir}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
"""
    )
    if not (log_dir / "meta.properties").exists():
        formatted = run_tool(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties),
            *format_arguments,
        )  # fmt: skip
        formatted.check_returncode()
    logging = data_dir / "log4j2.properties"
    logging.write_text(LOGGING)
    settings = f"-Dlog4j2.configurationFile={logging}"
    command = ["java", *jvm, settings, "-cp", classpath(), "kafka.Kafka", str(properties)]
    with running(NAME, command, port, data_dir / "kafka.out", context) as broker:
        yield broker


def run_tool(
    name: str,
    *args: str,
    stdin: str | None = None,
    timeout_s: float = TOOL_TIMEOUT_S,
    jvm: list[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs one of Kafka's tools; a name without dots is one of org.apache.kafka.tools."""
    tool = name if "." in name else f"{TOOLS}.{name}"
    return subprocess.run(
        ["java", *(jvm or TOOL_JVM), "-cp", classpath(), tool, *args],
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def classpath() -> str:
    return f"{kafka_libs()}/*"


if __name__ == "__main__":  # `python -m bench.peers.kafka --fetch`: only gets the jars
    print(kafka_libs())
