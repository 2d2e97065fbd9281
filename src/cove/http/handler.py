"""The type of a request handler: a function that answers at once, or a coroutine."""

from collections.abc import Callable, Coroutine

from cove.http.relay import Relay
from cove.http.request import Request
from cove.http.response import Response, Upgrade

Answer = Response | Upgrade | Relay
Handler = Callable[[Request], Answer | Coroutine[object, object, Answer]]
