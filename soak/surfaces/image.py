"""A sandbox on an image: its users, its system, and images made of it."""

from collections.abc import Mapping

from cove import AsyncImage, AsyncSandbox
from cove.errors import ImageInUse, ImageNotFound
from cove.model import SandboxUsers
from soak.hand import Hand, Step, Surface
from soak.model import check
from soak.subject import IMAGE
from soak.surfaces.files import FileTree, read_all
from soak.trees import Found, copy_tree, observe

_WEB = 33


class Images(Surface):
    """The files of the hand are in the system itself, so that every image and snapshot has them."""

    weight = 1.0

    def __init__(self, hand: Hand, files: FileTree) -> None:
        super().__init__(hand)
        self._files = files

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        return {self._who: 2, self._commit: 0.5, self._in_use: 0.3}

    async def _who(self) -> None:
        answer = await self.hand.call("exec id", self._ids())
        if answer.is_done and not self.hand.is_disturbed:
            check("everybody is who was asked for", answer.get() in (["0", "33"], ["0"]), answer.value)

    async def _ids(self) -> list[str]:
        sandbox = self.hand.sandbox
        found = [(await sandbox.exec("id -u")).stdout.strip()]
        if (await sandbox.info()).users is SandboxUsers.REAL:
            found.append((await sandbox.exec("id -u", user="web")).stdout.strip())
        return found

    async def _commit(self) -> None:
        """A sandbox on an image that was made of this one has the files of this one."""
        files, name = self._files.remember(), self.hand.new_id("image").lower()
        answer = await self.hand.call(f"commit-image {name}", self._visit(name))
        if answer.is_done:
            observe(copy_tree(files), answer.get(), "what was made of an image")
        else:
            self.hand.doubt()
        await self._remove(name)

    async def _visit(self, name: str) -> Found:
        where = self.hand.subject.where
        await self.hand.sandbox.commit(name)
        async with AsyncSandbox.create(image=name, user="root", url=where.url, api_key=where.key) as made:
            return await read_all(made, self._files.directory)

    async def _remove(self, name: str) -> None:
        while True:
            answer = await self.hand.call(
                "delete-image", self._deleted(name), ImageNotFound, ImageInUse, is_steady=True
            )
            if answer.is_certain:
                check("nobody uses it", not isinstance(answer.error, ImageInUse) or self._may_be_left, answer.error)
                return
            await self.hand.subject.recover()

    @property
    def _may_be_left(self) -> bool:
        return self.hand.subject.where.has_leftovers

    async def _deleted(self, name: str) -> None:
        where = self.hand.subject.where
        await (await AsyncImage.get(name, url=where.url, api_key=where.key)).delete()

    async def _in_use(self) -> None:
        answer = await self.hand.call("delete-image", self._deleted(IMAGE), ImageInUse, is_steady=True)
        check("an image that is used stays", not answer.is_done, answer.value)
