"""Parameters and pages that do not fit their study are refused in one clear line."""

from __future__ import annotations

import pytest

from gradleak import studies
from gradleak.errors import InputError, UnknownName
from tests.checkout import PARAMETERS, Toy


def test_text_is_parsed(checkout: Toy) -> None:
    given = {"samples": "7", "scale": "2", "rounded": "true", "words": "x, y"}
    found = studies.parameters("toy", "paper", given).model_dump()
    assert [found[name] for name in given] == [7, 2.0, True, ["x", "y"]]
    assert [studies.parameters("toy", scale).model_dump()["samples"] for scale in ("paper", "smallest")] == [8, 1]
    assert checkout.load().Parameters.model_fields["samples"].description == "how many draws"
    with pytest.raises(UnknownName, match="profile 'papr': did you mean 'paper'"):
        studies.parameters("toy", "papr")


def test_networks_of_known_parameters_are_not_checked_again() -> None:
    kind = studies.load("theorem1").Parameters
    fits = studies.parameters("theorem1", "smallest")
    values = fits.model_dump()
    wrong = values | {"dataset": "digits"}
    assert kind.fitting(wrong).model_dump() == wrong
    assert kind.fitting(values, fits) == fits
    with pytest.raises(ValueError, match="is trained on 'photos' and cannot be shown 'digits'"):
        kind.fitting(wrong, fits)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("samples: int", "samples: float", "`samples` is float there, declared int"),
        ("samples: int", "sampels: int", "`samples` is missing there, declared int"),
        ("samples: int = 4  # how many draws\n", "", "`samples` is missing there, declared int"),
        ("samples: int = 4", "samples = 4", "`samples = 4` must read as `size: int = 4  # what it is`"),
        ("samples: int = 4", "samples: int =", "the cell tagged 'parameters' is not Python"),
    ],
)
def test_a_page_that_states_other_parameters_is_refused(checkout: Toy, old: str, new: str, message: str) -> None:
    assert old in PARAMETERS
    checkout.write_notebook("1 + 1", parameters=PARAMETERS.replace(old, new))
    with pytest.raises(InputError, match=f"^notebooks/toy2020/toy.ipynb.*{message}"):
        studies.parameters("toy")


def test_rules_over_several_parameters_are_checked(checkout: Toy) -> None:
    rule = (
        "    @pydantic.model_validator(mode='after')\n    def rule(self):\n"
        "        if self.rounded and self.scale == 1:\n            raise ValueError('rounding needs a scale')\n"
        "        return self\n\n"
    )
    experiments = "    def experiments(self)"
    checkout.rewrite((experiments, rule + experiments), ("import torch", "import pydantic\nimport torch"))
    with pytest.raises(InputError, match=r"^parameters of 'toy': rounding needs a scale$"):
        studies.parameters("toy", "quick", {"rounded": "true"})
