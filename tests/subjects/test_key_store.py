"""The key store: what is lost stays an error, what was dropped is gone, what is wrapped opens."""

import multiprocessing
import sqlite3
import sys
from pathlib import Path

import pytest
from support.subjects.customers import key_places

from headwater.errors import KeyStoreError, KeyStoreLost, SubjectErased
from headwater.subjects.key_store import KeyStore
from headwater.subjects.keyring import Keyring
from headwater.subjects.sealing import ERASED, Tampered
from headwater.subjects.settings import KeyPlaces

KMS = """
import base64, sys
data = base64.b64decode(sys.stdin.read())
if sys.argv[1] == "wrap":
    data = b"wrapped:" + data[::-1]
elif data.startswith(b"wrapped:"):
    data = data[8:][::-1]
else:
    sys.exit("not mine")
print(base64.b64encode(data).decode())
"""


@pytest.fixture
def places(tmp_path) -> KeyPlaces:
    return key_places(tmp_path)


def written(places: KeyPlaces, subject: str = "42", value: object = "Ann Smith") -> str:
    keyring = Keyring(KeyStore(places))
    token = keyring.encrypt("customer", subject, "name", value)
    keyring.flush()
    return token


def read(places: KeyPlaces, token: str, field: str = "name") -> bytes | None:
    return Keyring(KeyStore(places)).decrypt(token, field)


@pytest.mark.parametrize("value", ["Ann", "", 'Änne \u2028 \\ "x"', 42, 4.5, True, [1, "a"], {}])
def test_a_value_is_of_its_type_again(places, value):
    import orjson

    token = written(places, value=value)
    assert token.startswith("hw1:")
    assert "Ann" not in token
    assert orjson.loads(read(places, token)) == value


def test_the_same_value_gives_the_same_text_and_another_subject_or_field_another(places):
    token = written(places)
    assert written(places) == token
    assert written(places, subject="43") != token
    keyring = Keyring(KeyStore(places))
    assert keyring.encrypt("customer", "42", "email", "Ann Smith") != token


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_text_that_was_changed_does_not_open(places, at):
    token = written(places)
    prefix, key_id, sealed = token.split(":")
    other = "A" if sealed[at] != "A" else "B"
    changed = sealed[:at] + other + (sealed[at + 1 :] if at >= 0 else "")
    if at == -1:  # the last character has bits that count for nothing
        changed = sealed[:-6] + "AAAAAA"
    with pytest.raises(Tampered):
        read(places, f"{prefix}:{key_id}:{changed}")


def test_a_text_that_was_moved_does_not_open(places):
    of_42, of_43 = written(places), written(places, subject="43")
    with pytest.raises(Tampered):
        read(places, of_42, field="email")
    _, key_id, _ = of_43.split(":")
    with pytest.raises(Tampered):
        read(places, f"hw1:{key_id}:{of_42.split(':')[2]}")


def test_a_key_of_another_store_is_no_key(places, tmp_path):
    token = written(key_places(tmp_path / "other"))
    with pytest.raises(Tampered, match="none of this key store"):
        read(places, token)


def test_a_store_that_was_there_and_is_not_is_an_error(places):
    written(places)
    Path(places.key_store, "keys.sqlite").unlink()
    with pytest.raises(KeyStoreLost, match="is not there"):
        KeyStore(places)
    assert not Path(places.key_store, "keys.sqlite").exists()


def test_another_store_in_its_place_is_an_error(places, tmp_path):
    written(places)
    other = key_places(tmp_path / "other")
    written(other)
    Path(places.key_store).rename(tmp_path / "away")
    Path(other.key_store).rename(places.key_store)
    with pytest.raises(KeyStoreLost, match="another one"):
        KeyStore(places)


def test_a_store_that_vanishes_stops_who_has_it_open(places):
    keyring = Keyring(KeyStore(places))
    keyring.encrypt("customer", "42", "name", "Ann")
    keyring.flush()
    for file in Path(places.key_store).glob("keys.sqlite*"):
        file.unlink()
    for subject in ("42", "43"):  # one with a key in memory, and a new one
        with pytest.raises(KeyStoreLost):
            _encrypted_and_flushed(keyring, subject)


def _encrypted_and_flushed(keyring: Keyring, subject: str) -> None:
    keyring.encrypt("customer", subject, "name", "Bob")
    keyring.flush()


def test_the_root_key_is_private_and_needed(places):
    token = written(places)
    root = Path(places.key_file)
    assert root.stat().st_mode & 0o777 == 0o600
    root.chmod(0o640)
    with pytest.raises(KeyStoreError, match="read by others"):
        read(places, token)
    root.unlink()
    with pytest.raises(KeyStoreError, match="cannot be read"):
        read(places, token)


def test_the_root_key_of_another_store_does_not_open_this_one(places, tmp_path):
    token = written(places)
    other = key_places(tmp_path / "other")
    written(other)
    Path(places.key_file).write_bytes(Path(other.key_file).read_bytes())
    with pytest.raises(KeyStoreError, match="does not open"):
        read(places, token)


