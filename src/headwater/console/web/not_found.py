"""A page of something that is not there."""

from headwater.errors import RequestRefused


class NoSuchThing(RequestRefused):
    """What the address names does not exist, or is not to be seen."""
