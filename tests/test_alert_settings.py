"""Conditions of alerts: what they are, and where they are wrong."""

import pytest

from headwater import config
from headwater.alert_settings import Comparison, Condition, Select, parse_condition, parse_select


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lag(orders) > 10000", Condition("lag", "orders", ">", 10000)),
        ("lag_s( shop )>=5m", Condition("lag_s", "shop", ">=", 300)),
        ("disk_free() < 10GiB", Condition("disk_free", "", "<", 10 * 2**30)),
        ("certificate_days() <= 14", Condition("certificate_days", "", "<=", 14)),
        ("failing(revenue)", Condition("failing", "revenue", ">", 0)),
        ("dead_letters(orders) != 0", Condition("dead_letters", "orders", "!=", 0)),
        (
            "(SELECT count(*) FROM w.t WHERE (a = 1)) > 2",
            None,
        ),
        (
            "(select count(*) from w.t where a = 'x') >= 2",
            Condition("select", "select count(*) from w.t where a = 'x'", ">=", 2),
        ),
    ],
)
def test_conditions(text, expected):
    if expected is None:
        with pytest.raises(ValueError, match="a column compared"):
            parse_condition(text)
    else:
        assert parse_condition(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at character 1 of 0: a measure"),
        ("lga(orders) > 1", "at character 1 of 15: there is no measure lga; did you mean lag?"),
        ("lag() > 1", r"at character 5 of 9: lag\(NAME\)"),
        ("disk_free(x) > 1", r"disk_free\(\)"),
        ("lag(orders)", "at character 12 of 11: a comparison"),
        ("lag(orders) > many", "at character 15 of 18: a number"),
        ("lag(orders) > 1 and lag(x) > 2", "a comparison"),
        ("(SELECT sum(a) FROM w.t) > 1", "only SELECT count"),
        ("(SELECT count(*) FROM t) > 1", "only SELECT count"),
        ("(SELECT count(*) FROM w.t GROUP BY a) > 1", "only SELECT count"),
        ("(SELECT count(*) FROM w.t WHERE a = 1 OR b = 2) > 1", "a column compared"),
        ("(SELECT count(*) FROM w.t WHERE) > 1", "SELECT count"),
        ("(SELECT count(*) FROM w.t) > 20000", "up to 10,000"),
        ("(SELECT count(*) FROM t) > 1", r"FROM topic\) within 5m"),
        ("(SELECT count(*) FROM t) within 2d > 1", "at character 33 of 38: a duration of at most"),
        ("(SELECT count(*) FROM t) within 5 > 1", "at character 33 of 37: a duration such as"),
        ("(SELECT count(*) FROM t) within > 1", "within 5m > 10"),
        ("(SELECT count(*) FROM my-topic) within 5m > 1", "`my-topic`"),
    ],
)
def test_mistakes_say_where_they_are(text, said):
    with pytest.raises(ValueError, match=said):
        parse_condition(text)


def test_a_select_is_taken_apart():
    found = parse_select(
        "SELECT COUNT(*) FROM warehouse.orders WHERE state = 'stuck' AND total >= -5 AND a IS NULL"
    )
    assert found == Select(
        "warehouse",
        "orders",
        (
            Comparison(("state",), "=", "stuck", is_text=True),
            Comparison(("total",), ">=", "-5"),
            Comparison(("a",), "=", None),
        ),
    )


def test_a_select_about_records_of_a_topic():
    text = "(SELECT count(*) FROM shop.orders WHERE after.state = 'stuck') within 1h30m >= 20000"
    condition = parse_condition(text)
    assert (condition.within_s, condition.operator, condition.threshold) == (5400, ">=", 20000)
    assert parse_select(condition.argument, is_topic=True) == Select(
        "", "shop.orders", (Comparison(("after", "state"), "=", "stuck", is_text=True),)
    )
    for name in ("`my-topic`", '"my-topic"'):
        found = parse_condition(f"(SELECT count(*) FROM {name}) within 5m < 1")
        assert parse_select(found.argument, is_topic=True).table == "my-topic"


def test_the_configuration_names_the_place(tmp_path):
    (tmp_path / "headwater.toml").write_text(
        '[alert.lag]\nwhen = "lag(orders) >"\nfor = "1m"\n'
        '[alert.mail]\nwhen = "failing(x)"\nnotify = ["mailto:a@b.example"]\n'
        '[alert.odd]\nwhen = "failing(x)"\nnotify = ["pager:1"]\n'
    )
    mistakes = list(map(str, config.read(environ={}, cwd=str(tmp_path)).mistakes))
    assert len(mistakes) == 3
    assert "headwater.toml:2" in mistakes[0] or "line 2" in mistakes[0]
    assert "a comparison" in mistakes[0]
    assert any("mailto" in mistake and "kind email" in mistake for mistake in mistakes)
    assert any("alert.odd.notify = (hidden)" in mistake for mistake in mistakes)


def test_addresses_are_not_shown(tmp_path):
    (tmp_path / "headwater.toml").write_text(
        '[alert.lag]\nwhen = "lag(o) > 1"\nnotify = ["webhook:https://a.example/s,3cret", "log"]\n'
    )
    loaded = config.load(environ={}, cwd=str(tmp_path))
    assert loaded.alerts["lag"].receivers == ("webhook:https://a.example/s,3cret", "log")
    assert "3cret" not in repr((loaded.settings, loaded.alerts))


def test_for_is_a_duration(tmp_path):
    (tmp_path / "headwater.toml").write_text('[alert.lag]\nwhen = "lag(o) > 1"\nfor = "1m30s"\n')
    loaded = config.load(environ={"HEADWATER_ALERT__LAG__NOTIFY": "log"}, cwd=str(tmp_path))
    assert loaded.alerts["lag"].for_ == 90
    assert loaded.alerts["lag"].receivers == ("log",)
