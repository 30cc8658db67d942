"""The versions of a target as OpenSearch indexes, with an alias of the live one.

    orders                  an alias of orders__v1
    orders__v1, orders__v2  one document for each row; its id is the key's text
    headwater_positions     document orders__v1: owner, epoch, position, fields, stage

OpenSearch has no transactions. In their stead:

1.  The position's document is replaced only as it was read (`if_seq_no`), so of two writers one
    finds that it is fenced: before it writes a row, and before its position counts.
2.  Every row carries a version made of epoch and batch, and OpenSearch refuses an older one
    (`external_gte`). A batch that was written in part is written again with the same result; the
    requests in flight of a zombie are refused row by row.
3.  Searches see the state of the last refresh, and indexes are refreshed only here: when all
    rows of a batch are written. So a reader sees whole batches, shard by shard.

Remaining gaps: another client's refresh, or a node that restarts, shows a part of a batch until it
is written again. OpenSearch forgets a deleted row's version after `index.gc_deletes` (here an
hour): a zombie that was stopped between two requests for longer could bring such a row back.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from headwater.errors import ConfigError, StoreRefused, StoreUnreachable
from headwater.sinks.contract import (
    Contents,
    Log,
    Position,
    Store,
    Target,
    Version,
    fields_from_text,
    fields_to_text,
    name_of,
)
from headwater.sinks.opensearch.http_api import OpenSearchApi, path_of, reason_of
from headwater.sinks.opensearch.mapping import mapping_of
from headwater.sinks.opensearch.writer import (
    COMMITTED,
    DROPPED,
    OpenSearchWriter,
    State,
    batch_of,
)
from headwater.sinks.rows import json_reading
from headwater.sinks.rows.documents import check_types
from headwater.sinks.rows.schema_evolution import evolved, plain
from headwater.sinks.settings import SinkSettings, with_password

OPTIONS: Final = ("tls_ca",)
TARGET_OPTIONS: Final = ("analyzer", "shards", "replicas")

POSITIONS: Final = "headwater_positions"
_PAGE_ROWS: Final = 5000
_READ_TIMEOUT_S: Final = 30
_ABANDONED_S: Final = 1.0


class OpenSearchStore(Store):
    guarantee = "effectively once: whole batches, unless another client refreshes the index"

    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        whose = f"sink {settings.name}"
        url = with_password(settings).url
        if url is None:
            raise ConfigError(f"{whose} has no url", hint='url = "https://user@host:9200"')
        if not re.fullmatch(r"[^A-Z\\/*?\"<>| ,#:_+.-][^A-Z\\/*?\"<>| ,#:]{0,199}", target.name):
            raise ConfigError(
                f"{target.name} cannot be the name of an index",
                hint='in lower case, without blanks and any of \\ / * ? " < > | , # :',
            )
        self.target = target
        self._address = (whose, url.reveal(), settings.options.get("tls_ca"))
        self.api = self._connect()
        self._numbers = {
            name: int(target.options[name])
            for name in ("shards", "replicas")
            if _is_number(target, name)
        }

    def check(self) -> None:
        self.api.ask("GET", "/")
        if not self._versions():
            self._check_free(self.target.name)
        elif self.versions() == []:
            self._check_owner(self.state(next(iter(self._versions()))))

    def versions(self) -> list[Version]:
        found = []
        for number, is_live in sorted(self._versions().items()):
            state = self.state(number)
            if state is not None and state.owner == self.target.owner and state.stage != DROPPED:
                found.append(Version(number, is_live, state.position, state.fields))
        return found

    def writer(self, version: int, fields: pa.Schema) -> "OpenSearchWriter":
        check_types(fields)
        mapping_of(fields, self._analyzer)
        while True:
            state = self.state(version)
            if state is None or state.stage == DROPPED:
                self._check_free(self.index(version))
                if version == 1 and True not in self._versions().values():
                    self._check_free(self.target.name)
                self._make_positions()
                new = State(self.target.owner, 1, None, plain(fields), None, -1, -1)
                if state is not None:
                    new = replace(
                        state, epoch=state.epoch + 1, position=None, stage=None, fields=new.fields
                    )
            else:
                self._check_owner(state)
                columns = evolved(state.fields, fields).fields
                if state.stage == COMMITTED:
                    self.refresh(version, self.api)
                    state = replace(state, stage=None)
                new = replace(state, epoch=state.epoch + 1, fields=columns)
            taken = self.replace(version, new)
            if taken is not None:
                self._make_index(version, taken.fields)
                return OpenSearchWriter(self, self._connect(), version, taken)

    def promote(self, version: int) -> None:
        self._check_version(version)
        alias = self.target.name
        actions = [
            {"remove": {"index": self.index(number), "alias": alias}}
            for number, is_live in self._versions().items()
            if is_live and number != version
        ]
        actions.append({"add": {"index": self.index(version), "alias": alias}})
        self.api.ask("POST", "/_aliases", {"actions": actions})

    def drop(self, version: int) -> None:
        self._check_version(version)
        if self._versions()[version]:
            raise StoreRefused(
                f"version {version} of {self.target.name} is live", hint="promote another one first"
            )
        # The document stays, for its epoch: it fences writers of this version if it is created
        # again.
        while (state := self.state(version)) is not None and state.stage != DROPPED:
            self.replace(version, replace(state, position=None, stage=DROPPED))
        self.api.ask("DELETE", path_of(self.index(version)), allow=(404,))

    @contextmanager
    def read(self, version: int) -> Iterator[Contents]:
        self._check_version(version)
        api = self._connect()
        scroll = None
        try:
            since_s = time.monotonic()
            deadline_s = since_s + _READ_TIMEOUT_S
            while True:
                before = self.state(version)
                scroll, page = self._scroll(api, version)
                after = self.state(version)
                if before is None or after is None:
                    raise StoreRefused(f"{self.target.name} has no version {version} any more")
                is_at_rest = before.seq_no == after.seq_no
                if is_at_rest and before.stage != COMMITTED:
                    break
                api.ask("DELETE", "/_search/scroll", {"scroll_id": scroll}, allow=(404,))
                if not is_at_rest:
                    since_s = time.monotonic()
                elif time.monotonic() > since_s + _ABANDONED_S:  # its writer ended right there
                    self.refresh(version, api)
                    before = replace(before, stage=None)
                    scroll, page = self._scroll(api, version)
                    break
                if time.monotonic() > deadline_s:
                    raise StoreUnreachable(
                        f"{self.target.name} was never idle",
                        hint="it is idle while its pipeline waits for records, or is stopped",
                    )
            newest = -1 if before.position is None else before.position.batch
            yield Contents(before.position, _rows(api, scroll, page, before.fields, newest))
        finally:
            if scroll is not None:
                api.ask("DELETE", "/_search/scroll", {"scroll_id": scroll}, allow=(404,))
            api.close()

    def close(self) -> None:
        self.api.close()

    def index(self, version: int) -> str:
        return name_of(self.target, version, is_live=False)

    def state(self, version: int, api: OpenSearchApi | None = None) -> State | None:
        """As it is now: a GET does not wait for a refresh."""
        path = path_of(POSITIONS, "_doc", self.index(version))
        status, found = (api or self.api).ask("GET", path, allow=(404,))
        if status == 404 or not found.get("found"):
            return None
        stored = found["_source"]
        return State(
            stored["owner"],
            stored["epoch"],
            None if stored["position"] is None else Position.from_json(stored["position"]),
            fields_from_text(stored["fields"]),
            stored["stage"],
            found["_seq_no"],
            found["_primary_term"],
        )

    def replace(self, version: int, state: State, api: OpenSearchApi | None = None) -> State | None:
        """None if the document has changed since it was read; then nothing is done."""
        document = {
            "owner": state.owner,
            "epoch": state.epoch,
            "position": None if state.position is None else state.position.to_json().decode(),
            "fields": fields_to_text(state.fields),
            "stage": state.stage,
        }
        only = f"if_seq_no={state.seq_no}&if_primary_term={state.primary_term}"
        if state.seq_no < 0:
            only = "op_type=create"
        path = f"{path_of(POSITIONS, '_doc', self.index(version))}?{only}"
        status, answer = (api or self.api).ask("PUT", path, document, allow=(409,))
        if status == 409:
            return None
        return replace(state, seq_no=answer["_seq_no"], primary_term=answer["_primary_term"])

    def add_columns(self, version: int, fields: pa.Schema, api: OpenSearchApi) -> None:
        properties = mapping_of(fields, self._analyzer)
        path = path_of(self.index(version), "_mapping")
        api.ask("PUT", path, {"properties": properties})

    def refresh(self, version: int, api: OpenSearchApi) -> None:
        """Searches see what was written so far."""
        api.ask("POST", path_of(self.index(version), "_refresh"))

    def _connect(self) -> OpenSearchApi:
        return OpenSearchApi(*self._address)

    @property
    def _analyzer(self) -> str:
        return self.target.options.get("analyzer", "standard")

    def _versions(self) -> dict[int, bool]:
        """The existing indexes, and whether the alias points to them."""
        every = f"/{path_of(self.target.name)[1:]}__v*/_alias"
        _, found = self.api.ask("GET", every, allow=(404,))
        versions = {}
        for name, about in found.items():
            if match := re.fullmatch(r"(.*)__v(\d+)", name):
                is_own = match[1] == self.target.name and isinstance(about, dict)
                if is_own and "aliases" in about:
                    versions[int(match[2])] = self.target.name in about["aliases"]
        return versions

    def _make_index(self, version: int, fields: pa.Schema) -> None:
        versions = self._versions()
        if version in versions:
            self.add_columns(version, fields, self.api)
            return
        settings = {f"number_of_{name}": number for name, number in self._numbers.items()}
        body: dict[str, Any] = {
            "settings": {"refresh_interval": "-1", "gc_deletes": "1h", **settings},
            "mappings": {"dynamic": False, "properties": mapping_of(fields, self._analyzer)},
        }
        if version == 1 and True not in versions.values():
            body["aliases"] = {self.target.name: {}}
        self._create(self.index(version), body)

    def _make_positions(self) -> None:
        mappings = {"dynamic": False, "properties": {"owner": {"type": "keyword"}}}
        settings = {"number_of_shards": 1, "auto_expand_replicas": "0-1"}
        self._create(POSITIONS, {"settings": settings, "mappings": mappings})

    def _create(self, index: str, body: dict[str, Any]) -> None:
        status, answer = self.api.ask("PUT", path_of(index), body, allow=(400,))
        if status == 400 and answer["error"].get("type") != "resource_already_exists_exception":
            raise StoreRefused(f"the index {index} cannot be created", detail=reason_of(answer))

    def _scroll(self, api: OpenSearchApi, version: int) -> tuple[str, Any]:
        path = f"{path_of(self.index(version), '_search')}?scroll=10m"
        body = {"size": _PAGE_ROWS, "sort": ["_doc"], "version": True}
        _, page = api.ask("POST", path, body)
        return page["_scroll_id"], page

    def _check_owner(self, state: State | None) -> None:
        if state is not None and state.owner != self.target.owner:
            raise StoreRefused(
                f"{self.target.name} belongs to {state.owner}",
                detail=f"{self.target.owner} would write into it too",
                hint="give one of the two another name",
            )

    def _check_version(self, version: int) -> None:
        state = self.state(version)
        self._check_owner(state)
        if state is None or state.stage == DROPPED or version not in self._versions():
            raise StoreRefused(f"{self.target.name} has no version {version}")

    def _check_free(self, name: str) -> None:
        status, _ = self.api.ask("GET", path_of(name, "_alias"), allow=(404,))
        if status != 404:
            raise StoreRefused(
                f"there is an index or alias {name} already, which no pipeline wrote",
                hint="remove it, or write to another name",
            )


def _rows(
    api: OpenSearchApi, scroll: str, page: Any, fields: pa.Schema, newest: int
) -> Iterator[pa.RecordBatch]:
    while hits := page["hits"]["hits"]:
        if any(batch_of(hit["_version"]) > newest for hit in hits):
            raise StoreUnreachable(
                "another client has refreshed the index within a batch",
                hint="read again when the batch is written",
            )
        yield json_reading.rows([hit["_source"] for hit in hits], fields)
        _, page = api.ask("POST", "/_search/scroll", {"scroll": "10m", "scroll_id": scroll})


def _is_number(target: Target, name: str) -> bool:
    given = target.options.get(name)
    if given is not None and not given.isdecimal():
        raise ConfigError(f"{target.owner}: {name} is a number")
    return given is not None
