"""Columns that are left out or made unrecognisable, rows that are left out."""

import dataclasses
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from headwater.capture.contract import UNAVAILABLE, Begin, Change, Column, SchemaChange, Table
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, TableRefused
from headwater.settings import Secret

USERS = Table(
    "public",
    "users",
    (
        Column("id", "integer", {"type": "int32"}, optional=False),
        Column("name", "text", {"type": "string"}, optional=False),
        Column("phone", "text", {"type": "string"}),
        Column("country", "text", {"type": "string"}),
        Column("age", "integer", {"type": "int32"}),
    ),
    ("id",),
)
ANNE = {"id": 1, "name": "Anne", "phone": "0301234", "country": "DE", "age": 40}


def make(connector="postgresql", **settings):
    return Shaper(CaptureSettings("shop", Secret("postgresql://x"), **settings), connector, "db")


def shape(shaper, op, before=None, after=None, table=USERS):
    """(key, op, before, after) of every record; a tombstone is (key, None, None, None)."""
    shaper.begin(Begin({}, "1", 0, {}))
    records = shaper.change(Change(table, op, before, after, 0, {"lsn": 1}))
    read = [(json.loads(key), json.loads(value or b"{}")) for _, key, value, _ in records]
    return [(key, value.get("op"), value.get("before"), value.get("after")) for key, value in read]


def _sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("mask", "****"),
        ("mask:8", "********"),
        ("null", None),
        ("truncate:3", "030"),
        ("truncate:100", "0301234"),
        ("hash", _sha256("pepper0301234")),
        ("hash:salt", _sha256("salt0301234")),
    ],
)
def test_a_column_is_made_unrecognisable_in_old_and_new_rows(action, expected):
    shaper = make(columns={"public.users.phone": action}, options={"hash_salt": "pepper"})
    shown = ANNE | {"phone": expected}
    assert shape(shaper, "c", None, ANNE) == [({"id": 1}, "c", None, shown)]
    assert shape(shaper, "u", ANNE, ANNE) == [({"id": 1}, "u", shown, shown)]
    assert shape(shaper, "d", ANNE)[0] == ({"id": 1}, "d", shown, None)
    (read,) = shaper.rows(USERS, [ANNE], "true")
    assert json.loads(read[2])["after"] == shown


def test_a_dropped_column_is_nowhere():
    shaper = make(columns={"*.phone": "drop"})
    shown = {name: value for name, value in ANNE.items() if name != "phone"}
    assert shape(shaper, "u", ANNE, ANNE) == [({"id": 1}, "u", shown, shown)]
    nothing = {"id": 1, "name": None, "country": None, "age": None}
    assert shape(shaper, "d", {"id": 1})[0] == ({"id": 1}, "d", nothing, None)


def test_null_stays_null_and_what_the_log_left_out_stays_marked():
    shaper = make(columns={"*.phone": "hash", "*.country": "mask", "*.name": "truncate:3"})
    row = ANNE | {"phone": UNAVAILABLE, "country": None, "name": UNAVAILABLE}
    assert shape(shaper, "c", None, row)[0][3] == row


def test_what_is_the_same_for_all_values_is_so_for_one_that_the_log_left_out():
    shaper = make(columns={"*.phone": "null", "*.country": "mask"})
    row = ANNE | {"phone": UNAVAILABLE, "country": UNAVAILABLE}
    assert shape(shaper, "c", None, row)[0][3] == ANNE | {"phone": None, "country": "****"}


def test_the_first_rule_that_matches_counts_and_patterns_are_exact():
    columns = {"public.users.p*": "mask", "*.phone": "drop", "*.user.*": "null", "*.nam": "drop"}
    assert shape(make(columns=columns), "c", None, ANNE)[0][3] == ANNE | {"phone": "****"}


def test_rules_have_no_regard_to_case():
    """A column that is added as PHONE is masked from its first row on."""
    shaper = make(columns={"*.Phone": "mask"})
    assert shape(shaper, "c", None, ANNE)[0][3] == ANNE | {"phone": "****"}
    wider = dataclasses.replace(USERS, columns=(*USERS.columns, Column("PHONE", "text")))
    shown = ANNE | {"phone": "****", "PHONE": "****"}
    assert shape(shaper, "c", None, ANNE | {"PHONE": "5"}, wider)[0][3] == shown


