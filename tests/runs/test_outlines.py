"""Wrong parameters are refused from a page's text, before its study is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gradleak import studies
from gradleak.errors import InputError, UnknownName
from gradleak.runs import outlines
from tests.checkout import PARAMETERS, Toy


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["theorm1"], "unknown study 'theorm1': did you mean 'theorem1'?"),
        (["theorem1", "-p", "samles=5"], "unknown parameter of 'theorem1' 'samles': did you mean 'samples'?"),
        (["theorem1", "-p", "samples=abc"], "'abc' is not right, input should be a valid integer"),
        (["theorem1", "-p", "samples=0"], "greater than or equal to 1 (int: random layers per number of classes"),
        (["theorem1", "-p", "device=tpu"], "'auto', 'cpu' or 'cuda'"),
        (["theorem1", "-p", "seed=-1"], "greater than or equal to 0"),
        (["precision", "-p", "precisions=float8"], "'float8' is not right"),
        (["theorem1", "--profile", "fast"], "unknown profile 'fast'"),
    ],
)
@pytest.mark.parametrize("command", ["run", "record"])
def test_mistakes_are_refused_without_torch(command: str, words: list[str], message: str) -> None:
    code = f"import sys; sys.argv = ['gradleak', '{command}', *{words}]\n"
    code += "try:\n    from gradleak.cli import main; main()\nexcept SystemExit as stop: code = stop.code\n"
    code += "assert code == 2, code\nassert not {'torch', 'pandas', 'scipy', 'papermill'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert message in result.stderr


@pytest.mark.parametrize("name", studies.names())
def test_an_outline_states_what_the_study_declares(name: str) -> None:
    study = studies.load(name)
    outline, declared = outlines.outline(study), study.Parameters
    assert set(outline.model_fields) == set(declared.model_fields)
    for parameter, field in outline.model_fields.items():
        assert (field.default, field.description) == (
            declared.model_fields[parameter].default,
            declared.model_fields[parameter].description,
        )
    # Whatever the study accepts passes here too.
    for profile in ("quick", "paper", "smallest"):
        values = studies.parameters(study, profile, {"device": "cpu"}).model_dump()
        outline(**values)


def test_limits_and_literals_of_the_study_count(checkout: Toy) -> None:
    checkout.rewrite(
        ('PLACE = "Table 1"', 'PLACE = "Table 1"\nWord = Literal["a", "b"]'),
        ("    words: list[str] = setting(", "    words: list[Word] = setting("),
        ("from typing import Any, ClassVar", "from typing import Any, ClassVar, Literal"),
    )
    study = checkout.load()
    outlines.refuse(study, "paper", {"samples": "1000", "words": "a,b", "scale": "0.5", "rounded": "true"})
    for wrong, message in (
        ({"samples": "1001"}, "less than or equal to 1000"),
        ({"scale": "0"}, "greater than 0"),
        ({"rounded": "perhaps"}, "valid boolean"),
        ({"words": "a,c"}, "'c' is not right, input should be 'a' or 'b'"),
    ):
        with pytest.raises(InputError, match=message):
            outlines.refuse(study, "quick", wrong)
    with pytest.raises(UnknownName, match="did you mean 'samples'"):
        outlines.refuse(study, "quick", {"sample": "3"})


def test_comments_in_the_lines_above_describe_a_parameter(checkout: Toy) -> None:
    checkout.write_notebook(
        "", parameters=PARAMETERS.replace("samples: int = 4  # how many draws", "# how many\n# draws\nsamples: int = 4")
    )
    fields = outlines.outline(checkout.load()).model_fields
    assert fields["samples"].description == "how many draws"
    assert fields["scale"].description == "their size"
