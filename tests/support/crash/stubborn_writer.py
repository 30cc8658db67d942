"""A transactional producer that writes 0, 1, 2, …: BOOTSTRAP TOPIC TRANSACTIONAL_ID.

Prints each number when its transaction is committed; when it is refused, why, and ends.
"""

import itertools
import sys

from confluent_kafka import KafkaException, Producer

TIMEOUT_S = 60


def main(bootstrap: str, topic: str, transactional_id: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    for number in itertools.count():
        try:
            producer.begin_transaction()
            producer.produce(topic, b"%d" % number, b"first")
            producer.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            print(error.args[0].name(), flush=True)
            return
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
