"""Who may set off jobs. They start processes and use the stores' logins of the configuration, which
no broker guards; so whoever has signed in needs the right to alter the cluster. Where nobody signs
in, whoever reaches the console may (it listens on loopback).
"""

from typing import Final

from headwater.client.cluster import Cluster
from headwater.console.access import Access
from headwater.errors import RequestRefused
from headwater.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_ALTER: Final = 7  # of AclOperation; the answer has one bit for each


async def require_operator(access: Access) -> None:
    """Raises RequestRefused."""
    if access.user and not await access.ask(_may_alter):
        raise RequestRefused(
            f"{access.user} may not set off jobs",
            detail="CLUSTER_AUTHORIZATION_FAILED",
            hint=f"`headwater acl add {access.user} --allow alter,describe --cluster` grants it",
        )


def _may_alter(cluster: Cluster) -> bool:
    patience = cluster.patience("the broker does not answer")
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    answer = cluster.ask_any(request, DescribeClusterResponse, patience, first=0, last=1)
    operations = answer.cluster_authorized_operations
    return operations > 0 and bool(operations >> _ALTER & 1)
