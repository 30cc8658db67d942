"""The right to start jobs and to see their results.

Jobs start processes and use the stores' logins of the configuration, which no broker guards; so a
signed-in user needs a right of its own: DELETE on the group `headwater.operators`. There is no such
group; its name stands for the right, as Kafka has no resource types of ours, and every Kafka
reports what a user may do with a group. DELETE, because consumers are often allowed to read all
groups. A right on the cluster would be too much: a user with ALTER may also change ACLs and users.

Without sign-in, every client that reaches the console has the right (it listens on loopback).
"""

import shlex
from typing import Final

from headwater.client.cluster import GROUP, Cluster
from headwater.console.web.access import Access
from headwater.errors import RequestRefused
from headwater.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

OPERATORS: Final = "headwater.operators"
_AGE_S: Final = 10.0
_DELETE: Final = 6  # of AclOperation; the answer has one bit for each


async def is_operator(access: Access) -> bool:
    """Whether this user may see what jobs found: rows of stores, which no broker guards. Cached
    for some seconds.
    """
    if not access.user:
        return True
    return await access.shared.get("operator", lambda: access.ask(_may_operate), _AGE_S)


async def require_operator(access: Access, *, to_look: bool = False) -> None:
    """Raises RequestRefused."""
    may = is_operator(access) if to_look or not access.user else access.ask(_may_operate)
    if not await may:
        user = shlex.quote(access.user)
        raise RequestRefused(
            f"{access.user} may not {'see' if to_look else 'start'} jobs",
            detail="GROUP_AUTHORIZATION_FAILED",
            hint=f"`headwater acl add {user} --allow delete --group {OPERATORS}` grants it",
        )


def _may_operate(cluster: Cluster) -> bool:
    patience = cluster.patience("the broker does not answer")
    request = DescribeGroupsRequest(groups=[OPERATORS], include_authorized_operations=True)
    try:
        answer = cluster.ask_coordinator(
            OPERATORS,
            request,
            DescribeGroupsResponse,
            patience,
            first=3,
            last=5,  # from 6 on a group that there is not is an error
            code_of=lambda answer: answer.groups[0].error_code,
            kind=GROUP,
        )
    except RequestRefused:  # it may not even see the group
        return False
    (group,) = answer.groups
    operations = 0 if group.error_code else group.authorized_operations
    return operations > 0 and bool(operations >> _DELETE & 1)
