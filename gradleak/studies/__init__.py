"""The studies: one module for each page of the book, in the folder of its paper.

Four files make a page, and no list of pages has to be edited:

    gradleak/studies/<paper>/label_accuracy.py          the code
    notebooks/<paper>/label-accuracy.ipynb              the page
    gradleak/claims/<paper>/label-accuracy.yaml         the paper's claims
    tests/studies/<paper>/test_label_accuracy.py        the tests

The folder `shared` holds code that several pages use. A page's module has

    a docstring, whose first line is the page's title;
    `PLACE`, the part of the paper that the page reproduces;
    experiments, classes whose fields are their inputs and whose `run` returns rows;
    `Parameters`, which declares every parameter and returns the experiments;
    functions that make tables and figures, each from a record;
    `summary`, which states once what the page found.
"""

from gradleak.runs.experiments import Experiment, Parameters, resolve_device, setting
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Group
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.runs.studies import Study, load, names, paper_of, parameters, stated

__all__ = [
    "Columns",
    "Experiment",
    "Group",
    "Parameters",
    "Record",
    "Sees",
    "Study",
    "load",
    "names",
    "paper_of",
    "parameters",
    "resolve_device",
    "setting",
    "stated",
]
