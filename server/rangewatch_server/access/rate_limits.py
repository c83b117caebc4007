"""How often one client may do something: a bucket of tokens for each, and one for all together. Event loop only.

Memory is bounded: of more clients than `MAX_CLIENTS` the one unheard of for longest is forgotten, and what it had used
up with it; the bucket of all together holds then.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict

import msgspec

from rangewatch_server.core.errors import ApiError

MAX_CLIENTS = 10_000  # 200 bytes each


class Rate(msgspec.Struct, frozen=True):
    """`burst` at once, and `per_minute` in the long run."""

    burst: int
    per_minute: float


# A person mistypes a token a few times; a program that guesses wants thousands.
LOGIN, ALL_LOGINS = Rate(10, 10), Rate(100, 200)
# Wrong tokens. A job of a thousand ranks with one that was revoked asks every 15 s, behind one address perhaps.
GUESSES, ALL_GUESSES = Rate(100, 60), Rate(2_000, 1_200)
# What needs the role admin: each is written to the audit. A script that deletes a hundred runs is not held up.
CHANGES, ALL_CHANGES = Rate(200, 120), Rate(1_000, 600)


def counted_as(client: str) -> str:
    """What counts as one client: an IPv4 address, or a /64 of IPv6, of whose addresses one machine may take any."""
    try:
        address = ipaddress.IPv6Address(client.partition("%")[0])
    except ValueError:
        return client
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


class _Bucket(msgspec.Struct):
    left: float
    at_s: float


class RateLimit:
    """Counts what clients do, by whatever names one: an address."""

    def __init__(self, what: str, each: Rate, together: Rate) -> None:
        self.what = what
        self.each, self.together = each, together
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(together.burst, time.monotonic())

    def take(self, client: str) -> None:
        """Count one. Raises `ApiError` 429 with the seconds to wait."""
        client, now_s = counted_as(client), time.monotonic()
        bucket = self._buckets.pop(client, None) or _Bucket(self.each.burst, now_s)
        self._buckets[client] = bucket
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        _refill(bucket, self.each, now_s)
        _refill(self._all, self.together, now_s)
        wait_s = max(_wait_s(bucket, self.each), _wait_s(self._all, self.together))
        if wait_s > 1e-6:
            raise ApiError(429, "too_often", f"too many {self.what}; wait {math.ceil(wait_s)} s", math.ceil(wait_s))
        bucket.left -= 1
        self._all.left -= 1


def _refill(bucket: _Bucket, rate: Rate, now_s: float) -> None:
    bucket.left = min(bucket.left + (now_s - bucket.at_s) * rate.per_minute / 60, rate.burst)
    bucket.at_s = now_s


def _wait_s(bucket: _Bucket, rate: Rate) -> float:
    """Seconds until there is one; 0 or less when there is."""
    return (1 - bucket.left) * 60 / rate.per_minute
