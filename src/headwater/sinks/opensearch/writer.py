"""Writes batches into an OpenSearch index; store.py explains what makes that safe."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import Fenced, RowRefused, StoreUnreachable
from headwater.sinks.contract import OP, Batch, Position, Refuse, Target, Writer, is_applied
from headwater.sinks.opensearch.http_api import OpenSearchApi, path_of, reason_of
from headwater.sinks.rows import json_text
from headwater.sinks.rows.documents import Documents, documents_of
from headwater.sinks.rows.row_validation import shown
from headwater.sinks.rows.schema_evolution import evolved

# Stages of a batch. Searches see, while WRITING, the stored position; when COMMITTED, that or the
# one before; None: the stored position, and no batch is in flight.
WRITING, COMMITTED = "writing", "committed"
DROPPED: Final = "dropped"  # in place of a stage
_BATCH_BITS: Final = 40
_REQUEST_BYTES: Final = 8 << 20
_PAGE_ROWS: Final = 5000
_LONGEST_ID_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class State:
    """A version's document of the positions, with the sequence number to replace exactly this."""

    owner: str
    epoch: int
    position: Position | None
    fields: pa.Schema
    stage: str | None
    seq_no: int
    primary_term: int


class Positions(Protocol):
    """The part of the store that a writer uses."""

    target: Target

    def index(self, version: int) -> str: ...
    def state(self, version: int, api: OpenSearchApi | None = None) -> State | None: ...
    def replace(
        self, version: int, state: State, api: OpenSearchApi | None = None
    ) -> State | None: ...
    def add_columns(self, version: int, fields: pa.Schema, api: OpenSearchApi) -> None: ...
    def refresh(self, version: int, api: OpenSearchApi) -> None: ...


class OpenSearchWriter(Writer):
    def __init__(self, store: Positions, api: OpenSearchApi, version: int, state: State) -> None:
        self.position = state.position
        self._store, self._api, self._version, self._epoch = store, api, version, state.epoch
        self._index = store.index(version)

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        state = self._store.state(self._version, self._api)
        if state is None or state.epoch != self._epoch or state.stage == DROPPED:
            raise self._fenced()
        if is_applied(state.position, batch):
            return
        columns = [name for name in batch.rows.column_names if name != OP]
        fields = evolved(state.fields, batch.rows.select(columns).schema).fields
        key = self._store.target.key
        documents = documents_of(batch.rows, key, fields, refuse, (0, _LONGEST_ID_BYTES - 1))
        if fields != state.fields:
            self._store.add_columns(self._version, fields, self._api)
        if state.stage == COMMITTED:
            self._store.refresh(self._version, self._api)
        state = self._to(state, stage=WRITING)
        self._write(documents, batch, refuse)
        state = self._to(state, position=batch.position(), fields=fields, stage=COMMITTED)
        self.position = batch.position()
        self._store.refresh(self._version, self._api)
        self._to(state, stage=None)

    def close(self) -> None:
        self._api.close()

    def _to(self, state: State, **changes: Any) -> State:
        """Raises Fenced if another writer has changed it."""
        replaced = self._store.replace(self._version, replace(state, **changes), self._api)
        if replaced is None:
            raise self._fenced()
        return replaced

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another process writes version {self._version} of {self._store.target.name} now",
            detail=f"this process had epoch {self._epoch}",
        )

    def _write(self, documents: Documents, batch: Batch, refuse: Refuse | None) -> None:
        version = version_of(self._epoch, batch.id)
        if documents.clears:
            for ids in self._all_ids():
                self._bulk(_deletes(ids, version), None)
        self._bulk(_deletes(_never_empty(documents.deletes), version), None)
        ids = _never_empty(documents.ids)
        if not self._store.target.key:  # the same ids whenever the batch is written again
            numbers = pa.array(np.arange(len(documents.rows))).cast(pa.large_string())
            batch_id = pa.scalar(str(batch.id), pa.large_string())
            ids = pc.binary_join_element_wise(batch_id, numbers, pa.scalar("-", pa.large_string()))

        def refused(at: int, answer: Any) -> RowRefused:
            reason = reason_of(answer)
            column = re.search(r"field \[([^\]]+)\]", reason)
            row = shown(documents.rows.slice(at, 1))[0]
            return RowRefused(
                "OpenSearch does not take a row", row=row, column=column[1] if column else "",
                detail=reason,
            )  # fmt: skip

        errors = self._bulk(_upserts(ids, documents.documents, version), refused)
        if errors:
            if refuse is None:
                raise errors[0]
            refuse(errors)

    def _bulk(
        self, actions: pa.Array, refused: Callable[[int, Any], RowRefused] | None
    ) -> list[RowRefused]:
        """Returns the rows that OpenSearch will never accept."""
        errors: list[RowRefused] = []
        wanted = "filter_path=errors,items.*.status,items.*.error"
        for first, content in _requests(actions):
            _, answer = self._api.ask("POST", f"{path_of(self._index, '_bulk')}?{wanted}", content)
            if not answer["errors"]:
                continue
            for number, item in enumerate(answer["items"]):
                [result] = item.values()
                if "error" not in result:
                    continue
                if result["status"] == 409:
                    raise self._fenced()
                if result["status"] != 400 or refused is None:
                    raise StoreUnreachable(
                        "OpenSearch did not write all rows", detail=reason_of(result)
                    )
                errors.append(refused(first + number, result))
        return errors

    def _all_ids(self) -> Iterator[pa.Array]:
        path = f"{path_of(self._index, '_search')}?scroll=10m"
        _, page = self._api.ask(
            "POST", path, {"size": _PAGE_ROWS, "sort": ["_doc"], "_source": False}
        )
        while hits := page["hits"]["hits"]:
            yield pa.array([hit["_id"] for hit in hits], pa.large_string())
            again = {"scroll": "10m", "scroll_id": page["_scroll_id"]}
            _, page = self._api.ask("POST", "/_search/scroll", again)
        scroll = {"scroll_id": page["_scroll_id"]}
        self._api.ask("DELETE", "/_search/scroll", scroll, allow=(404,))


