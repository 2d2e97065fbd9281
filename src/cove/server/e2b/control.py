"""E2B's control API: sandboxes, their ends, snapshots. The gateway answers it; what a runtime knows is asked there."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from cove.core.e2b_access import TokenKind, Tokens
from cove.core.identifier import SANDBOX_ID
from cove.errors import SandboxPaused, ValidationFailed
from cove.http import Request, Response
from cove.layers.record import Snapshot
from cove.layers.store import LayerStore
from cove.local.threads import in_thread
from cove.model import Network, NetworkPolicy, SandboxInfo, SandboxSpec, SandboxStatus, SnapshotInfo, VolumeMount
from cove.model.spec import MOST_LABELS, check_labels, check_spec
from cove.server.configuration import Configuration
from cove.server.e2b.life import DEFAULT_TIMEOUT, Begin, Connected, Pause, Timeout
from cove.server.e2b.listing import Found, select
from cove.server.e2b.network import NetworkWish, choose_network
from cove.server.e2b.protocol import (
    BELOW,
    CONTROL,
    ENVD_VERSION,
    Refusal,
    answer,
    encode,
    plain,
    read_query,
)
from cove.server.e2b.record import E2bRecord, read_record
from cove.server.e2b.runtime_call import post
from cove.server.e2b.templates import Templates
from cove.server.e2b.wishes import CreateWish, ForkWish, PauseWish, RefreshWish, SnapshotWish, read_wish
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.starter import Starter
from cove.tasks import settled
from cove.wire import operations
from cove.wire.coding import decode_json, encode_json
from cove.wire.operation import SANDBOXES
from cove.wire.requests.network import SetNetwork
from cove.wire.requests.snapshot import Fork, MakeSnapshot

_MOST_COPIES: Final = 100
_SNAPSHOT_LABEL: Final = "e2b/sandbox"
_HOST = re.compile(r"[a-z0-9.-]+(:\d{1,5})?")
_LOOPBACK: Final = ("localhost", "127.0.0.1")
_ROOTS: Final = ("sandboxes", "snapshots", "templates", "volumes", "secrets", "teams", "events")
_VERSIONS: Final = ("v2", "v3")
_NOT_HERE: Final[Mapping[str, str]] = {
    "templates": "templates are not built here: build an image (`cove image build`), and use its name as the template",
    "volumes": "volumes are not kept by this API: `cove volume create` makes one, and volume_mounts use it by its name",
    "secrets": "secrets are defined by the configuration of this server",
    "teams": "there are no teams here",
    "events": "there are no events here",
}


class Control:
    """Answers requests whose key was checked."""

    def __init__(self, directory: Directory, starter: Starter, configuration: Configuration, tokens: Tokens) -> None:
        self._directory = directory
        self._starter = starter
        self._configuration = configuration
        self._tokens = tokens
        self._templates = Templates(directory, configuration)
        self._of_sandbox: Mapping[tuple[str, str], Callable[[str, Request], Awaitable[Response]]] = {
            ("GET", ""): self._get,
            ("DELETE", ""): self._kill,
            ("POST", "timeout"): self._set_timeout,
            ("POST", "refreshes"): self._refresh,
            ("POST", "connect"): self._connect,
            ("POST", "resume"): self._resume,
            ("POST", "pause"): self._pause,
            ("GET", "metrics"): self._metrics,
            ("GET", "logs"): self._logs,
            ("PUT", "network"): self._set_network,
            ("POST", "snapshots"): self._snapshot,
            ("POST", "fork"): self._fork,
        }

    async def __call__(self, request: Request) -> Response:
        """Answer; raises Refusal and errors of Cove's."""
        _, words = split(request.path)
        match request.method, words:
            case "POST", ["sandboxes"]:
                return await self._create(request)
            case "GET", ["sandboxes"]:
                return await self._list(request)
            case "GET", ["snapshots"]:
                return await self._list_snapshots(request)
            case "DELETE", ["templates", id]:
                return await self._delete_snapshot(unquote(id))
            case "GET", ["templates", "aliases", name]:
                raise Refusal(404, f"there is no alias {name[:100]}: images are used by their names")
            case _, ["sandboxes", id, *rest] if len(rest) < 2:
                call = self._of_sandbox.get((request.method, rest[0] if rest else ""))
                if call is not None:
                    return await call(id, request)
        if words[0] in _NOT_HERE:
            raise Refusal(501, _NOT_HERE[words[0]])
        raise Refusal(501, f"{request.method} {request.path[:200]} is not had here: docs/e2b.md says what is")

    async def _create(self, request: Request) -> Response:
        wanted = await read_wish(request, CreateWish)
        if wanted.timeout <= 0:
            raise Refusal(400, "timeout must be at least 1 second")
        if wanted.iam:
            raise Refusal(400, "iam is not had here: secrets are defined by the configuration of this server")
        spec, record = await self._plan(wanted)
        key = request.headers.get(b"idempotency-key", b"").decode("latin-1")
        id = self._tokens.id_for(key, self._directory.tenant) if key else None
        made = await self._starter.create(id, spec, exist_ok=id is not None, is_ours=True)
        if id is None or await in_thread(read_record, self._directory.place(made.key)) is None:
            await self._begin(made, record)
        return answer(self._describe(made.id, made.key, record.template, request), 201)

    async def _plan(self, wanted: CreateWish) -> tuple[SandboxSpec, E2bRecord]:
        """Return what is to be made: a spec of the configuration, with what a client may choose."""
        template = await self._find_template(wanted.template_id)
        labels, rest = split_metadata(wanted.metadata or {})
        network = choose_network(template.network, wanted.network, wanted.allow_internet_access)
        self._check_network(network, template.network)
        mounts = [VolumeMount(volume=each.name, target=each.path) for each in wanted.volume_mounts or ()]
        spec = replace(
            template,
            env={**template.env, **(wanted.env_vars or {})},
            labels={**template.labels, **labels},
            network=network,
            mounts=(*template.mounts, *mounts),
            lifetime=float(wanted.timeout),
        )
        check_spec(spec)
        is_public = wanted.network is None or wanted.network.allow_public_traffic is not False
        record = E2bRecord(
            template=wanted.template_id,
            timeout=float(wanted.timeout),
            auto_pause=bool(wanted.auto_pause),
            keeps_memory=wanted.auto_pause_memory is not False,
            auto_resume=wanted.auto_resume is not None and wanted.auto_resume.enabled,
            is_public=is_public,
            metadata=rest,
        )
        return spec, record

    async def _find_template(self, name: str) -> SandboxSpec:
        """Return what a template is; an image or a snapshot that another node of the cluster has is fetched first."""
        things = self._starter.things
        if things is not None and not self._templates.is_configured(name):
            for spec in (SandboxSpec(image=name), SandboxSpec(snapshot=name)):
                await things.provide(self._directory, spec)
        return await in_thread(self._templates.spec, name)

    def _check_network(self, network: Network | NetworkPolicy, configured: Network | NetworkPolicy) -> None:
        if network != configured:
            self._configuration.grants.check(network)

    async def _begin(self, made: Record, record: E2bRecord) -> None:
        """Tell its runtime what was chosen; a sandbox for which that fails, or is cancelled, is destroyed."""
        try:
            endless = self._configuration.default_lifetime
            await self._ask(made, "begin", Begin(record=record, endless=endless))
        except BaseException:
            await settled(self._starter.destroy(made.id))
            raise

    async def _ask(self, record: Record, name: str, body: object = None) -> bytes:
        path = f"{BELOW}{record.id}/{CONTROL}/{name}"
        try:
            return await post(self._directory.socket(record), path, encode_json(body) if body is not None else b"{}")
        except (FileNotFoundError, ConnectionRefusedError):
            raise Refusal(404, f"sandbox {record.id} does not run any more") from None

    def _describe(self, id: str, key: str, template: str, request: Request) -> dict[str, object]:
        return {
            "sandboxID": id,
            "templateID": template,
            "alias": template,
            "clientID": "cove",
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": self._tokens.make(TokenKind.ACCESS, id, key),
            "trafficAccessToken": self._tokens.make(TokenKind.TRAFFIC, id, key),
            "domain": self._domain(request),
        }

    def _domain(self, request: Request) -> str | None:
        """Return the domain below which hosts of sandboxes are, as this client reaches it."""
        if self._configuration.e2b_domain is not None:
            return self._configuration.e2b_domain
        host = request.headers.get(b"host", b"").decode("latin-1").lower()
        if not _HOST.fullmatch(host):
            return None
        name, colon, port = host.partition(":")
        return f"localhost{colon}{port}" if name in _LOOPBACK else host.removeprefix("api.")

    async def _list(self, request: Request) -> Response:
        query = read_query(request.query)
        if request.path.startswith("/sandboxes"):
            query = {**query, "state": "running"}
        found, token = select(await in_thread(self._find_all), query)
        headers = ((b"x-next-token", token.encode()),) if token else ()
        return answer([each.describe() for each in found], headers=headers)

    def _find_all(self) -> list[Found]:
        return [self._look(record) for record in self._directory.list()]

    def _look(self, record: Record) -> Found:
        return Found(self._directory.info(record), read_record(self._directory.place(record.key)))

    async def _find(self, id: str) -> tuple[Record, Found]:
        if not re.fullmatch(SANDBOX_ID, id):
            raise Refusal(404, f"there is no sandbox {plain(id[:100])}")
        record = await in_thread(self._directory.find, id)
        if record is None:
            raise Refusal(404, f"sandbox {id} was not found")
        return record, await in_thread(self._look, record)

    async def _find_present(self, id: str) -> Record:
        """Find a sandbox that has a runtime, running or paused."""
        record, found = await self._find(id)
        if found.info.status not in (SandboxStatus.RUNNING, SandboxStatus.PAUSED):
            raise Refusal(409, f"sandbox {id} is paused: connect to it first")
        return record

    async def _get(self, id: str, request: Request) -> Response:
        record, found = await self._find(id)
        chosen = found.record
        lifecycle = {
            "autoResume": chosen is not None and chosen.auto_resume,
            "onTimeout": "pause" if chosen is not None and chosen.auto_pause else "kill",
        }
        detail = {
            **found.describe(),
            "envdAccessToken": self._tokens.make(TokenKind.ACCESS, id, record.key),
            "domain": self._domain(request),
            "allowInternetAccess": found.info.spec.network is not Network.NONE,
            "lifecycle": lifecycle,
        }
        return answer(detail)

    async def _kill(self, id: str, request: Request) -> Response:
        await self._find(id)
        await self._starter.destroy(id)
        return Response(204)

    async def _set_timeout(self, id: str, request: Request) -> Response:
        wanted = await read_wish(request, Timeout)
        await self._ask(await self._find_present(id), "timeout", Timeout(max(wanted.timeout or 0.0, 0.0)))
        return Response(204)

    async def _refresh(self, id: str, request: Request) -> Response:
        wanted = await read_wish(request, RefreshWish)
        await self._ask(await self._find_present(id), "timeout", Timeout(max(float(wanted.duration), 0.0)))
        return Response(204)

    async def _connect(self, id: str, request: Request) -> Response:
        wanted = await read_wish(request, Timeout)
        was_paused, body = await self._resume_for(id, wanted, request)
        return answer(body, 201 if was_paused else 200)

    async def _resume(self, id: str, request: Request) -> Response:
        wanted = await read_wish(request, Timeout)
        was_paused, body = await self._resume_for(id, wanted, request)
        if not was_paused:
            raise Refusal(409, f"sandbox {id} runs already")
        return answer(body, 201)

    async def _resume_for(self, id: str, wanted: Timeout, request: Request) -> tuple[bool, dict[str, object]]:
        record, found = await self._find(id)
        was_stopped = found.info.status not in (SandboxStatus.RUNNING, SandboxStatus.PAUSED)
        if was_stopped:
            record = await self._starter.start(record)
        if was_stopped and wanted.timeout is None:
            wanted = Timeout(DEFAULT_TIMEOUT)
        connected = decode_json(await self._ask(record, "connect", wanted), Connected)
        if was_stopped:
            await self._ask(record, "timeout", wanted)
        was_paused = was_stopped or connected.was_paused
        return was_paused, self._describe(id, record.key, found.template, request)

    async def _pause(self, id: str, request: Request) -> Response:
        wanted = await read_wish(request, PauseWish)
        record = await self._find_present(id)
        endless = self._configuration.default_lifetime
        await self._ask(record, "pause", Pause(memory=wanted.memory is not False, endless=endless))
        return Response(204)

    async def _metrics(self, id: str, request: Request) -> Response:
        record, found = await self._find(id)
        if found.state != "running":
            return answer([])
        try:
            measured = await self._ask(record, "metrics")
        except SandboxPaused:
            return answer([])
        return answer([msgspec.json.decode(measured)])

    async def _logs(self, id: str, request: Request) -> Response:
        await self._find(id)
        return answer({"logs": [], "logEntries": []})

    async def _set_network(self, id: str, request: Request) -> Response:
        wanted = await read_wish(request, NetworkWish)
        _, found = await self._find(id)
        template = "base" if found.record is None else found.record.template
        configured = (await in_thread(self._templates.spec, template)).network
        network = choose_network(configured, wanted, None)
        self._check_network(network, configured)
        await self._ask(await self._find_present(id), "network", SetNetwork(network=network))
        return Response(204)

    async def _snapshot(self, id: str, request: Request) -> Response:
        wanted = await read_wish(request, SnapshotWish)
        record = await self._find_present(id)
        body = encode(MakeSnapshot(name=wanted.name, labels={_SNAPSHOT_LABEL: id}))
        made = await post(self._directory.socket(record), f"{SANDBOXES}/{id}{operations.SNAPSHOT.path}", body)
        info = decode_json(made, SnapshotInfo)
        return answer(_describe_snapshot(info.id, info.name), 201)

    async def _list_snapshots(self, request: Request) -> Response:
        query = read_query(request.query)
        found = await in_thread(lambda: LayerStore(self._directory.home, self._directory.tenant).list())
        wanted = [each for each in found if _is_wanted(each, query)]
        token = query.get("nextToken", "")
        ids = [each.id for each in wanted]
        begin = ids.index(token) + 1 if token in ids else 0
        limit = int(query["limit"]) if query.get("limit", "").isdigit() and len(query["limit"]) < 6 else 100
        shown = wanted[begin : begin + max(limit, 1)]
        is_more = begin + len(shown) < len(wanted)
        headers = ((b"x-next-token", shown[-1].id.encode()),) if is_more else ()
        return answer([_describe_snapshot(each.id, each.name) for each in shown], headers=headers)

    async def _delete_snapshot(self, id: str) -> Response:
        await in_thread(lambda: LayerStore(self._directory.home, self._directory.tenant).delete(id))
        return Response(204)

    async def _fork(self, id: str, request: Request) -> Response:
        wanted = await read_wish(request, ForkWish)
        count = 1 if wanted.count is None else wanted.count
        if not 1 <= count <= _MOST_COPIES:
            raise Refusal(400, f"count must be from 1 to {_MOST_COPIES}")
        record = await self._find_present(id)
        _, found = await self._find(id)
        chosen = found.record or E2bRecord(template=found.template, timeout=DEFAULT_TIMEOUT)
        chosen = replace(chosen, timeout=max(float(wanted.timeout or chosen.timeout), 1.0), pauses_at=None)
        path = f"{SANDBOXES}/{id}{operations.FORK.path}"
        made = await post(self._directory.socket(record), path, encode(Fork(count=count)))
        copies = decode_json(made, list[SandboxInfo])
        try:
            return answer([{"sandbox": await self._begin_copy(each.id, chosen, request)} for each in copies], 201)
        except BaseException:
            await settled(self._destroy_all([each.id for each in copies]))
            raise

    async def _destroy_all(self, ids: list[str]) -> None:
        for id in ids:
            await self._starter.destroy(id)

    async def _begin_copy(self, id: str, chosen: E2bRecord, request: Request) -> dict[str, object]:
        record, _ = await self._find(id)
        await self._begin(record, chosen)
        return self._describe(id, record.key, chosen.template, request)


def split(path: str) -> tuple[str, list[str]]:
    """Split a path into its version, if it has one, and the other words."""
    words = [word for word in path.split("/") if word]
    version = words[0] if words and words[0] in _VERSIONS else ""
    return version, words[1:] if version else words


def serves(path: str) -> bool:
    """Return whether a path is of the control API."""
    _, words = split(path)
    return bool(words) and words[0] in _ROOTS


def split_metadata(metadata: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split metadata into what can be labels, and the rest."""
    labels: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in metadata.items():
        try:
            check_labels({name: value})
        except ValidationFailed:
            rest[name] = value
        else:
            (labels if len(labels) < MOST_LABELS else rest)[name] = value
    return labels, rest


def _describe_snapshot(id: str, name: str | None) -> dict[str, object]:
    return {"snapshotID": id, "names": [] if name is None else [name]}


def _is_wanted(snapshot: Snapshot, query: Mapping[str, str]) -> bool:
    sandbox, name = query.get("sandboxID"), query.get("name")
    return (not sandbox or snapshot.labels.get(_SNAPSHOT_LABEL) == sandbox) and (not name or snapshot.name == name)
