"""Packages that a sandbox's user installs: below HOME, without root, seen by sessions and contexts alike."""

import io
import shutil
import zipfile

import pytest
from support.executors import needs_python

from cove import AsyncSandbox, Isolation

pytestmark = pytest.mark.anyio


def wheel(version: str, text: str) -> bytes:
    """A wheel with one module and one program."""
    info = f"parcel-{version}.dist-info"
    files = {
        "parcel.py": f"text = {text!r}\ndef main():\n    print('program', text)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: parcel\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nparcel = parcel:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


async def put_wheel(sandbox: AsyncSandbox, version: str, text: str) -> str:
    name = f"parcel-{version}-py3-none-any.whl"
    (await sandbox.exec(["tee", name], stdin=wheel(version, text))).check()
    return name


@needs_python
@pytest.mark.parametrize("isolation", Isolation)
async def test_what_pip_installs_can_be_imported_here_and_in_the_next_context(isolation: Isolation) -> None:
    async with AsyncSandbox.create(isolation=isolation) as sandbox:
        before = await sandbox.create_code_context()
        assert (await before.run("import parcel")).error is not None
        session = await sandbox.create_session()
        first = await put_wheel(sandbox, "1.0", "one")
        installed = await session.exec(f"pip install --no-index ./{first}")
        assert installed.ok, installed.stderr
        assert (await before.run("import parcel; parcel.text")).text == "'one'"
        after = await sandbox.create_code_context()
        assert (await after.run("import parcel; parcel.text, parcel.__file__.startswith(__import__('os').environ['HOME'])")).text == "('one', True)"  # fmt: skip  # noqa: E501
        assert (await session.exec("parcel; python3 -c 'import parcel, numpy; print(parcel.text)'")).stdout == "program one\none\n"  # fmt: skip  # noqa: E501

        second = await put_wheel(sandbox, "2.0", "two")
        assert (await after.run(f"!python3 -m pip install --quiet --no-index ./{second}")).stderr == ""
        assert (await sandbox.run_code("import parcel; parcel.text")).text == "'two'"
        shown = await session.exec(
            "pip list 2>/dev/null | grep parcel; ls -d ~/.local/lib/python3*/site-packages/parcel-*"
        )
        assert shown.stdout.split()[:2] == ["parcel", "2.0"]
        assert len(shown.stdout.splitlines()) == 2
        removed = await after.run("%pip uninstall -y parcel")
        assert "Successfully uninstalled parcel-2.0" in removed.stdout
        assert (await sandbox.run_code("import parcel")).error is not None


@needs_python
async def test_a_virtual_environment_of_the_users_own_takes_what_is_installed_into_it() -> None:
    async with AsyncSandbox.create() as sandbox:
        name = await put_wheel(sandbox, "1.0", "own")
        result = await sandbox.exec(
            f"python3 -m venv /tmp/own && /tmp/own/bin/pip install -q --no-index ./{name} && "
            "/tmp/own/bin/python -c 'import parcel; print(parcel.__file__)'; ls ~/.local"
        )
        assert result.stdout.startswith("/tmp/own/lib/python3"), result.stderr


@pytest.mark.skipif(shutil.which("npm", path="/usr/bin:/usr/local/bin") is None, reason="there is no npm below /usr")
async def test_npm_installs_programs_below_home() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec(
            "mkdir tool; cd tool; printf '#!/usr/bin/env node\\nconsole.log(6 * 7)\\n' > run.js; chmod +x run.js; "
            """echo '{"name": "tool-of-mine", "version": "1.0.0", "bin": "run.js"}' > package.json"""
        )
        installed = await sandbox.exec("npm install --global --offline ./tool")
        assert installed.ok, installed.stderr
        assert (await sandbox.exec("tool-of-mine; command -v tool-of-mine")).stdout == (
            "42\n/home/user/.local/bin/tool-of-mine\n"
        )
