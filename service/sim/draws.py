"""Random numbers as functions of a seed and a name: without state, so that the order of calls does not matter."""

from hashlib import blake2b
from statistics import NormalDist

_STANDARD_NORMAL = NormalDist()
_RESOLUTION = 2**53


def uniform(seed: int, name: str, purpose: str) -> float:
    """A number in (0, 1), uniform over names and seeds; ``purpose`` separates independent draws for one name."""
    digest = blake2b(f"{seed}\0{purpose}\0{name}".encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> 11) + 0.5) / _RESOLUTION


def normal(seed: int, name: str, purpose: str) -> float:
    """A standard normal number, by the inverse of its distribution function."""
    return _STANDARD_NORMAL.inv_cdf(uniform(seed, name, purpose))