def renamed(table, old, new):
    columns = (dataclasses.replace(c, name=new) if c.name == old else c for c in table.columns)
    return dataclasses.replace(table, columns=tuple(columns))


def test_a_masked_column_that_may_have_been_renamed_stops_the_table():
    shaper = make(columns={"*.phone": "mask", "*.mobile": "mask"})
    with pytest.raises(TableRefused, match="no column phone any more") as refused:
        shaper.check_table(renamed(USERS, "phone", "fax"), USERS)
    assert "fax" in refused.value.detail
    shaper.check_table(renamed(USERS, "phone", "mobile"), USERS)  # has a rule, too
    shaper.check_table(renamed(USERS, "name", "surname"), USERS)  # had none
    dropped = tuple(column for column in USERS.columns if column.name != "phone")
    shaper.check_table(dataclasses.replace(USERS, columns=dropped), USERS)
    added = (*USERS.columns, Column("fax", "text"))
    shaper.check_table(dataclasses.replace(USERS, columns=added), USERS)


def test_a_new_table_has_every_column_that_a_rule_names():
    shaper = make(
        columns={"public.users.Phone": "mask", "public.users.x?": "mask", "public.others.y": "mask"}
    )
    shaper.check_table(USERS, None)
    with pytest.raises(TableRefused, match=r"public.users.Phone applies to no column"):
        shaper.check_table(renamed(USERS, "phone", "fax"), None)


def test_statements_are_not_published_beside_masked_columns():
    with pytest.raises(ConfigError, match="include_query would publish what `columns` hides"):
        make("mysql", columns={"*.phone": "mask"}, options={"include_query": "true"})
    make("mysql", columns={"*.phone": "mask"}, options={"include_query": "false"})


def test_a_salt_is_in_no_error():
    with pytest.raises(ConfigError) as refused:
        make(columns={"*.phone": "Hash:secret"})
    assert "secret" not in str(refused.value) + refused.value.hint


def test_a_hashed_key_is_the_same_hash_in_key_and_rows_and_for_every_change():
    shaper = make(columns={"*.id": "hash:s"})
    key = {"id": _sha256("s1")}
    assert shape(shaper, "c", None, ANNE) == [(key, "c", None, ANNE | key)]
    assert [record[0] for record in shape(shaper, "d", {"id": 1})] == [key, key]
    moved = shape(shaper, "u", {"id": 1}, ANNE | {"id": 2})
    assert [(record[0], record[1]) for record in moved] == [
        (key, "d"),
        (key, None),
        ({"id": _sha256("s2")}, "c"),
    ]
    assert json.loads(shaper.key_of(USERS, ANNE)) == key


@pytest.mark.parametrize("action", ["mask", "drop", "null", "truncate:1", "mask:3"])
def test_a_key_is_not_made_the_same_for_all_rows(action):
    shaper = make(columns={"*.id": action})
    with pytest.raises(TableRefused, match=r"public.users.id, which is part of the key"):
        shape(shaper, "c", None, ANNE)


def test_only_texts_are_truncated():
    with pytest.raises(TableRefused, match=r"public.users.age, which is no text"):
        make(columns={"*.age": "truncate:1"}).topic_of(USERS)
    document = {"type": "string", "name": "io.debezium.data.Json", "version": 1}
    table = dataclasses.replace(USERS, columns=(*USERS.columns, Column("j", "jsonb", document)))
    with pytest.raises(TableRefused, match=r"public.users.j, which is no text"):
        make(columns={"*.j": "truncate:1"}).topic_of(table)


def test_schemas_show_columns_as_the_rules_leave_them():
    shaper = make(schemas=True, columns={"*.age": "hash", "*.name": "null", "*.phone": "drop"})
    shaper.begin(Begin({}, "1", 0, {}))
    ((_, _, value, _),) = shaper.change(Change(USERS, "c", None, ANNE, 0, {"lsn": 1}))
    fields = json.loads(value)["schema"]["fields"][1]["fields"]
    assert [(field["field"], field["type"], field["optional"]) for field in fields] == [
        ("id", "int32", False),
        ("name", "string", True),
        ("country", "string", True),
        ("age", "string", True),
    ]
    (record,) = shaper.schema_change(SchemaChange("public.users", USERS), None)
    columns = json.loads(record[2])["tableChanges"][0]["table"]["columns"]
    assert [(column["name"], column["typeName"]) for column in columns] == [
        ("id", "integer"),
        ("name", "text"),
        ("country", "text"),
        ("age", "text"),
    ]


