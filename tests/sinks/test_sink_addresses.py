"""Addresses and secrets that are wrong: an error of ours, which does not show them."""

import traceback

import pytest

from headwater.errors import ConfigError, HeadwaterError
from headwater.settings import Secret
from headwater.sinks.contract import Log, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

WRONG = "pa55" + "word"  # not as it stands in this line, which a traceback shows
MAIL = {"from": "a@example.org", "to": "b@example.org", "subject": "s"}


def store(kind, url, **options):
    target = Target("shop", "orders", ("id",), MAIL if kind == "email" else {})
    return store_of(SinkSettings("it", kind, Secret(url), options=options), target, Log("[::1]:1"))


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [("postgres", "postgresql"), ("mysql", "mysql"), ("redis", "redis"), ("webhook", "https"),
     ("opensearch", "https"), ("email", "smtps")],
)  # fmt: skip
@pytest.mark.parametrize("rest", ["user:{}#x@127.0.0.1", "user:{}@[::1", "user:x@127.0.0.1:{}"])
def test_a_wrong_address_is_not_shown(kind, scheme, rest):
    with pytest.raises(HeadwaterError) as caught:
        store(kind, f"{scheme}://{rest.format(WRONG)}/shop").check()
    error = caught.value
    assert WRONG not in f"{error} {error.detail} {error.hint}"
    assert WRONG not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("token", ["t0ken\r\nX-Other: 1", "t0kän"])
def test_a_token_that_is_no_header_is_not_sent(token):
    with pytest.raises(ConfigError, match="bearer_token") as caught:
        store("webhook", "https://127.0.0.1", bearer_token=token)
    assert "t0k" not in str(caught.value)
