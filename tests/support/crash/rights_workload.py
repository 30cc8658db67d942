"""Users, ACLs and quotas that come and go, and the model of them."""

from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasRequestOpData,
)
from headwater.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    AlterUserScramCredentialsRequestScramCredentialUpsertion,
)
from headwater.protocol.messages.create_acls import CreateAclsRequest, CreateAclsRequestAclCreation
from headwater.protocol.messages.delete_acls import (
    DeleteAclsRequest,
    DeleteAclsRequestDeleteAclsFilter,
)
from headwater.protocol.messages.describe_acls import DescribeAclsRequest
from headwater.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from headwater.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from support.crash.workloads import Worker

ANY, LITERAL, ALLOW, SCRAM_SHA_256 = 1, 3, 3, 1
NAMES = 30
QUOTA = "producer_byte_rate"


class RightsWorker(Worker):
    """One change after the other, each repeated until it is answered."""

    def __init__(self, address: str, name: str, seed: int) -> None:
        super().__init__(address, name, seed)
        self.acls: set[str] = set()  # names of topics
        self.users: dict[str, int] = {}  # name -> iterations
        self.quotas: dict[str, float] = {}  # client id -> bytes per second

    def step(self) -> None:
        name = f"name-{self.chance.randrange(NAMES)}"
        self.chance.choice([self._change_acl, self._change_user, self._change_quota])(name)

    # ── changes ───────────────────────────────────────────────────────────────────────────────

    def _change_acl(self, name: str) -> None:
        if name in self.acls:
            which = DeleteAclsRequestDeleteAclsFilter(
                resource_type_filter=ResourceType.TOPIC, resource_name_filter=name,
                principal_filter=None, host_filter=None, operation=ANY, permission_type=ANY,
            )  # fmt: skip
            (answer,) = self.client.ask(DeleteAclsRequest(filters=[which]), 3).filter_results
            self.acls.remove(name)
        else:
            acl = CreateAclsRequestAclCreation(
                resource_type=ResourceType.TOPIC, resource_name=name,
                resource_pattern_type=LITERAL, principal="User:somebody", host="*",
                operation=Operation.READ, permission_type=ALLOW,
            )  # fmt: skip
            (answer,) = self.client.ask(CreateAclsRequest(creations=[acl]), 3).results
            self.acls.add(name)
        assert answer.error_code == 0, answer

    def _change_user(self, name: str) -> None:
        # "Not found": deleted, but the answer was lost, and so it was asked for again.
        expected = {0}
        if name in self.users and self.chance.random() < 0.5:
            deletion = AlterUserScramCredentialsRequestScramCredentialDeletion(
                name=name, mechanism=SCRAM_SHA_256
            )
            request = AlterUserScramCredentialsRequest(deletions=[deletion])
            expected.add(ErrorCode.RESOURCE_NOT_FOUND)
            del self.users[name]
        else:
            self.users[name] = 4096 + self.steps % 1000
            put = AlterUserScramCredentialsRequestScramCredentialUpsertion(
                name=name, mechanism=SCRAM_SHA_256, iterations=self.users[name],
                salt=b"salt", salted_password=bytes(32),
            )  # fmt: skip
            request = AlterUserScramCredentialsRequest(upsertions=[put])
        (answer,) = self.client.ask(request, 0).results
        assert answer.error_code in expected, answer

    def _change_quota(self, name: str) -> None:
        is_removed = name in self.quotas and self.chance.random() < 0.5
        value = 0.0 if is_removed else 1e6 + self.steps
        entity = AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=name)
        change = AlterClientQuotasRequestOpData(key=QUOTA, value=value, remove=is_removed)
        entry = AlterClientQuotasRequestEntryData(entity=[entity], ops=[change])
        (answer,) = self.client.ask(AlterClientQuotasRequest(entries=[entry]), 1).entries
        assert answer.error_code == 0, answer
        if is_removed:
            del self.quotas[name]
        else:
            self.quotas[name] = value

    # ── looking ───────────────────────────────────────────────────────────────────────────────

    def check(self, client, admin: str) -> None:
        """Compares with what the broker says, while nothing is on its way."""
        acls = client.ask(
            DescribeAclsRequest(
                resource_type_filter=ANY, resource_name_filter=None, pattern_type_filter=ANY,
                principal_filter=None, host_filter=None, operation=ANY, permission_type=ANY,
            ),
            3,
        )  # fmt: skip
        assert {acl.resource_name for acl in acls.resources} == self.acls
        users = client.ask(DescribeUserScramCredentialsRequest(users=None), 0).results
        found = {user.user: user.credential_infos[0].iterations for user in users}
        found.pop(admin)
        assert found == self.users
        quotas = client.ask(DescribeClientQuotasRequest(components=[]), 1).entries
        assert {e.entity[0].entity_name: e.values[0].value for e in quotas} == self.quotas
