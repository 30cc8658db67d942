"""What can be set in [schemas]. Imported with the configuration, so it stays light."""

from dataclasses import dataclass

from headwater.settings import Secret, SecretKind, setting, text, url


@dataclass(frozen=True, slots=True)
class SchemasSettings:
    """The [schemas] section: where the schemas of records are looked up."""

    url: str | None = setting(
        None,
        url,
        "Address of a schema registry, for example `http://registry:8081`. Without it schemas are"
        " read from the topic `_schemas` of the broker, where the gateway's registry stores them.",
    )
    username: str | None = setting(None, text, "User at that registry, if it wants one.")
    password: Secret | None = setting(  # noqa: RUF009 (as all of them)
        None, SecretKind(text), "Password of `username`."
    )