def test_a_damaged_store_is_an_error_and_not_an_exception_of_sqlite(places):
    written(places)
    Path(places.key_store, "keys.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(KeyStoreError, match="cannot be used"):
        KeyStore(places)


def test_the_store_has_neither_names_nor_plain_keys(places):
    written(places, subject="ann@example.com", value="Ann Smith")
    content = b"".join(file.read_bytes() for file in Path(places.key_store).glob("keys.sqlite*"))
    assert b"ann@example.com" not in content
    assert b"Ann Smith" not in content


def test_rotation_leaves_values_readable_and_the_old_root_key_useless(places):
    tokens = [written(places, subject=str(number)) for number in range(20)]
    old = Path(places.key_file).read_bytes()
    open_before = Keyring(KeyStore(places))
    assert KeyStore(places).rotate() == 20
    assert [read(places, token) for token in tokens] == [b'"Ann Smith"'] * 20
    assert written(places, subject="7") == tokens[7]
    open_before.refresh()  # a process that runs meanwhile
    assert open_before.decrypt(tokens[3], "name") == b'"Ann Smith"'
    Path(places.key_file).write_bytes(old)
    with pytest.raises(KeyStoreError, match="does not open"):
        read(places, tokens[0])


def test_a_rotation_that_ends_between_its_steps_can_be_done_again(places, monkeypatch):
    token = written(places)
    store = KeyStore(places)
    for step in (
        "headwater.subjects.key_store._wrap",
        "headwater.subjects.root_key.FileRootKey.end_rotation",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(step, _interrupted)
            with pytest.raises(InterruptedError):
                store.rotate()
        store = KeyStore(places)
        assert read(places, token) == b'"Ann Smith"'
    store.rotate()
    assert read(places, token) == b'"Ann Smith"'
    assert len(Path(places.key_file).read_bytes().split()) == 1


def _interrupted(*_: object) -> None:
    raise InterruptedError


def test_a_dropped_key_is_gone_from_the_file_and_is_never_made_again(places):
    tokens = [written(places, subject=str(number)) for number in range(30, 60)]
    token = tokens[12]
    store = KeyStore(places)
    database = Path(places.key_store, "keys.sqlite")
    (wrapped,) = (
        sqlite3.connect(database)
        .execute("select wrapped from data_keys where key_id = ?", (token.split(":")[1],))
        .fetchone()
    )
    assert wrapped in database.read_bytes()
    reader = Keyring(KeyStore(places))
    assert reader.decrypt(token, "name") == b'"Ann Smith"'
    subject = store.subject_hash("customer", "42")
    erasure, is_resumed = store.begin_erasure("customer", subject, {})
    assert erasure.key_ids == (token.split(":")[1],)
    assert not is_resumed
    for file in database.parent.glob("keys.sqlite*"):
        assert wrapped not in file.read_bytes()
    reader.refresh()
    assert reader.decrypt(token, "name") is None
    assert reader.encrypt("customer", "42", "name", "Ann") == ERASED
    with pytest.raises(SubjectErased):
        store.add([store.new_key("customer", subject)])
    assert read(places, ERASED) is None
    assert store.allow("customer", subject)
    assert read(places, written(places)) == b'"Ann Smith"'
    assert read(places, token) is None


def test_a_subject_that_is_erased_before_its_first_key_is_stored_is_not_written(places):
    keyring = Keyring(KeyStore(places))
    keyring.encrypt("customer", "42", "name", "Ann")
    other = KeyStore(places)
    other.begin_erasure("customer", other.subject_hash("customer", "42"), {})
    with pytest.raises(SubjectErased):
        keyring.flush()
    assert keyring.encrypt("customer", "42", "name", "Ann") == ERASED


def test_an_erasure_that_was_interrupted_goes_on(places):
    token = written(places)
    store = KeyStore(places)
    subject = store.subject_hash("customer", "42")
    first, _ = store.begin_erasure("customer", subject, {"t-0": 3})
    again, is_resumed = KeyStore(places).begin_erasure("customer", subject, {})
    assert is_resumed
    assert again.id == first.id
    assert again.key_ids == (token.split(":")[1],)
    assert again.records == {"t-0": 3}
    store.end_erasure(again, {"a": 1})
    assert store.last_erasure("customer", subject).receipt == {"a": 1}


def test_a_command_of_a_kms_wraps_the_keys(tmp_path):
    program = tmp_path / "kms.py"
    program.write_text(KMS)
    places = key_places(tmp_path)
    places = KeyPlaces(
        places.key_store, places.key_file, f"{sys.executable} {program}", places.marker
    )
    token = written(places)
    assert read(places, token) == b'"Ann Smith"'
    assert not Path(places.key_file).exists()
    KeyStore(places).rotate()
    assert read(places, token) == b'"Ann Smith"'
    program.write_text("import sys; sys.exit('the KMS is away')")
    with pytest.raises(KeyStoreError, match="the KMS is away"):
        read(places, token)


def _write_many(places: KeyPlaces, number: int) -> list[str]:
    keyring = Keyring(KeyStore(places))
    tokens = [keyring.encrypt("customer", str(one), "name", f"{number}.{one}") for one in range(50)]
    keyring.flush()
    return tokens


def test_processes_that_begin_at_once_share_one_store(places):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.starmap(_write_many, [(places, number) for number in range(3)])
    for number, tokens in enumerate(found):
        for one, token in enumerate(tokens):
            assert read(places, token) == f'"{number}.{one}"'.encode()
