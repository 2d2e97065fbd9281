"""Give every name that a sandbox resolves an address of its own in 198.18.0.0/15, and find the name of an address.

The range is reserved for benchmarks (RFC 2544), so no host of the internet has one of its addresses. All of them lead
to the sandbox's own loopback. An address is given to another name only after all others of the range were: a client
that kept an old answer is refused, it does not reach another host.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
OWN_ADDRESS = "198.18.0.1"
_COUNT = NETWORK.num_addresses - 512
_START = int(ipaddress.IPv4Address("198.18.1.0"))
MOST_NAMES = 16_384


class SyntheticAddresses:
    """The names of one sandbox with their addresses. The least recently asked for are forgotten beyond `most`."""

    def __init__(self, is_in_use: Callable[[str], bool], most: int = MOST_NAMES) -> None:
        self._is_in_use = is_in_use
        self._most = most
        self._by_name: OrderedDict[str, str] = OrderedDict()
        self._by_address: dict[str, str] = {}
        self._next = 0

    def address_of(self, name: str) -> str:
        """The name's address, the same for as long as it is remembered."""
        if (known := self._by_name.get(name)) is not None:
            self._by_name.move_to_end(name)
            return known
        self._forget_oldest()
        address = self._take_next()
        self._by_name[name] = address
        self._by_address[address] = name
        return address

    def name_of(self, address: str) -> str | None:
        """The name that this address was given to, if it is still remembered."""
        return self._by_address.get(address)

    def _take_next(self) -> str:
        while True:
            address = str(ipaddress.IPv4Address(_START + self._next))
            self._next = (self._next + 1) % _COUNT
            if address not in self._by_address:
                return address

    def _forget_oldest(self) -> None:
        """Make room; names with open connections stay."""
        if len(self._by_name) < self._most:
            return
        for name in self._by_name:
            if not self._is_in_use(name):
                del self._by_address[self._by_name.pop(name)]
                return
