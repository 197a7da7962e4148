"""One module a page, in its paper's folder: its parameters, its experiments, its tables and figures.

A module `<paper>/loss_landscape.py` here, a notebook `notebooks/<paper>/loss-landscape.ipynb`, a claims file
`claims/<paper>/loss-landscape.yaml` and a test `tests/studies/<paper>/test_loss_landscape.py` make a page; nothing else
names it. What several pages share lies in `shared`.

A module has: a docstring whose first line is the page's title; `PLACE`, the place in the paper; experiments, classes
whose fields are their inputs and whose `run` gives rows; `Parameters`, which states every parameter once and yields the
experiments; and the tables and figures, each made from a record.
"""

from gradleak.runs.experiments import Experiment, Parameters, Row, resolve_device, setting
from gradleak.runs.studies import Study, check_notebook, load, names, paper_of, parameters, stated

__all__ = [
    "Experiment",
    "Parameters",
    "Row",
    "Study",
    "check_notebook",
    "load",
    "names",
    "paper_of",
    "parameters",
    "resolve_device",
    "setting",
    "stated",
]
