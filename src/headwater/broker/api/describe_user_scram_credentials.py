"""DescribeUserScramCredentials: which users there are, and how passwords are stored. Version 0.

KIP-554. Reported are mechanism and iterations, never salt or hash. Without names (null or none) all
users are reported. A user who does not exist is RESOURCE_NOT_FOUND, one who is named twice
DUPLICATE_RESOURCE.
"""

from collections import Counter

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResponseCredentialInfo,
    DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult,
)
from headwater.protocol.scram import NUMBERS

_Result = DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult


@serves(DescribeUserScramCredentialsRequest, first=0, last=0)
def describe_user_scram_credentials(
    broker: Broker, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    if not broker.authorizer.allows(context, Operation.DESCRIBE, ResourceType.CLUSTER):
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="Cluster authorization failed.",
        )
    asked = Counter(user.name for user in request.users or ())
    names = asked or dict.fromkeys(broker.users.names(), 1)
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_described(broker, name, times) for name, times in names.items()],
    )


def _described(broker: Broker, name: str, times: int) -> _Result:
    if times > 1:
        return _Result(
            user=name,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message="the user is named more than once",
        )
    credentials = broker.users.credentials(name)
    if not credentials:
        return _Result(
            user=name,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message="there is no such user",
        )
    return _Result(
        user=name,
        error_message=None,
        credential_infos=[
            DescribeUserScramCredentialsResponseCredentialInfo(
                mechanism=NUMBERS[credential.mechanism], iterations=credential.iterations
            )
            for credential in credentials.values()
        ],
    )