def version_of(epoch: int, batch: int) -> int:
    """The external version: any batch of a later epoch is newer."""
    return (epoch << _BATCH_BITS) + batch


def batch_of(version: int) -> int:
    return version & ((1 << _BATCH_BITS) - 1)


def _never_empty(ids: pa.Array) -> pa.Array:
    """OpenSearch has no empty id: it, and any that might be taken for it, gets 0x01 in front."""
    needs = pc.or_(pc.equal(ids, ""), pc.starts_with(ids, "\x01"))
    one, nothing = (pa.scalar(text, pa.large_string()) for text in ("\x01", ""))
    return pc.if_else(needs, pc.binary_join_element_wise(one, ids, nothing), ids)


def _upserts(ids: pa.Array, documents: pa.Array, version: int) -> pa.Array:
    binary = pa.large_binary()
    line = pa.scalar(b"\n", binary)
    heads = _heads("index", ids, version)
    return pc.binary_join_element_wise(heads, documents, line, pa.scalar(b"", binary))


def _deletes(ids: pa.Array, version: int) -> pa.Array:
    return _heads("delete", ids, version)


def _heads(action: str, ids: pa.Array, version: int) -> pa.Array:
    begin = f'{{"{action}":{{"version":{version},"version_type":"external_gte","_id":'
    return json_text.joined(len(ids), [(begin.encode(), ids)], b"}}\n")


def _requests(actions: pa.Array) -> Iterator[tuple[int, bytes]]:
    """Chunks of some megabytes, each with the number of its first action."""
    _, offsets, data = actions.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(actions) + 1, actions.offset * 8)
    first = 0
    while first < len(actions):
        end = int(np.searchsorted(bounds, bounds[first] + _REQUEST_BYTES, side="right")) - 1
        end = min(max(end, first + 1), len(actions))
        yield first, bytes(memoryview(data)[bounds[first] : bounds[end]])
        first = end