@pytest.mark.parametrize("action", ["masked", "mask:", "mask:x", "truncate", "drop:1", ""])
def test_an_unknown_rule_is_refused_when_the_settings_are_read(action):
    with pytest.raises(ConfigError, match="unknown rule for"):
        make(columns={"a.b.c": action})


def test_a_rule_that_applies_to_nothing_is_reported_before_the_start():
    shaper = make(columns={"public.user.phone": "mask", "*.name": "mask"}, rows={"x.y": "1 = 1"})
    assert [error.what for error in shaper.check([USERS])] == [
        "capture shop: the rule for public.user.phone applies to nothing",
        "capture shop: the rule for x.y applies to nothing",
    ]


@hypothesis_settings(deadline=None)  # the machine may be busy
@given(st.dictionaries(st.sampled_from(list(ANNE)), st.sampled_from(["hash", "mask", "drop"])))
def test_what_no_rule_names_is_unchanged(chosen):
    chosen.pop("id", None)
    shaper = make(columns={f"public.users.{name}": action for name, action in chosen.items()})
    ((_, _, _, after),) = shape(shaper, "c", None, ANNE)
    changed = {"hash": lambda value: _sha256(str(value)), "mask": lambda _: "****"}
    assert after == {
        name: changed[chosen[name]](value) if name in chosen else value
        for name, value in ANNE.items()
        if chosen.get(name) != "drop"
    }
    assert list(after) == [name for name in ANNE if chosen.get(name) != "drop"]


# ── rows ────────────────────────────────────────────────────────────────────────────────────────

GERMANS = {"public.users": "country = 'DE'"}
ANNA_FR = ANNE | {"country": "FR"}


def test_rows_that_do_not_meet_a_condition_are_left_out():
    shaper = make(rows=GERMANS)
    assert [r[1] for r in shape(shaper, "c", None, ANNE)] == ["c"]
    assert shape(shaper, "c", None, ANNA_FR) == []
    assert shape(shaper, "c", None, ANNE | {"country": None}) == []
    assert len(list(shaper.rows(USERS, [ANNE, ANNA_FR], "true"))) == 1


def test_a_row_that_no_longer_meets_the_condition_is_deleted():
    shaper = make(rows=GERMANS)
    assert shape(shaper, "u", ANNE, ANNA_FR) == [
        ({"id": 1}, "d", ANNE, None),
        ({"id": 1}, None, None, None),
    ]
    unknown = {"id": 1, "name": None, "phone": None, "country": None, "age": None}
    assert shape(shaper, "u", None, ANNA_FR)[0] == ({"id": 1}, "d", unknown, None)


def test_a_row_that_never_met_it_is_not_deleted_if_the_old_row_is_logged():
    shaper = make(rows=GERMANS)
    assert shape(shaper, "u", ANNA_FR, ANNA_FR | {"age": 41}) == []
    assert shape(shaper, "d", ANNA_FR) == []
    assert [r[1] for r in shape(shaper, "d", ANNE)] == ["d", None]
    assert [r[1] for r in shape(shaper, "d", {"id": 1})] == ["d", None]


def test_a_row_that_meets_it_now_is_created_and_its_old_self_is_not_shown():
    shaper = make(rows=GERMANS)
    assert shape(shaper, "u", ANNA_FR, ANNE) == [({"id": 1}, "c", None, ANNE)]
    assert shape(shaper, "u", ANNA_FR | {"id": 2}, ANNE) == [({"id": 1}, "c", None, ANNE)]
    assert shape(shaper, "u", ANNE, ANNE) == [({"id": 1}, "u", ANNE, ANNE)]
    unknown = ANNE | {"country": None}
    assert shape(shaper, "u", unknown, ANNE) == [({"id": 1}, "c", None, ANNE)]
    assert shape(shaper, "u", None, ANNE) == [
        ({"id": 1}, "u", None, ANNE)
    ]  # the old row is not in the change


