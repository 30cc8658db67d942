"""Who may set off jobs and see what they found. They start processes and use the stores' logins of
the configuration, which no broker guards; so whoever has signed in needs the right to alter the
cluster. Where nobody signs in, whoever reaches the console may (it listens on loopback).
"""

from typing import Final

from headwater.client.cluster import Cluster
from headwater.console.access import Access
from headwater.errors import RequestRefused
from headwater.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_AGE_S: Final = 10.0
_ALTER: Final = 7  # of AclOperation; the answer has one bit for each


async def is_operator(access: Access) -> bool:
    """Whether this user may see what jobs found: rows of stores, which no broker guards. Asked
    seldom.
    """
    if not access.user:
        return True
    return await access.shared.get("operator", lambda: access.ask(_may_alter), _AGE_S)


async def require_operator(access: Access, *, to_look: bool = False) -> None:
    """Raises RequestRefused."""
    may = is_operator(access) if to_look or not access.user else access.ask(_may_alter)
    if not await may:
        raise RequestRefused(
            f"{access.user} may not {'see' if to_look else 'set off'} jobs",
            detail="CLUSTER_AUTHORIZATION_FAILED",
            hint=f"`headwater acl add {access.user} --allow alter,describe --cluster` grants it",
        )


def _may_alter(cluster: Cluster) -> bool:
    patience = cluster.patience("the broker does not answer")
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    answer = cluster.ask_any(request, DescribeClusterResponse, patience, first=0, last=1)
    operations = answer.cluster_authorized_operations
    return operations > 0 and bool(operations >> _ALTER & 1)
