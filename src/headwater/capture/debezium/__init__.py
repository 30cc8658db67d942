"""Databases that have no capture of ours, through Debezium's connectors.

    properties.py     the connector's configuration: [capture.NAME] as Debezium's properties
    jvm.py            the JVM in this process, its jars, and Java's errors as ours
    transactions.py   the connector's records as whole transactions, each with its position
    source.py         the source: drives the connector as Kafka Connect's worker does

The connector runs in a thread of its own in the JVM and fills a queue that is bounded in bytes;
we poll it, so a capture that waits for its topics makes the connector wait. Its position (Kafka
Connect's source offset) is stored with the changes, and is what it is started with again.
"""
