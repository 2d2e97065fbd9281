"""A Dockerfile means what Docker says it means, or is refused with its line."""

import pytest

from cove.errors import ValidationFailed
from cove.images.dockerfile import DEFAULT_PATH, Copy, Run, Set, Stage, needed_stages, parse_dockerfile
from cove.images.dockerfile_parser import MOST_BYTES
from cove.images.dockerfile_variables import MOST_NESTED, Unreplaceable, expand

pytestmark = pytest.mark.pure


def test_stages_have_their_steps_and_what_they_stand_on() -> None:
    stages = parse_dockerfile(
        """
ARG VERSION=3
FROM base:${VERSION} AS build
ARG NAME=cove
ENV A=1 B="two words" C=$A
WORKDIR /src/$NAME
COPY --chmod=755 a b /dst/
RUN make \\
    all
FROM scratch
COPY --from=build /src/out /out
USER 1000
EXPOSE 80/tcp
LABEL who="us and you"
ENTRYPOINT ["/out", "--fast"]
CMD run it
""",
        {"VERSION": "4"},
    )
    assert stages == [
        Stage(
            "build",
            "base:4",
            [
                Set(5, "ENV", ("A=1", "B=two words", "C=")),
                Set(6, "WORKDIR", ("/src/cove",)),
                Copy(7, ("a", "b"), "/dst/", None, 0o755, None, False),
                Run(8, ("/bin/sh", "-c", "make     all"), (("NAME", "cove"),)),
            ],
        ),
        Stage(
            "1",
            "scratch",
            [
                Copy(11, ("/src/out",), "/out", "build", None, None, False),
                Set(12, "USER", ("1000",)),
                Set(13, "EXPOSE", ("80/tcp",)),
                Set(14, "LABEL", ("who=us and you",)),
                Set(15, "ENTRYPOINT", ("/out", "--fast")),
                Set(16, "CMD", ("/bin/sh", "-c", "run it")),
            ],
        ),
    ]


def test_an_argument_before_from_is_seen_in_a_stage_that_asks_for_it() -> None:
    (stage,) = parse_dockerfile("ARG V=1\nFROM a\nARG V\nENV X=$V\n", {})
    assert stage.steps == [Set(4, "ENV", ("X=1",))]


def test_variables_of_the_image_and_of_an_earlier_stage_are_known() -> None:
    text = "FROM base AS one\nENV PATH=/x:$PATH\nFROM one\nENV P=$PATH Q='$PATH'\nFROM scratch\nENV P=$PATH\n"
    stages = parse_dockerfile(text, {}, lambda image: {"PATH": f"/{image}"})
    assert [stage.steps for stage in stages] == [
        [Set(2, "ENV", ("PATH=/x:/base",))],
        [Set(4, "ENV", ("P=/x:/base", "Q=$PATH"))],
        [Set(6, "ENV", (f"P={DEFAULT_PATH}",))],
    ]


@pytest.mark.parametrize("line", ["ENV A=$A$A$A$A", "LABEL a=" + "$A" * 7_000])
def test_a_value_cannot_grow_without_bound(line: str) -> None:
    text = "FROM a\nENV A=0123456789\n" + f"{line}\n" * 20
    with pytest.raises(ValidationFailed, match=r"line \d+: a value has more than"):
        parse_dockerfile(text, {})


def test_a_dockerfile_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="bytes"):
        parse_dockerfile("#" * (MOST_BYTES + 1), {})


def test_the_shell_holds_for_later_lines_and_stages() -> None:
    text = 'FROM a AS b\nRUN x\nSHELL ["/bin/bash", "-ec"]\nRUN x\nCMD y\nFROM b\nRUN ["z", "1"]\nRUN z\n'
    one, two = parse_dockerfile(text, {})
    assert one.steps == [
        Run(2, ("/bin/sh", "-c", "x"), ()),
        Run(4, ("/bin/bash", "-ec", "x"), ()),
        Set(5, "CMD", ("/bin/bash", "-ec", "y")),
    ]
    assert two.steps == [Run(7, ("z", "1"), ()), Run(8, ("/bin/bash", "-ec", "z"), ())]


