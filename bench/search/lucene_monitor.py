"""Lucene Monitor on the same queries and documents, in a JVM of its own with one thread."""

import subprocess
import tempfile
from pathlib import Path

from bench.peers.provision import lucene_monitor_classpath
from bench.search.workload import Query

_TIMEOUT_S = 1800


def measure(stored: list[Query], given: list[str]) -> None:
    """Prints a line. Raises PeerUnavailableError."""
    classpath = lucene_monitor_classpath()
    with tempfile.TemporaryDirectory() as directory:
        queries, documents = Path(directory) / "queries", Path(directory) / "documents"
        lines = [f"{query.kind} {query.first} {query.second}" for query in stored]
        queries.write_text("\n".join(lines))
        documents.write_text("\n".join(given))
        command = ["java", "-XX:ActiveProcessorCount=1", "-Xmx1500m", "-cp", classpath]
        command += ["MonitorBench", str(queries), str(documents)]
        printed = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    registered_s, matched_s, cpu_s, matches = map(float, printed.stdout.split())
    print(
        f"  lucene monitor  {len(given) / matched_s:>10,.0f} documents/s"
        f" ({len(given) / cpu_s:,.0f} by CPU time), {matches:,.0f} matches,"
        f" registered in {registered_s:.1f} s"
    )
