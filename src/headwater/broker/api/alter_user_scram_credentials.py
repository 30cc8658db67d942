"""AlterUserScramCredentials: sets and removes passwords of users (KIP-554). Version 0.

A client sends the salted hash, never the password; what is stored of it is enough to check a
password, also one that comes by PLAIN, and not enough to log in with. The change is durable when
the answer comes, and counts for every login that is not over by then. Connections that were opened
with a password that was removed are ended, except the one that asked; those of a user whose
password was changed stay open, as with Kafka (which ends neither). A user who
is named twice is DUPLICATE_RESOURCE, a credential to remove that does not exist
RESOURCE_NOT_FOUND, an empty name or fewer than 4096 or more than 16384 iterations
UNACCEPTABLE_CREDENTIAL, an unknown mechanism UNSUPPORTED_SASL_MECHANISM; the other users of the
request are changed all the same.

Needs ALTER on the cluster; for a user in `super_users` the client has to be one of them, else that
user is CLUSTER_AUTHORIZATION_FAILED (in Kafka a client that may ALTER the cluster can become any
user).

Deviations: names have up to 255 characters, salts up to 256 bytes.
"""

from collections import Counter

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.security.users import MAX_NAME_CHARACTERS
from headwater.broker.topic_changes import CHANGE_ERRORS, refusal
from headwater.protocol import scram
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    AlterUserScramCredentialsRequestScramCredentialUpsertion,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResponseAlterUserScramCredentialsResult,
)
from headwater.protocol.scram import Credential

MAX_SALT_BYTES = 256
_MECHANISMS = {number: name for name, number in scram.NUMBERS.items()}
_Deletion = AlterUserScramCredentialsRequestScramCredentialDeletion
_Upsertion = AlterUserScramCredentialsRequestScramCredentialUpsertion
_Result = AlterUserScramCredentialsResponseAlterUserScramCredentialsResult


@serves(AlterUserScramCredentialsRequest, first=0, last=0)
async def alter_user_scram_credentials(
    broker: Broker, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    changes: list[_Deletion | _Upsertion] = [*request.deletions, *request.upsertions]
    if not broker.authorizer.allows(context, Operation.ALTER, ResourceType.CLUSTER):
        refused = {
            change.name: _Result(
                user=change.name,
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                error_message="Cluster authorization failed.",
            )
            for change in changes
        }
        return AlterUserScramCredentialsResponse(results=list(refused.values()))
    results = await broker.to_the_end(_alter_all(broker, changes, context))
    if request.deletions:
        broker.when_users_removed(context.connection)
    return AlterUserScramCredentialsResponse(results=results)


async def _alter_all(
    broker: Broker, changes: list[_Deletion | _Upsertion], context: RequestContext
) -> list[_Result]:
    times_named = Counter(change.name for change in changes)
    results: dict[str, _Result] = {}
    accepted: dict[str, dict[str, Credential | None]] = {}
    for change in changes:
        if change.name in results:
            continue
        result = results[change.name] = _Result(user=change.name, error_message=None)
        try:
            if times_named[change.name] > 1:
                raise ApiError(ErrorCode.DUPLICATE_RESOURCE, "the user is named more than once")
            if not broker.authorizer.allows_credentials_of(context, change.name):
                raise ApiError(
                    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                    "only a super user changes the password of a super user",
                )
            accepted[change.name] = _checked(broker, change)
        except ApiError as error:
            result.error_code, result.error_message = refusal(error)
    if accepted:
        try:
            await broker.users.put(accepted)
        except CHANGE_ERRORS as error:
            for name in accepted:
                results[name].error_code, results[name].error_message = refusal(error)
    return list(results.values())


def _checked(broker: Broker, change: _Deletion | _Upsertion) -> dict[str, Credential | None]:
    """The change, by mechanism; raises the error code if it is refused."""
    if not 1 <= len(change.name) <= MAX_NAME_CHARACTERS or "\0" in change.name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "a name has 1 to 255 characters")
    mechanism = _MECHANISMS.get(change.mechanism)
    if mechanism is None:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "unknown SCRAM mechanism")
    if isinstance(change, _Deletion):
        if mechanism not in broker.users.credentials(change.name):
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "there is no such credential")
        return {mechanism: None}
    if not scram.MIN_ITERATIONS <= change.iterations <= scram.MAX_ITERATIONS:
        raise ApiError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"iterations lie between {scram.MIN_ITERATIONS} and {scram.MAX_ITERATIONS}",
        )
    salt, salted = bytes(change.salt), bytes(change.salted_password)
    if not 1 <= len(salt) <= MAX_SALT_BYTES or not 1 <= len(salted) <= MAX_SALT_BYTES:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "a salt or hash of unknown length")
    return {mechanism: scram.credential_of(mechanism, salted, salt, change.iterations)}
