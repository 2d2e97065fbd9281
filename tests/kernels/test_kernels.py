"""What `make kernels` makes of packages and results, without booting anything."""

import subprocess
from pathlib import Path

import pytest

from kernels.apt import Mirrors, NotObtainable, sources
from kernels.boot_files import make_initial
from kernels.cases import CASES, DEBIAN_12, Case
from kernels.machine import Result
from kernels.outcome import Outcome, find_kept, keep
from kernels.table import render, write_page

pytestmark = pytest.mark.pure

MIRRORS = Mirrors({"debian": "http://mirror.example/debian/"}, {"debian": "http://mirror.example/security/"})
MODULE = b"\x7fELF\0depends=%s\0vermagic=1\0"


def result(user: str, check: str, end: str, detail: str = "") -> Result:
    return Result(user, check, end, detail, 1.0)


def test_each_machine_has_a_name_of_its_own() -> None:
    assert len({case.slug for case in CASES}) == len(CASES)


def test_packages_come_from_the_mirrors_that_apt_knows_and_no_others() -> None:
    lines = sources(MIRRORS, "debian", "bookworm-backports")
    assert [line.split()[2:4] for line in lines] == [
        ["http://mirror.example/debian/", "bookworm"],
        ["http://mirror.example/security/", "bookworm-security"],
        ["http://mirror.example/debian/", "bookworm-backports"],
    ]
    with pytest.raises(NotObtainable, match="no mirror of Ubuntu"):
        sources(MIRRORS, "ubuntu", "noble")


def test_modules_are_loaded_after_those_they_need(tmp_path: Path) -> None:
    base = tmp_path / "lib/modules/1.0/kernel"
    base.mkdir(parents=True)
    for name, needs in (("ext4", b"jbd2,mbcache"), ("jbd2", b""), ("mbcache", b""), ("sound", b"")):
        (base / f"{name}.ko").write_bytes(MODULE % needs)
    archive = subprocess.run(["gzip", "-dc"], input=make_initial(tmp_path, "1.0"), capture_output=True, check=True)
    packed = archive.stdout
    assert packed.index(b"jbd2.ko\n") < packed.index(b"mbcache.ko\n") < packed.index(b"ext4.ko\n")
    assert b"sound.ko" not in packed
    assert b"switch_root" in packed


def test_a_machine_is_as_expected_when_it_gives_or_refuses_what_it_should() -> None:
    gives = [result("root", "doctor", "ok"), result("cove", "memory", "ok")]
    refuses = [result("root", "doctor", "ok"), result("cove", "doctor", "refused", "switched off")]
    fails = [*gives, result("cove", "pids", "failed", "AssertionError")]
    plain, switched_off = Case(DEBIAN_12), Case(DEBIAN_12, "switched off", is_refused=True)
    assert Outcome(plain, "6.1", gives).is_as_expected
    assert not Outcome(plain, "6.1", fails).is_as_expected
    assert not Outcome(plain, "6.1", []).is_as_expected
    assert Outcome(switched_off, "6.1", refuses).is_as_expected
    assert not Outcome(switched_off, "6.1", gives).is_as_expected
    assert Outcome(plain, reason="no mirror").is_as_expected


def test_the_page_has_the_results_and_keeps_its_words(tmp_path: Path) -> None:
    page = tmp_path / "platforms.md"
    page.write_text("before\n<!-- results: made by `make kernels` -->\nold\n<!-- end of results -->\nafter\n")
    outcomes = [
        Outcome(Case(DEBIAN_12), "6.1", [result("root", "doctor", "ok"), result("cove", "doctor", "refused", "a | b")]),
        Outcome(Case(DEBIAN_12, "other"), reason="no mirror"),
    ]
    for _ in range(2):
        write_page(page, outcomes)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert text.count(render(outcomes)) == 1
    assert "| Debian 12 | 6.1 | root | ok |" in text
    assert "| Debian 12 | 6.1 | plain | refused (1) |" in text
    assert "| Debian 12, other | not obtainable here (2) | | |" in text
    assert "| 1 | a \\| b |\n| 2 | no mirror |\n" in text


def test_results_of_several_runs_are_put_together(tmp_path: Path) -> None:
    case = Case(DEBIAN_12)
    assert find_kept(tmp_path, case) is None
    keep(tmp_path, Outcome(case, "6.1", [result("root", "doctor", "failed"), result("root", "pids", "ok")]))
    keep(tmp_path, Outcome(case, "6.1", [result("root", "doctor", "ok"), result("root", "verify", "ok")]))
    found = find_kept(tmp_path, case)
    assert found is not None
    assert [(each.check, each.end) for each in found.results] == [("doctor", "ok"), ("pids", "ok"), ("verify", "ok")]
    keep(tmp_path, Outcome(case, "6.2", [result("root", "doctor", "ok")]))
    found = find_kept(tmp_path, case)
    assert found is not None
    assert len(found.results) == 1