def test_a_script_can_be_written_as_a_document() -> None:
    (stage,) = parse_dockerfile("FROM a\nRUN <<EOF\necho $HOME\nexit 1\nEOF\nRUN cat <<X > /f\ntext\nX\n", {})
    first, second = stage.steps
    assert isinstance(first, Run)
    assert isinstance(second, Run)
    assert first.words[2] == "echo $HOME\nexit 1\n"
    assert second.words[2] == "cat <<X > /f\ntext\nX\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$A", "one"),
        ("${A}b", "oneb"),
        ("$MISSING.", "."),
        ("${MISSING:-x$A}", "xone"),
        ("${A:-x}", "one"),
        ("${A:+yes}${MISSING:+no}", "yes"),
        (r"\$A \\", r"$A \\"[:-1]),
        ("$", "$"),
        ("${MISSING:-${A}}", "one"),
        ("${MISSING:-${ABSENT:-x${A}y}z}!", "xoneyz!"),
        ("${A:+${MISSING:-$A}}}", "one}"),
        ("${EMPTY-x}${EMPTY:-y}${A+z}${MISSING+w}${MISSING-v}", "yzv"),
        ("${1} ${A.b} {$A}", "${1} ${A.b} {one}"),
        (r"${MISSING:-\$A}", "$A"),
    ],
)
def test_variables_are_replaced(text: str, expected: str) -> None:
    assert expand(text, {"A": "one", "EMPTY": ""}) == expected


@pytest.mark.parametrize("text", ["${A:-x", "${A:-${B}", "${A:-" * 1000, "${A:-" * (MOST_NESTED + 1) + "x" + "}" * 30])
def test_variables_that_do_not_end_or_are_nested_too_deeply_are_refused(text: str) -> None:
    with pytest.raises(Unreplaceable):
        expand(text, {})
    with pytest.raises(ValidationFailed, match="other/Recipe, line 2: "):
        parse_dockerfile(f"FROM a\nENV X={text}\n", {}, name="other/Recipe")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("RUN x", "line 1: RUN before the first FROM"),
        ("FROM a\nWORKDIR", "line 2: WORKDIR takes a value"),
        ("FROM a\nUSER", "line 2: USER takes a value"),
        ("FRM x", "line 1: FRM is no instruction"),
        ("", "no FROM|cannot be read"),
        ("FROM a\nONBUILD RUN x", "line 2: ONBUILD is not supported"),
        ("FROM --platform=x a", "line 1: FROM --platform=x is not supported"),
        ("FROM $X", "line 1: FROM an empty name"),
        ("FROM a AS", "line 1: FROM takes an image"),
        ("FROM a\nRUN --mount=type=cache,target=/x y", "line 2: RUN --mount"),
        ("FROM a\nADD https://x.example/a /", "line 2: ADD of a URL"),
        ("FROM a\nCOPY --parents a b", "line 2: COPY --parents"),
        ("FROM a\nCOPY --chmod=u+x a b", "no octal mode"),
        ("FROM a\nCOPY a", "takes a source|at least two"),
        ("FROM a\nSHELL bash", "SHELL"),
        ("FROM a\nWHATEVER x", "WHATEVER|unknown instruction"),
        ("FROM a\nCOPY <<E /x\ntext\nE\n", "here-document"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ValidationFailed, match=says):
        parse_dockerfile(text, {})


def test_values_of_a_file_are_bounded_together_and_not_only_each() -> None:
    long = "x" * 10_000
    many = " ".join(f"A{number}=$L" for number in range(450))
    for text in (f"ENV L={long}\nENV {many}", f"ARG L={long}\nLABEL {many}"):
        with pytest.raises(ValidationFailed, match="line 3: the values have more than"):
            parse_dockerfile(f"FROM scratch\n{text}\n", {})
    with pytest.raises(ValidationFailed, match="more than 20000 values"):
        parse_dockerfile("FROM scratch\n" + f"ENV {'A=1 ' * 4000}\n" * 6, {})


def test_many_variables_are_read_in_a_time_that_grows_with_them() -> None:
    """A copy of all variables for each value is still at it when the test's time is over."""
    pairs = " ".join(f"A{number}=${{A1}}" for number in range(4000))
    (stage,) = parse_dockerfile(f"FROM scratch\nENV {pairs}\nLABEL {pairs}\n", {})
    assert [len(step.value) for step in stage.steps if isinstance(step, Set)] == [4000, 4000]


@pytest.mark.parametrize(
    "line", ["WORKDIR /a\0b", "# a\0b", 'COPY ["a\\u0000b", "/"]', "COPY $GIVEN /", "ENV A=$GIVEN"]
)
def test_a_nul_byte_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(ValidationFailed, match=r"line 3\b.* NUL byte"):
        parse_dockerfile(f"FROM scratch\nARG GIVEN\n{line}\nRUN true\n", {"GIVEN": "a\0b"})


def test_a_number_of_many_digits_is_the_name_of_an_image() -> None:
    stages = parse_dockerfile(f"FROM scratch\nFROM {'1' * 5000}\nFROM 0\nCOPY --from=01 a /\n", {})
    assert needed_stages(stages, None) == [0, 2]
    with pytest.raises(ValidationFailed, match="no stage"):
        needed_stages(stages, "1" * 5000)
