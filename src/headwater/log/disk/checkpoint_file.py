"""A checkpoint file: offsets per partition as text, in Kafka's format.

0                       version
2                       number of lines
orders 0 1234           topic, partition, offset
orders 1 99
"""

import logging
import os
from collections.abc import Mapping

from headwater.log.disk.files import Files

log = logging.getLogger(__name__)

TopicPartition = tuple[str, int]


def write(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    files.write_atomically(path, encode(offsets))


def encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{topic} {index} {offset}" for (topic, index), offset in offsets.items()]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def read(files: Files, path: str) -> dict[TopicPartition, int]:
    """What the file says; nothing if it is missing or damaged, which only costs a scan."""
    if not os.path.exists(path):
        return {}
    try:
        version, count, *lines = files.read(path).decode("ascii").splitlines()
        offsets = {}
        for line in lines:
            topic, index, offset = line.split(" ")
            offsets[topic, int(index)] = int(offset)
        if version != "0" or len(offsets) != int(count):
            raise ValueError("the number of lines does not match")
    except (ValueError, OSError) as error:
        log.warning("a checkpoint is left out: %s: %s", path, error)
        return {}
    return offsets
