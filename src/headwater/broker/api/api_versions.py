"""ApiVersions: which APIs are served in which versions. Versions 0–4.

An unknown version is answered in version 0 with UNSUPPORTED_VERSION and the list (KIP-511), which
the connection does itself. Client name and version (3+) must be of Kafka's form, as in Kafka.

The features of `_FEATURES` are reported as supported and finalized.
"""

import re

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseFinalizedFeatureKey,
    ApiVersionsResponseSupportedFeatureKey,
)

_FEATURES = {
    "group.version": 1,  # 1: KIP-848
    "share.version": 1,  # 1: KIP-932
    "transaction.version": 2,  # 2: KIP-890, an epoch for each transaction
}
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@serves(ApiVersionsRequest, first=0, last=4)
def api_versions(
    broker: Broker, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    response = broker.api_versions()
    response.supported_features = [
        ApiVersionsResponseSupportedFeatureKey(name=name, min_version=0, max_version=level)
        for name, level in _FEATURES.items()
    ]
    response.finalized_features_epoch = 0
    response.finalized_features = [
        ApiVersionsResponseFinalizedFeatureKey(
            name=name, max_version_level=level, min_version_level=level
        )
        for name, level in _FEATURES.items()
    ]
    return response
