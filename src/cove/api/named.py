"""Show a handle by its id, or its name: never by what it holds, which may be secret."""


class Named:
    """A handle that `print` shows as `<AsyncSandbox q3jw0xk1>`."""

    def __repr__(self) -> str:
        shown = next(each.__name__ for each in type(self).__mro__ if each.__module__.startswith("cove.api."))
        return f"<{shown} {getattr(self, 'id', None) or getattr(self, 'name', '')}>"
