"""The error of a page for something that does not exist."""

from headwater.errors import RequestRefused


class NoSuchThing(RequestRefused):
    """What the address names does not exist, or is not to be seen."""
