"""Signed receipts of erasures: what was done, and what could not be reached.

A receipt is a JSON object, signed with the Ed25519 key of the key store. It names the subject by
the store's hash only, so it can be archived. Whoever has the store's public key can check it;
whether it is about a certain person, only who has the key store.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from headwater.errors import ReceiptRefused

FORMAT: Final = "headwater-erasure-1"
_ALGORITHM: Final = "ed25519"


def signed(content: Mapping[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    receipt = {"format": FORMAT, **content}
    signature = key.sign(_signed_bytes(receipt))
    return {
        **receipt,
        "signature": {
            "algorithm": _ALGORITHM,
            "public_key": public_text(key.public_key()),
            "value": b64encode(signature).decode(),
        },
    }


def check(receipt: Any, public_key: str) -> dict[str, Any]:
    """The receipt, if this key has signed it as it is. The key that stands in the receipt itself
    proves nothing. Raises ReceiptRefused.
    """
    signature = receipt.get("signature") if isinstance(receipt, dict) else None
    if not isinstance(signature, dict) or receipt.get("format") != FORMAT:
        raise ReceiptRefused("this is no receipt of an erasure")
    try:
        if signature["public_key"] != public_key:
            raise ReceiptRefused(
                "the receipt is not of this key store",
                detail=f"signed by {str(signature['public_key'])[:60]}, expected {public_key}",
            )
        signed_ = {name: value for name, value in receipt.items() if name != "signature"}
        key = Ed25519PublicKey.from_public_bytes(b64decode(public_key, validate=True))
        key.verify(b64decode(signature["value"], validate=True), _signed_bytes(signed_))
    except (KeyError, TypeError, ValueError, InvalidSignature) as error:
        raise ReceiptRefused(
            "the receipt was changed",
            detail="its signature does not fit what it says",
            hint="`headwater erase` gives the stored receipt again",
        ) from error
    return dict(receipt)


def public_text(key: Ed25519PublicKey) -> str:
    return b64encode(key.public_bytes_raw()).decode()


def _signed_bytes(receipt: Mapping[str, Any]) -> bytes:
    return orjson.dumps(receipt, option=orjson.OPT_SORT_KEYS)
