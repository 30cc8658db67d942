"""Personal columns of a capture's rows: every image, every rule beside them."""

import json

import pytest
from support.subjects.customers import customers

from headwater.capture.contract import UNAVAILABLE, Begin, Change, Column, Table
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, TableRefused
from headwater.settings import Secret

TOPIC = "shop.public.customers"
TABLE = Table(
    "public",
    "customers",
    (
        Column("id", "bigint", {"type": "int64"}, optional=False),
        Column("name", "text"),
        Column("email", "text"),
        Column("country", "text"),
    ),
    ("id",),
)
ANN = {"id": 42, "name": "Ann", "email": "a@x", "country": "CH"}


@pytest.fixture
def personal(tmp_path):
    return customers(tmp_path, TOPIC)


def shaped(personal, op, before=None, after=None, table=TABLE, **settings):
    chosen = CaptureSettings("shop", Secret("postgresql://x"), **settings)
    shaper = Shaper(chosen, "postgresql", "shop", personal)
    shaper.begin(Begin({}, "1", 1_700_000_000_000, {}))
    records = shaper.change(Change(table, op, before, after, 0, {}))
    return [(key and json.loads(key), value and json.loads(value)) for _, key, value, _ in records]


def opened(personal, row):
    return {
        name: json.loads(personal.keyring.decrypt(value, name))
        if isinstance(value, str) and value.startswith("hw1:")
        else value
        for name, value in row.items()
    }


def test_both_images_and_nothing_else(personal):
    ((key, value),) = shaped(personal, "u", ANN, {**ANN, "name": "Eve", "email": None})
    assert key == {"id": 42}
    assert value["before"]["country"] == "CH"
    for image in ("before", "after"):
        assert value[image]["name"].startswith("hw1:")
    assert opened(personal, value["before"]) == ANN
    assert opened(personal, value["after"]) == {**ANN, "name": "Eve", "email": None}


def test_a_delete_with_the_key_only(personal):
    (_, deleted), tombstone = shaped(personal, "d", {"id": 42})
    assert deleted["before"] == {"id": 42, "name": None, "email": None, "country": None}
    assert tombstone == ({"id": 42}, None)


def test_a_changed_id_takes_another_key(personal):
    records = shaped(personal, "u", ANN, {**ANN, "id": 43})
    deleted, created = records[0][1]["before"], records[2][1]["after"]
    assert deleted["name"].split(":")[1] != created["name"].split(":")[1]
    assert opened(personal, created) == {**ANN, "id": 43}


def test_a_value_that_the_log_left_out_stays_so(personal):
    ((_, value),) = shaped(personal, "u", None, {**ANN, "name": UNAVAILABLE})
    assert value["after"]["name"] == UNAVAILABLE
    assert opened(personal, value["after"])["email"] == "a@x"


def test_other_rules_come_first(personal):
    ((key, value),) = shaped(
        personal,
        "c",
        None,
        ANN,
        columns={
            "public.customers.id": "hash",
            "public.customers.name": "mask",
            "public.customers.email": "drop",
        },
        rows={"public.customers": "name = 'Ann'"},
    )
    assert "email" not in value["after"]
    assert opened(personal, value["after"])["name"] == "****"
    assert key["id"] != 42
    # Whose it is, is what the topic says: `headwater erase --subject customer:<hash>`.
    store = personal.keyring.store
    personal.flush()
    key_id = value["after"]["name"].split(":")[1]
    assert key_id in store.key_ids("customer", store.subject_hash("customer", key["id"]))


def test_schemas_and_transactions_beside_them(personal):
    records = shaped(personal, "c", None, ANN, schemas=True, transactions=True)
    value = records[1][1]
    assert opened(personal, value["payload"]["after"]) == ANN
    (row,) = [field for field in value["schema"]["fields"] if field["field"] == "after"]
    (name,) = [field for field in row["fields"] if field["field"] == "name"]
    assert name["type"] == "string"
    assert name["parameters"]["headwater.subject"] == "customer"


def test_rows_of_nobody_are_refused(personal):
    with pytest.raises(TableRefused, match="cannot be encrypted") as refused:
        shaped(customers_of(personal, "country"), "c", None, {**ANN, "country": None})
    assert "Ann" not in str(refused.value)


def customers_of(personal, id_field):
    from pathlib import Path

    return customers(Path(personal.places.key_store).parent, TOPIC, id_field=id_field)


def test_a_key_is_refused(personal):
    of_email = customers_of(personal, "email")
    table = Table("public", "customers", TABLE.columns, ("id", "name"))
    with pytest.raises(TableRefused, match="part of the key"):
        shaped(of_email, "c", None, ANN, table=table)


def test_statements_beside_encrypted_rows_are_refused(personal):
    with pytest.raises(ConfigError, match="include_query"):
        shaped(personal, "c", None, ANN, options={"include_query": "true"})


def test_documents_are_refused(personal):
    documents = Table("public", "customers", (Column("_id", "objectId"),), ("_id",), True)
    with pytest.raises(TableRefused, match="documents"):
        shaped(personal, "c", None, {"_id": 1, "name": "Ann"}, table=documents)


def test_misspelt_columns_are_a_mistake_before_the_first_run(personal, tmp_path):
    settings = CaptureSettings("shop", Secret("postgresql://x"))
    shaper = Shaper(settings, "postgresql", "shop", customers(tmp_path, TOPIC, fields=["nme"]))
    (mistake,) = shaper.check([TABLE])
    assert isinstance(mistake, ConfigError)
    assert "nme" in mistake.what
    with pytest.raises(TableRefused, match="no column nme"):
        shaper.check_table(TABLE, None)
