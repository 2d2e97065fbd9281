"""What importing Cove loads, and what it leaves until it is used."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.pure


def loaded(statements: str) -> set[str]:
    script = f"import sys\n{statements}\nprint(*sys.modules)"
    end = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(end.stdout.split())


def test_importing_cove_loads_nothing_else() -> None:
    assert not {"typing", "asyncio", "msgspec", "cove.model"} & loaded("import cove")


@pytest.mark.parametrize("name", ["AsyncSandbox", "Sandbox", "SandboxSpec", "CoveError"])
def test_a_public_name_is_had_without_the_runtime(name: str) -> None:
    modules = loaded(f"from cove import {name}")
    assert not {"cove.runtime", "cove.client", "aiohttp"} & modules


@pytest.mark.parametrize(
    "statements",
    [
        "from cove.api.provider import provider_for; provider_for('http://127.0.0.1:1', 'key')",
        "import cove, cove.blocking, cove.client.provider, cove.client.sandbox",
        "import cove.cli.sandboxes, cove.cli.processes, cove.cli.session",
    ],
    ids=["provider", "client", "command"],
)
def test_a_client_of_a_server_loads_no_runtime(statements: str) -> None:
    modules = loaded(statements)
    assert not [
        name for name in modules if name.startswith(("cove.runtime", "cove.linux", "cove.agent", "cove.server"))
    ]


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert "AttributeError" in loaded(
        "import cove\ntry: cove.Sandbx\nexcept AttributeError as e: print(type(e).__name__)"
    )
