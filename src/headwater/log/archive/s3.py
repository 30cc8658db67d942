"""S3, and whatever speaks like it (MinIO, Ceph, R2, …), through object_store's Rust client.

The credentials are found as AWS' own tools find them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
AWS_SESSION_TOKEN, a web identity, a container's or an instance's role. None of them is a setting
of the broker, so none can get into its log.

Every request is signed with the hash of its contents, so a server that checks signatures refuses
a body that was damaged on the way.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from headwater.errors import ArchiveUnavailable, ConfigError

PART_BYTES = 8 << 20  # of a multipart upload; S3 wants at least 5 MiB
PARTS_AT_ONCE = 2
DELETES_AT_ONCE = 1000  # then a failure does not begin from the first again
CONNECT_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 60
DEFAULT_REGION = "us-east-1"  # what servers other than AWS' take whatever one calls it

# The client's threads hand over results, and may still need the interpreter when the last one is
# here. One that meets an interpreter which is being finalized aborts the process
# (PyO3/pyo3-async-runtimes, issue 40): a program that has made requests ends by `os._exit`.
requests_were_made = False


class S3Objects:
    """A prefix in a bucket. Requests run in the client's own threads; the event loop only waits."""

    def __init__(
        self, bucket: str, prefix: str, *, endpoint: str | None, region: str | None
    ) -> None:
        self.url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        try:
            self._store = open_bucket(bucket, prefix or None, endpoint=endpoint, region=region)
        except (BaseError, ValueError) as error:
            raise ConfigError("the archive cannot be used", detail=short_error(error)) from error

    async def put(self, name: str, parts: AsyncIterator[bytes]) -> None:
        first: list[bytes] = []
        size_bytes = 0
        async for part in parts:
            first.append(part)
            size_bytes += len(part)
            if size_bytes >= PART_BYTES:
                break
        else:
            await self._wait(obstore.put_async(self._store, name, b"".join(first)))
            return
        await self._wait(
            obstore.put_async(
                self._store,
                name,
                _chained(first, parts),
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        )

    async def get(self, name: str, start: int, end: int) -> bytes:
        if start == end:
            return b""
        found = await self._wait(obstore.get_range_async(self._store, name, start=start, end=end))
        return bytes(found)

    async def names(self, prefix: str) -> list[str]:
        found = await self._wait(obstore.list(self._store, prefix).collect_async())
        return [entry["path"] for entry in found]

    async def delete(self, names: Sequence[str]) -> None:
        for at in range(0, len(names), DELETES_AT_ONCE):
            some = list(names[at : at + DELETES_AT_ONCE])
            await self._wait(obstore.delete_async(self._store, some), missing_is_fine=True)

    def close(self) -> None:
        pass

    async def _wait(self, request: Any, *, missing_is_fine: bool = False) -> Any:
        global requests_were_made  # noqa: PLW0603 (of the process, as the client's threads are)
        requests_were_made = True
        try:
            return await request
        except FileNotFoundError as error:
            if not missing_is_fine or "NoSuchBucket" in str(error):
                raise ArchiveUnavailable(
                    "an object is not in the archive", detail=f"{self.url}: {short_error(error)}"
                ) from error
        except asyncio.CancelledError:
            raise
        except (BaseError, OSError) as error:
            raise ArchiveUnavailable(
                "the archive refuses, or does not answer",
                detail=f"{self.url}: {short_error(error)}",
            ) from error


async def _chained(first: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while first:
        yield first.pop(0)
    async for part in rest:
        yield part


def open_bucket(
    bucket: str, prefix: str | None, *, endpoint: str | None, region: str | None
) -> S3Store:
    """Makes no request. Raises BaseError, ValueError."""
    # One request for many deletions is what S3-compatible servers lack most often.
    options: dict[str, Any] = {"disable_bulk_delete": True}
    if endpoint is not None:
        # Servers that are not AWS' seldom have a host name for each bucket.
        options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    if region is not None or endpoint is not None:
        options["region"] = region or DEFAULT_REGION
    return S3Store(
        bucket,
        prefix=prefix,
        client_options={
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
            "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        },
        retry_config={
            "max_retries": 2,
            "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        },
        **options,
    )


def short_error(error: BaseException) -> str:
    """Without the client's dump of its own state, and of the server's document only the code: it
    may repeat the request, with the id of the key and the session's token.
    """
    text = str(error).split("\n\nDebug source:")[0]
    message, _, document = text.partition("<")
    code = re.search(r"<Code>(\w+)</Code>", f"<{document}")
    return f"{message.strip()} {code[1] if code else ''}".strip()[:500]
