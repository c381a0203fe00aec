"""Refuses unknown query parameters, like unknown fields of bodies."""

from fastapi import Request
from fastapi.dependencies.models import Dependant

from rocmforge.server.errors import ApiError

# Azure's clients send it with every request.
_ANYWHERE = {"api-version"}


async def known_query(request: Request) -> None:
    """Refuses a query parameter that the path does not have.

    Raises:
        ApiError: There is one.
    """
    known = _names(request.scope["route"].dependant) | _ANYWHERE
    for name in request.query_params:
        if name not in known:
            raise ApiError(400, f"{name}: this query parameter is not supported; leave it out", param=name)


def _names(dependant: Dependant) -> set[str]:
    """Returns the query parameters of a path and of its dependencies."""
    own = {field.alias for field in dependant.query_params}
    return own.union(*(_names(each) for each in dependant.dependencies))
