"""Find out for whom a request is, at the node that it came to and at the one that it was passed on to."""

from typing import NamedTuple

from cove.http import Request
from cove.server.cluster.peer import Arrival, Hop
from cove.server.cluster.targets import Kind, Target
from cove.server.credentials import bearer, find_key, find_token, tenant_of
from cove.server.gateway.auth import Authenticator
from cove.server.gateway.key_ring import Principal


class Requester(NamedTuple):
    """For whom a request is: by which right it goes to other nodes, whose sandboxes it is about, and who vouches.

    The tenant is None where only the node that has the sandbox can tell it. Who carries credentials has no principal.
    """

    hop: Hop
    tenant: str | None
    principal: Principal | None = None


def requester_of(request: Request, target: Target, authenticator: Authenticator) -> Requester | None:
    """Return for whom a client's request is; None for one that this node refuses, in its own words."""
    token = find_token(request)
    if token is not None:
        is_of_sandbox = target.kind is Kind.SANDBOX and target.hop is Hop.VOUCHED
        return Requester(Hop.CARRIED, token.grant.tenant) if is_of_sandbox else None
    principal = authenticator.identify(find_key(request) or bearer(request))
    tenant = None if principal is None else tenant_of(request, principal)
    if target.hop is Hop.CARRIED:
        return Requester(Hop.CARRIED, tenant)
    if tenant is None or authenticator.of(tenant).refuse(request) is not None:
        return None
    return Requester(Hop.VOUCHED, tenant, principal)


def tenant_of_arrival(request: Request, arrival: Arrival, authenticator: Authenticator) -> str | None:
    """Return whose sandboxes a request of another node is about; None where only the sandbox itself can tell."""
    if arrival.hop is Hop.VOUCHED:
        return tenant_of(request, arrival.principal)
    token = find_token(request)
    if token is not None:
        return token.grant.tenant
    principal = authenticator.identify(find_key(request) or bearer(request))
    return None if principal is None else tenant_of(request, principal)