def test_a_changed_key_that_leaves_the_condition_deletes_the_old_one():
    records = shape(make(rows=GERMANS), "u", {"id": 1}, ANNA_FR | {"id": 2})
    assert [(r[0], r[1]) for r in records] == [({"id": 1}, "d"), ({"id": 1}, None)]


def test_a_truncate_passes_any_condition():
    shaper = make(rows=GERMANS)
    shaper.begin(Begin({}, "1", 0, {}))
    assert len(shaper.change(Change(USERS, "t", None, None, 0, {}))) == 1


def test_a_condition_sees_what_a_rule_hides():
    shaper = make(rows=GERMANS, columns={"*.country": "drop"})
    assert "country" not in shape(shaper, "c", None, ANNE)[0][3]
    assert shape(shaper, "c", None, ANNA_FR) == []


def test_all_conditions_of_a_table_must_be_met():
    shaper = make(rows={"public.*": "age > 18", "*.users": "country = 'DE'"})
    assert len(shape(shaper, "c", None, ANNE)) == 1
    assert shape(shaper, "c", None, ANNE | {"age": 10}) == []
    assert shape(shaper, "c", None, ANNE | {"age": None}) == []
    assert shape(shaper, "c", None, ANNA_FR) == []


def test_a_condition_with_an_unknown_column_is_reported_before_the_start():
    (error,) = make(rows={"*.users": "city = 'Berlin'"}).check([USERS])
    assert "does not have: city" in error.what


# ── documents ───────────────────────────────────────────────────────────────────────────────────

PEOPLE = Table("app", "people", (Column("_id", "document"),), ("_id",), documents=True)


def test_documents_are_texts_and_their_fields_can_be_hidden():
    shaper = make("mongodb", columns={"app.people.phone": "drop", "*.name": "mask"})
    document = {"_id": {"$oid": "5f"}, "name": "Anne", "phone": "1", "other": 5}
    shown = {"_id": {"$oid": "5f"}, "name": "****", "other": 5}
    extra = {"updateDescription": {"updatedFields": {"phone": "1", "other": 5}}}
    shaper.begin(Begin({}, "1", 0, {}))
    ((_, key, value, _),) = shaper.change(Change(PEOPLE, "u", None, document, 0, {"ord": 3}, extra))
    value = json.loads(value)
    assert json.loads(key) == {"id": '{"$oid": "5f"}'}
    assert json.loads(value["after"]) == shown
    assert json.loads(value["updateDescription"]["updatedFields"]) == {"other": 5}
    assert (value["source"]["collection"], value["source"]["db"]) == ("people", "app")
    assert value["source"]["ord"] == 3
    (read,) = shaper.rows(PEOPLE, [document], "true")
    assert json.loads(json.loads(read[2])["after"]) == shown
    assert read[1] == key
    deleted, tombstone = shaper.change(
        Change(PEOPLE, "d", {"_id": {"$oid": "5f"}}, None, 1, {"ord": 4})
    )
    assert (deleted[1], tombstone[1:3]) == (key, (key, None))
    assert json.loads(deleted[2])["before"] is None


def described(shaper, updated, removed=(), truncated=()):
    extra = {
        "updateDescription": {
            "updatedFields": updated,
            "removedFields": list(removed),
            "truncatedArrays": [{"field": path, "newSize": 1} for path in truncated],
        }
    }
    shaper.begin(Begin({}, "1", 0, {}))
    ((_, _, value, _),) = shaper.change(Change(PEOPLE, "u", None, {"_id": 1}, 0, {"ord": 3}, extra))
    description = json.loads(value)["updateDescription"]
    updated = json.loads(description["updatedFields"])
    return updated, description["removedFields"], description["truncatedArrays"]


def document_of(shaper, document):
    (read,) = shaper.rows(PEOPLE, [document], "true")
    return json.loads(json.loads(read[2])["after"])


