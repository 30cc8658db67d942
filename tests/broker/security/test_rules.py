"""Settings that do not go together, or would leave the door open."""

import pytest

from headwater.broker.security import rules
from headwater.errors import ConfigError
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker

TLS = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
SASL = {"authentication": "sasl"}
NETWORK = {"listen": "0.0.0.0:9092"}
OAUTH = {"oauth_jwks_file": "j", "oauth_issuer": "i", "oauth_audience": "a"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"listen": "[::1]:9092", "metrics_listen": "localhost:9093"},
        {"listen": "127.0.0.2:9092"},
        SASL,
        {**SASL, "sasl_mechanisms": ("PLAIN",)},
        {**SASL, **NETWORK},
        {**SASL, **NETWORK, **TLS, "sasl_mechanisms": ("PLAIN",)},
        {**SASL, **NETWORK, **TLS, **OAUTH, "sasl_mechanisms": ("OAUTHBEARER",)},
        {**NETWORK, **TLS, "authentication": "tls", "tls_client_ca": "ca.pem"},
        {**NETWORK, "allow_insecure_network": True},
        {"metrics_listen": "0.0.0.0:1", "allow_insecure_network": True},
    ],
)
def test_what_may_be(settings):
    rules.check(BrokerSettings(**settings))


@pytest.mark.parametrize(
    ("settings", "mistake"),
    [
        (NETWORK, "clients need not authenticate"),
        ({"listen": "kafka.example:9092"}, "clients need not authenticate"),
        ({"listen": "192.168.1.1:9092", **TLS}, "clients need not authenticate"),
        ({**SASL, **NETWORK, "sasl_mechanisms": ("PLAIN",)}, "PLAIN would send secrets"),
        ({"metrics_listen": "0.0.0.0:9093"}, "metrics_listen"),
        ({"tls_cert": "cert.pem"}, "belong together"),
        ({"tls_key": "key.pem"}, "belong together"),
        ({"tls_client_ca": "ca.pem"}, "needs TLS"),
        ({**TLS, "tls_client_ca": "ca.pem"}, "clients need not authenticate"),
        ({**TLS, "authentication": "tls"}, "whose certificates count"),
        ({**SASL, "sasl_mechanisms": ()}, "needs a mechanism"),
        (
            {**SASL, "sasl_mechanisms": ("OAUTHBEARER",)},
            "needs a key file, an issuer and an audience",
        ),
    ],
)
def test_what_may_not_be(tmp_path, settings, mistake):
    """Nothing is opened then, neither a port nor the log."""
    broker = InProcessBroker(str(tmp_path / "data"), BrokerSettings(**settings))
    with pytest.raises(ConfigError, match=mistake):
        broker.start()
    assert not (tmp_path / "data").exists()
