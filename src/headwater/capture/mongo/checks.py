"""Checks of a deployment: what a capture needs and lacks, with the command that fixes it."""

from collections.abc import Iterable
from typing import Any, Final

from pymongo import MongoClient

from headwater.capture.contract import Table
from headwater.capture.mongo.connection import not_a_replica_set
from headwater.capture.settings import CaptureSettings
from headwater.errors import CaptureError, TableRefused

IMAGES_SINCE: Final = (6, 0)  # pre- and post-images of documents
SNAPSHOTS_SINCE: Final = (5, 0)  # reads at one cluster time, outside of transactions
SPLITTING_SINCE: Final = (7, 0)  # events of more than 16 MB


def version_of(client: MongoClient[dict[str, Any]]) -> tuple[int, int]:
    version = client.server_info()["versionArray"]
    return version[0], version[1]


def is_sharded(client: MongoClient[dict[str, Any]], settings: CaptureSettings) -> bool:
    """Whether mongos answers, and not a member of a replica set. Raises SourceRefused if it is
    neither.
    """
    hello = client.admin.command("hello")
    if hello.get("msg") == "isdbgrid":
        return True
    if "setName" not in hello:
        raise not_a_replica_set(settings)
    return False


def without_images(
    client: MongoClient[dict[str, Any]], settings: CaptureSettings, tables: Iterable[Table]
) -> list[CaptureError]:
    """Collections whose updates and deletes will come without what was there before."""
    wanted: dict[str, set[str]] = {}
    for table in tables:
        wanted.setdefault(table.schema, set()).add(table.name)
    found: list[CaptureError] = []
    for database, names in wanted.items():
        for collection in client[database].list_collections():
            images = collection.get("options", {}).get("changeStreamPreAndPostImages", {})
            if collection["name"] in names and not images.get("enabled"):
                found.append(_no_images(settings, database, collection["name"]))
    return found


def _no_images(settings: CaptureSettings, database: str, collection: str) -> TableRefused:
    return TableRefused(
        f"capture {settings.name}: MongoDB stores no images of {database}.{collection}",
        detail="`before` will be null, and `after` of an update is the document as it is when the"
        " change is read, not when it was made",
        hint=f'db.getSiblingDB("{database}").runCommand({{collMod: "{collection}",'
        " changeStreamPreAndPostImages: {enabled: true}})",
    )