def test_a_field_of_a_document_within_a_document_has_its_path():
    shaper = make(
        "mongodb",
        columns={"app.people.home.street": "drop", "*.number": "mask", "app.people.born": "null"},
    )
    document = {
        "_id": 1,
        "home": {"street": "x", "city": {"$oid": "5f"}},
        "phones": [{"number": "1", "kind": "a"}, [{"number": 2}], 3],
        "born": {"$date": 5},
        "street": "y",
    }
    assert document_of(shaper, document) == {
        "_id": 1,
        "home": {"city": {"$oid": "5f"}},
        "phones": [{"number": "****", "kind": "a"}, [{"number": "****"}], 3],
        "born": None,
        "street": "y",
    }
    updated = {
        "home": {"street": "x", "city": "y"},
        "home.street": "x",
        "home.street.no": 5,
        "home.city": "y",
        "phones.0": {"number": "1"},
        "phones.1.number": "2",
        "phones.1.number.0": "2",
        "phones.2.kind": "a",
        "born": {"$date": 5},
    }
    assert described(shaper, updated, ["home.street", "phones.0.number", "x"], ["home.x"]) == (
        {
            "home": {"city": "y"},
            "home.city": "y",
            "phones.0": {"number": "****"},
            "phones.1.number": "****",
            "phones.2.kind": "a",
            "born": None,
        },
        ["x"],
        [{"field": "home.x", "size": 1}],
    )


def test_a_number_in_a_path_may_be_the_name_of_a_field():
    shaper = make("mongodb", columns={"app.people.years.2024.pay": "mask", "*.years.bonus": "mask"})
    years = {"2024": {"pay": 5, "bonus": 6}}
    assert document_of(shaper, {"_id": 1, "years": years})["years"]["2024"]["pay"] == "****"
    assert described(shaper, {"years.2024.pay": 5})[0] == {"years.2024.pay": "****"}
    assert described(shaper, {"years.2024": {"pay": 5}})[0] == {"years.2024": {"pay": "****"}}
    assert described(shaper, {"years.0": {"bonus": 5}})[0] == {"years.0": {"bonus": "****"}}
    assert described(shaper, {"years.2024": {"pay": 5, "bonus": 6}})[0] == {}  # both, or neither


def test_what_a_part_of_a_truncated_field_is_is_not_shown():
    shaper = make("mongodb", columns={"app.people.note": "truncate:20"})
    updated, removed, truncated = described(
        shaper, {"note.a": "x" * 40, "note": "y" * 40, "b": 1}, ["note.c"], ["note"]
    )
    assert (updated, removed, truncated) == ({"note": "y" * 20, "b": 1}, None, None)


@pytest.mark.parametrize("value", [["a" * 40], {"a": "b"}, 5])
def test_only_texts_of_documents_are_truncated(value):
    shaper = make("mongodb", columns={"app.people.note": "truncate:20"})
    with pytest.raises(TableRefused, match="a value that is no text"):
        document_of(shaper, {"_id": 1, "note": value})


def test_a_part_of_the_id_of_a_document_is_hashed_or_nothing():
    document = {"_id": {"ssn": "123", "year": 5}}
    shaper = make("mongodb", columns={"*.ssn": "hash"})
    assert document_of(shaper, document) == {"_id": {"ssn": _sha256("123"), "year": 5}}
    ((_, key, _, _),) = shaper.rows(PEOPLE, [document], "true")
    assert _sha256("123") in key.decode()
    assert shaper.key_of(PEOPLE, document) == key
    with pytest.raises(TableRefused, match=r"_id\.ssn, which is part of the key"):
        document_of(make("mongodb", columns={"*.ssn": "mask"}), document)


@pytest.mark.parametrize(
    ("pattern", "is_used"),
    [
        ("app.people.note", True),
        ("app.people.home.street", True),
        ("*.note", True),
        ("App.p*.note", True),
        ("*", True),
        ("app.people.", False),
        ("app.people", False),
        ("app.person.note", False),
        ("people.note", False),
    ],
)
def test_a_rule_that_can_apply_to_no_field_is_reported(pattern, is_used):
    shaper = make("mongodb", columns={pattern: "hash"})
    assert (not shaper.check([PEOPLE])) is is_used
    shaper.check_table(PEOPLE, None)  # its fields have not been seen yet


def test_there_are_no_conditions_on_documents():
    with pytest.raises(TableRefused, match="no conditions on documents"):
        make("mongodb", rows={"app.people": "_id = 1"}).topic_of(PEOPLE)
