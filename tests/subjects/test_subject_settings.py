"""[subject.NAME]: what it says, and what is a mistake."""

import pytest

from headwater import config

GOOD = '[subject.customer]\ntopics = { "shop.public.c" = { id = "id", personal = ["name"] } }\n'


def read(tmp_path, text, **environ):
    (tmp_path / "headwater.toml").write_text(text)
    return config.read(path=str(tmp_path / "headwater.toml"), environ=environ)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        '[subject.customer.topics.shop.public.c]\nid = "id"\npersonal = ["name"]\n',
        '[subject.customer.topics]\n"shop.public.c" = { id = "id", personal = ["name"] }\n',
    ],
)
def test_topics_with_and_without_quotes(tmp_path, text):
    loaded = read(tmp_path, text)
    assert not loaded.mistakes
    (topic,) = loaded.subject_kinds["customer"].topics.items()
    assert (topic[0], topic[1].id, topic[1].personal) == ("shop.public.c", "id", ("name",))


def test_from_the_environment(tmp_path):
    given = '{"t": {"id": "id", "personal": ["name"]}}'
    loaded = read(tmp_path, "", HEADWATER_SUBJECT__CUSTOMER__TOPICS=given)
    assert not loaded.mistakes
    assert list(loaded.subject_kinds["customer"].topics) == ["t"]


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ("3", "a table such as"),
        ("{}", "a table such as"),
        ('{ t = "name" }', "a table such as"),
        ('{ t = { personal = ["name"] } }', "the field that names the subject"),
        ('{ t = { id = "id" } }', "a list of fields"),
        ('{ t = { id = "id", personal = [] } }', "a list of fields"),
        ('{ t = { id = "id", personal = ["id"] } }', "an id that is not personal"),
        ('{ t = { id = "id", personal = ["a"], fields = 1 } }', "not fields"),
    ],
)
def test_mistakes(tmp_path, topics, expected):
    (mistake,) = read(tmp_path, f"[subject.customer]\ntopics = {topics}\n").mistakes
    assert expected in mistake.expected


def test_messages_that_nobody_encrypts_are_a_mistake(tmp_path):
    text = GOOD + (
        '[gateway]\nlisten = "127.0.0.1:0"\n'
        '[gateway.zeromq.in]\nsocket = "pull"\ntopic = "shop.public.c"\naddress = "tcp://127.0.0.1:1"'
    )
    assert any("personal fields" in mistake.read for mistake in read(tmp_path, text).mistakes)


def test_where_keys_are(tmp_path):
    default = read(tmp_path, GOOD).key_places()
    assert default.key_store == str(tmp_path / ".headwater" / "subjects")
    assert default.key_file == str(tmp_path / ".headwater" / "subjects" / "root.key")
    chosen = read(
        tmp_path, '[subjects]\nkey_store = "keys"\nkey_file = "/secret/root"'
    ).key_places()
    assert (chosen.key_store, chosen.key_file) == (str(tmp_path / "keys"), "/secret/root")
