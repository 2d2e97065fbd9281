"""Build an image: run the steps of a Dockerfile one after the other, each on the layers of those before it.

RUN has a sandbox of its own on the image so far, as its user; what the sandbox has written when it has ended is the
step's layer. COPY, ADD and WORKDIR are made without one, by `images/build_copy`. A step whose key is in the build cache
is not done again. Nothing of a build that fails or is killed is seen: a layer is kept by its key, written when the
layer is whole, and the image's name is written last.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten

import msgspec

from cove.archive.tar import Refused
from cove.errors import BuildFailed, ImageInvalid, ImageNotFound, SandboxUnavailable, ValidationFailed
from cove.images.build_cache import BuildCache, Built, step_key
from cove.images.build_copy import LayerMaker, opened_context
from cove.images.build_order import Order, make_order, read_dockerfile
from cove.images.build_settings import apply
from cove.images.build_source import BuildSource, Check
from cove.images.dockerfile import SCRATCH, Copy, Run, Set, Stage, Step, find_stage, needed_stages, parse_dockerfile
from cove.images.image_view import opened_image
from cove.images.manifest import (
    MOST_JSON_BYTES,
    ImageConfig,
    RootFs,
    Settings,
    digest_of,
    machine_architecture,
)
from cove.images.new_layer import join
from cove.images.record import ImageRecord
from cove.images.shortening import MOST_WHILE_BUILDING, shorten_layers
from cove.images.store import ImageStore
from cove.layers.record import Owners
from cove.layers.store import LayerStore
from cove.local.threads import finished, in_thread, in_transfer
from cove.model import (
    BuildEvent,
    BuildOutput,
    BuildSpec,
    BuildStep,
    Exit,
    Gap,
    Outcome,
    Output,
    SandboxSpec,
)
from cove.runtime.built_layer import take_upper
from cove.runtime.sandbox import Sandbox
from cove.tasks import settled

_MOST_TAIL = 8 << 10
_MOST_TOLD = 500
_MOST_SHOWN = 100
# What a sandbox needs to be there at all.
_LEAST_DISK = 4 << 20

Start = Callable[[SandboxSpec, ImageRecord], Awaitable[Sandbox]]
Report = Callable[[BuildEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Image:
    """An image between two steps. `has_command` once its own stage has said CMD."""

    built: Built = field(default_factory=Built)
    settings: Settings = field(default_factory=Settings)
    has_command: bool = False

    @property
    def workdir(self) -> str:
        return self.settings.WorkingDir or "/"

    @property
    def config(self) -> ImageConfig:
        return ImageConfig(RootFs(list(self.built.diff_ids)), self.settings, machine_architecture())


@dataclass(slots=True)
class Build:
    """One build. `start` opens a sandbox on an image that has no name yet; its caller destroys it."""

    order: Order
    store: ImageStore
    layers: LayerStore
    cache: BuildCache
    start: Start
    report: Report
    context: BuildSource
    _stages: list[Stage] = field(default_factory=list)
    _images: dict[int, _Image] = field(default_factory=dict)
    _deadline: float | None = None
    _number: int = 0
    _total: int = 0
    _written: int = 0

    async def run(self, text: str) -> ImageRecord:
        """Build the target, and give it its name."""
        self._deadline = None if self.order.timeout is None else time.monotonic() + self.order.timeout
        shown = self.order.shown
        self._stages = await finished(parse_dockerfile, text, self.order.arguments, self._environment_of, shown)
        needed = needed_stages(self._stages, self.order.target, shown)
        self._total = sum(len(self._stages[at].steps) for at in needed)
        for at in needed:
            self._images[at] = await self._build_stage(at)
        record = self._record(await self._shorten(self._images[needed[-1]]))
        if len(msgspec.json.encode(record.config)) > MOST_JSON_BYTES:
            raise ValidationFailed(f"the settings of the image have more than {MOST_JSON_BYTES >> 20} MiB")
        await finished(self._keep, record)
        return record

    def _environment_of(self, name: str) -> dict[str, str]:
        """Return an image's variables; none for one that is missing, which only fails a build that needs it."""
        try:
            settings = self.store.find(name).config.settings
        except (ImageNotFound, ValidationFailed):
            return {}
        pairs = (text.partition("=")[::2] for text in settings.Env or ())
        return dict(pairs)

    async def _build_stage(self, at: int) -> _Image:
        stage = self._stages[at]
        image = await self._base(stage.base, at)
        for step in stage.steps:
            self._number += 1
            image = await self._perform(image, step, at)
            if len(image.built.layers) > MOST_WHILE_BUILDING:
                image = await self._shorten(image)
        return image

    async def _shorten(self, image: _Image) -> _Image:
        """Merge layers of an image that has more than a sandbox can stand on."""
        layers = await in_transfer(lambda check: shorten_layers(self.layers, image.built.layers, self._bounded(check)))
        return replace(image, built=Built(layers, image.built.diff_ids))

    async def _base(self, name: str, at: int) -> _Image:
        earlier = find_stage(self._stages, name, at)
        if earlier is not None:
            found = self._images[earlier]
            return _Image(found.built, found.settings)
        if name == SCRATCH:
            empty = Built()
            key = step_key(empty, SCRATCH)
            return _Image(
                await self._layer(
                    key, empty, lambda building, check: self._maker(empty, check).make_directory(building, "/")
                )
            )
        record = await in_thread(self.store.find, name)
        return _Image(Built(record.layers, tuple(record.config.rootfs.diff_ids)), record.config.settings)

    async def _perform(self, image: _Image, step: Step, at: int) -> _Image:
        match step:
            case Run():
                return replace(image, built=await self._run(image, step))
            case Copy():
                return replace(image, built=await self._copy(image, step, at))
            case Set():
                return await self._set(image, step)

    async def _set(self, image: _Image, step: Set) -> _Image:
        settings = apply(image.settings, step, keeps_command=image.has_command)
        built = image.built
        if step.name == "WORKDIR" and not await in_thread(self._is_directory, built, settings.WorkingDir):
            key = step_key(built, "WORKDIR", settings.WorkingDir)
            built = await self._make(
                step,
                key,
                built,
                lambda building, check: self._maker(built, check).make_directory(building, settings.WorkingDir),
            )
        else:
            await self._tell(step)
        return _Image(built, settings, image.has_command or step.name == "CMD")

    def _is_directory(self, built: Built, path: str) -> bool:
        with opened_image(built.layers, self.layers) as view:
            found = BuildSource(view)
            try:
                return found.find(path)[0].is_directory
            except Refused:
                return False

    async def _copy(self, image: _Image, step: Copy, at: int) -> Built:
        with ExitStack() as held:
            source = await self._source(step, at, held)
            target = join(image.workdir, step.target)
            try:
                digest = await in_transfer(lambda check: source.digest(step.sources, self._bounded(check)))
            except (Refused, OSError) as error:
                raise self._failed(step, str(error)) from error
            key = step_key(
                image.built, "ADD" if step.unpacks else "COPY", step.sources, target, step.mode, step.owner, digest
            )
            return await self._make(
                step,
                key,
                image.built,
                lambda building, check: self._maker(image.built, check).copy(building, step, source, target),
            )

    async def _source(self, step: Copy, at: int, held: ExitStack) -> BuildSource:
        if step.stage is None:
            return self.context
        earlier = find_stage(self._stages, step.stage, at)
        built = self._images[earlier].built if earlier is not None else (await self._base(step.stage, at)).built
        return BuildSource(await finished(held.enter_context, opened_image(built.layers, self.layers)))

    async def _run(self, image: _Image, step: Run) -> Built:
        settings = image.settings
        key = step_key(image.built, "RUN", step.words, step.env, settings.Env, settings.User, settings.WorkingDir)
        found = await self._find(key)
        await self._tell(step, is_cached=found is not None)
        if found is not None:
            return found
        limits = msgspec.structs.replace(self.order.sandbox.limits, disk=self._disk_left(step))
        spec = msgspec.structs.replace(self.order.sandbox, image=self.order.name, limits=limits)
        try:
            sandbox = await self.start(spec, self._record(image))
        except (ValidationFailed, ImageInvalid) as error:
            raise self._failed(step, error.message) from error
        try:
            await self._execute(sandbox, image, step)
            await sandbox.close()
            return await self._layer(
                key, image.built, lambda building, _: take_upper(sandbox.layers, building), repeats=False
            )
        finally:
            await settled(sandbox.destroy())

    async def _execute(self, sandbox: Sandbox, image: _Image, step: Run) -> None:
        left = self._seconds_left(step)
        process = await sandbox.start_process(
            step.words, cwd=image.workdir, env=dict(step.env), timeout=left, keep=False, lossless=True
        )
        tail = b""
        async with aclosing(process.logs(lossless=True)) as events:
            async for event in events:
                match event:
                    case Output():
                        await self.report(BuildOutput(stream=event.stream, data=event.data))
                        tail = (tail + event.data)[-_MOST_TAIL:]
                    case Exit():
                        self._check_exit(step, event, tail.decode("utf-8", "replace"))
                    case Gap():
                        pass

    def _seconds_left(self, step: Step) -> float | None:
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._failed(step, self._too_long)
        return left

    def _disk_left(self, step: Step) -> int | None:
        """Return what is left of the limit on disk, which is one for all that the build writes."""
        limit = self.order.sandbox.limits.disk
        if limit is None:
            return None
        left = limit - self._written
        if left < _LEAST_DISK and self._written:
            raise self._failed(step, f"the steps before it have taken the {limit >> 20} MiB that the build may write")
        return left

    @property
    def _too_long(self) -> str:
        return f"the build has taken {self.order.timeout:g} seconds"

    def _bounded(self, check: Check) -> Check:
        """Let work in a thread end when the time is over, too."""

        def bounded() -> None:
            check()
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise Refused(self._too_long)

        return bounded

    async def _make(self, step: Step, key: str, below: Built, make: Callable[[Path, Check], Owners]) -> Built:
        """Find a layer in the cache, or make it."""
        self._seconds_left(step)
        found = await self._find(key)
        await self._tell(step, is_cached=found is not None)
        if found is not None:
            return found
        try:
            return await self._layer(key, below, make)
        except (Refused, OSError) as error:
            raise self._failed(step, str(error)) from error

    async def _find(self, key: str) -> Built | None:
        return await in_thread(self.cache.find, key) if self.order.uses_cache else None

    async def _layer(
        self, key: str, below: Built, make: Callable[[Path, Check], Owners], *, repeats: bool = True
    ) -> Built:
        built = await in_transfer(
            lambda check: self.cache.add(
                key, below, lambda building: make(building, self._bounded(check)), repeats=repeats
            )
        )
        self._written += (await in_thread(self.layers.read, built.layers[-1])).size or 0
        return built

    def _maker(self, below: Built, check: Check) -> LayerMaker:
        limit = self.order.sandbox.limits.disk
        left = None if limit is None else max(limit - self._written, 0)
        return LayerMaker(below.layers, self.layers, self.store.owners, check, left)

    async def _tell(self, step: Step, *, is_cached: bool = False) -> None:
        await self.report(
            BuildStep(
                number=self._number, total=self._total, line=step.line, instruction=step.source, is_cached=is_cached
            )
        )

    def _record(self, image: _Image) -> ImageRecord:
        return ImageRecord(
            id=digest_of(msgspec.json.encode(image.config)),
            name=self.order.name,
            created_at=datetime.now(UTC),
            layers=image.built.layers,
            config=image.config,
            size=0,
        )

    def _keep(self, record: ImageRecord) -> None:
        """Give the image its name."""
        size = sum(self.layers.read(id).size or 0 for id in record.layers)
        self.store.keep(msgspec.structs.replace(record, size=size))

    def _check_exit(self, step: Run, end: Exit, output: str) -> None:
        if end.exit_code is None:
            raise SandboxUnavailable("the sandbox of the build was lost: build it again")
        if end.exit_code == 0 and end.outcome is Outcome.EXITED:
            return
        why = {
            Outcome.TIMED_OUT: "was ended when the time of the build was over",
            Outcome.OUT_OF_MEMORY: "ran out of memory",
        }.get(end.outcome, f"failed with exit code {end.exit_code}")
        raise BuildFailed(
            f"{self._place(step)} {why}{_last(output)}",
            line=step.line,
            command=step.source,
            exit_code=end.exit_code,
            output=output,
        )

    def _failed(self, step: Step, why: str) -> BuildFailed:
        return BuildFailed(f"{self._place(step)}: {why}", line=step.line, command=step.source)

    def _place(self, step: Step) -> str:
        return f"{self.order.shown}, line {step.line}: {shorten(step.source, _MOST_SHOWN, placeholder=' ...')}"


async def build_image(
    store: ImageStore, layers: LayerStore, directory: str | None, spec: BuildSpec, start: Start, report: Report
) -> ImageRecord:
    """Build an image from a directory, or by a recipe of Cove's. No layer is removed meanwhile."""
    order = await in_thread(make_order, directory, spec)
    cache = BuildCache(store.path, layers)
    await in_thread(cache.open)
    with ExitStack() as held:
        await finished(held.enter_context, layers.holding())
        try:
            context = await finished(held.enter_context, opened_context(order.directory))
        except OSError as error:
            raise ValidationFailed(f"cannot build {order.directory}: {error.strerror}") from None
        text = await in_thread(read_dockerfile, context, order.dockerfile)
        record = await Build(order, store, layers, cache, start, report, context).run(text)
    await finished(cache.trim)
    return record


def _last(output: str) -> str:
    told = output.strip()[-_MOST_TOLD:]
    return f"; it printed last: {told}" if told else ""
