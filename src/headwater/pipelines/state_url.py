"""The address of operator state in an S3-compatible object store: `s3://bucket/prefix`.

    s3://bucket/prefix                                     AWS
    s3://bucket/prefix?endpoint=http://minio:9000          another server
    s3://bucket/prefix?endpoint=…&region=eu-central-1

Credentials are no part of it: every process finds them as AWS' own tools do (AWS_ACCESS_KEY_ID, a
web identity, the role of a container or an instance). So the address can be in plans, properties of
jobs and error messages. Imported with the configuration, so it stays light.
"""

from dataclasses import dataclass, replace
from typing import Final, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

SCHEME: Final = "s3://"
ADDRESS_FILE: Final = "operators.json"  # in a checkpoint whose operators' state is at an address
_EXPECTED: Final = (
    '"s3://bucket/prefix", or "s3://bucket/prefix?endpoint=http://host:9000&region=name",'
    " without credentials"
)


@dataclass(frozen=True, slots=True)
class StateUrl:
    """A prefix of a bucket. `str()` gives the address without endpoint and region."""

    bucket: str
    prefix: str  # without "/" at its ends
    endpoint: str | None = None
    region: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, whose text does not repeat the address: it may have a password."""
        try:
            parts = urlsplit(text)
            options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
            endpoint = urlsplit(options.get("endpoint", "http://default"))
        except ValueError:
            raise ValueError(_EXPECTED) from None
        is_right = (
            parts.scheme == "s3"
            and parts.netloc
            and "@" not in parts.netloc + endpoint.netloc
            and not parts.fragment
            and options.keys() <= {"endpoint", "region"}
            and endpoint.scheme in ("http", "https")
            and endpoint.netloc
        )
        if not is_right:
            raise ValueError(_EXPECTED)
        return cls(parts.netloc, parts.path.strip("/"), **options)

    def __truediv__(self, name: str) -> Self:
        return replace(self, prefix=f"{self.prefix}/{name}".strip("/"))

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def address(self) -> str:
        """What `parse` takes."""
        options = {"endpoint": self.endpoint, "region": self.region}
        given = urlencode({name: value for name, value in options.items() if value is not None})
        return f"{self}?{given}" if given else str(self)
