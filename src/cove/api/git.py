"""Git as its users see it."""

from abc import ABC, abstractmethod

from cove.model import GitClone


class Git(ABC):
    """Repositories inside the sandbox."""

    @abstractmethod
    async def clone(
        self,
        url: str,
        path: str | None = None,
        *,
        branch: str | None = None,
        depth: int | None = None,
        timeout: float | None = None,
        token: str | None = None,
    ) -> GitClone:
        """Clone with the sandbox's own git and network; by default into a directory named like the repository.

        `token`, or a password in the URL, is given to the URL's own host only and is found neither in arguments,
        nor in the clone's configuration, nor in errors.
        """
