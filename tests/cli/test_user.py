"""`headwater user`, and how commands log in."""

import pytest
from support.certificates import Authority

from .conftest import running_broker

PASSWORD = "open, sesame"


@pytest.fixture
def secured(offline, tmp_path):
    """A broker that was set up as the guide says, and a command line that knows the admin."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("broker")
    data_dir = offline.cwd / "data"
    data_dir.mkdir()
    offline("user", "create", "admin", "--offline", "--data-dir", "data", stdin=PASSWORD + "\n")
    secure = ("--authentication", "sasl", "--super-users", "admin")
    files = ("--tls-cert", cert, "--tls-key", key)
    with running_broker(data_dir, *secure, *files) as (_, ready):
        offline.environment |= {
            "HEADWATER_BROKER__BOOTSTRAP": ready["listen"],
            "HEADWATER_CLIENT__TLS_CA": authority.ca,
            "HEADWATER_CLIENT__USERNAME": "admin",
            "HEADWATER_CLIENT__PASSWORD": PASSWORD,
        }
        yield offline


def names(cli):
    return [user["user"] for user in cli.json("user", "list")]


def test_from_nothing_to_a_secured_broker(secured):
    assert names(secured) == ["admin"]
    secured("user", "create", "alice", stdin="tea\n")
    secret = secured.cwd / "secret"
    secret.write_text("milk\n")
    secured("user", "create", "bob", "--password-file", "secret")
    assert names(secured) == ["admin", "alice", "bob"]
    assert "SCRAM-SHA-256, SCRAM-SHA-512" in secured("user", "list")
    secured("user", "passwd", "alice", stdin="coffee\n")

    def as_alice(password, code=0):
        settings = {"USERNAME": "alice", "PASSWORD": password, "SASL_MECHANISM": "SCRAM-SHA-512"}
        before = dict(secured.environment)
        secured.environment |= {
            f"HEADWATER_CLIENT__{key}": setting for key, setting in settings.items()
        }
        try:
            return secured.json("topic", "list") if code == 0 else secured.error("topic", "list")
        finally:
            secured.environment.clear()
            secured.environment |= before

    assert as_alice("coffee") == []
    refused = as_alice("tea", code=1)
    assert "error: the broker refuses the login of alice" in refused
    secured("user", "delete", "alice", "--yes")
    assert names(secured) == ["admin", "bob"]
    assert "the broker refuses the login of alice" in as_alice("coffee", code=1)


def test_commands_that_librdkafka_cannot_do_log_in_too(secured):
    secured("topic", "create", "t")
    secured("produce", "t", stdin="hello\n")
    assert secured("consume", "t", "-o", "start", "-n", "1") == "hello\n"
    state = secured.json("status")
    assert state["ready"]
    assert state["size_bytes"] > 0  # by DescribeLogDirs over a socket of our own


def test_who_is_there_already_is_not_made_again(secured):
    error = secured.error("user", "create", "admin", stdin="x\n")
    assert "there is a user admin already" in error
    assert "there is no user nobody" in secured.error("user", "delete", "nobody", "--yes")
    assert "there is no user nobody" in secured.error("user", "passwd", "nobody", stdin="x\n")
    assert "there is no password on stdin" in secured.error("user", "create", "x", stdin="\n")


def test_a_broker_that_is_not_what_the_client_expects(secured, tmp_path):
    (tmp_path / "other").mkdir()
    good = dict(secured.environment)
    secured.environment["HEADWATER_CLIENT__TLS_CA"] = Authority(tmp_path / "other").ca
    assert "is not to be trusted" in secured.error("topic", "list")
    secured.environment["HEADWATER_CLIENT__TLS_CA"] = "none.pem"
    assert "the files for TLS cannot be used" in secured.error("topic", "list", code=2)
    secured.environment.clear()
    secured.environment |= good
    secured.environment["HEADWATER_CLIENT__SASL_MECHANISM"] = "PLAIN"
    assert "the broker does not offer PLAIN" in secured.error("topic", "list")
    for name in ("TLS_CA", "USERNAME"):
        del secured.environment[f"HEADWATER_CLIENT__{name}"]
    assert "does it want TLS?" in secured.error("topic", "list")


def test_no_password_is_shown(secured):
    for arguments in (("doctor",), ("doctor", "--json"), ("status", "-v"), ("user", "list", "-v")):
        assert PASSWORD not in secured(*arguments)
    assert "(hidden)" in secured("doctor")
    secured.environment["HEADWATER_CLIENT__PASSWORD"] = "wrong secret"
    error = secured.error("topic", "list", "-v")
    assert "Traceback" in error
    assert "wrong secret" not in error


def test_a_password_must_come_from_somewhere(secured):
    del secured.environment["HEADWATER_CLIENT__PASSWORD"]
    assert "there is no password for admin" in secured.error("topic", "list", code=2)
    secret = secured.cwd / "secret"
    secured.environment["HEADWATER_CLIENT__PASSWORD_FILE"] = str(secret)
    assert "client.password_file cannot be read" in secured.error("topic", "list", code=2)
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o644)
    assert names(secured) == ["admin"]
    assert f"others can read {secret}" in secured("doctor")


def test_the_data_directory_of_a_running_broker_is_left_alone(secured):
    error = secured.error("user", "create", "x", "--offline", "--data-dir", "data", stdin="x\n")
    assert "another process uses this data directory" in error


def test_users_of_a_broker_that_does_not_run(offline):
    offline("user", "create", "a", "--offline", stdin="x\n")
    offline("user", "create", "b", "--offline", stdin="x\n")
    offline("user", "passwd", "b", "--offline", stdin="y\n")
    offline("user", "delete", "a", "--offline", "--yes")
    assert [user["user"] for user in offline.json("user", "list", "--offline")] == ["b"]
    assert "--data-dir is of use with --offline only" in offline.error(
        "user", "list", "--data-dir", "x", code=2
    )


def test_a_certificate_that_is_missing(offline, tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.issue("broker")
    options = ("--authentication", "tls", "--tls-client-ca", authority.ca)
    files = ("--tls-cert", cert, "--tls-key", key)
    with running_broker(tmp_path, *options, *files) as (_, ready):
        offline.environment["HEADWATER_CLIENT__TLS_CA"] = authority.ca
        error = offline.error("topic", "list", "-b", ready["listen"])
    assert "certificate required" in error
    assert "does it want a certificate (client.tls_cert)?" in error
