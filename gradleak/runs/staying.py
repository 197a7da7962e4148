"""What stays on the CPU on a machine with a GPU, and why: declared here, shown on the pages and on the status page."""

from __future__ import annotations

from dataclasses import dataclass

from gradleak.runs import sources, studies
from gradleak.runs.sources import Definition
from gradleak.runs.studies import Study


@dataclass(frozen=True)
class Stays:
    """A piece of work that stays on the CPU, and the reason.

    `pages` do it, or the pages whose trials reach one of the definitions `by`; where neither is given, it may be a part
    of any page.
    """

    what: str
    reason: str
    pages: tuple[str, ...] = ()
    by: tuple[Definition, ...] = ()

    def of(self, page: str, reached: frozenset[Definition]) -> bool:
        """Whether a page, whose trials reach these definitions, is known to do it."""
        return page in self.pages or not reached.isdisjoint(self.by)


OPEN = Stays(
    "the open cells at the top of a page",
    "they work on one sample or a few and end before a GPU has started",
)
STAYS = (
    OPEN,
    Stays(
        "all trials of the pages on speech and on defended sentences",
        "they read one utterance or sentence at a time, in steps that are too small for a GPU",
        pages=("defended-sentences", "harder-transcripts", "matched-transcripts", "spoken", "transcripts", "words"),
    ),
    Stays(
        "all trials of the hunt for wrong certificates",
        "its clients are thousands of tiny networks, one at a time",
        pages=("certificates",),
    ),
    Stays(
        "the published searches for a soft label (L-BFGS and the particle swarm of pyswarms)",
        "they go sample by sample, and pyswarms works in numpy",
        by=(
            Definition("gradleak.studies.shared.searched", "search"),
            Definition("gradleak.studies.wang2024.noise", "swarm"),
        ),
    ),
    Stays(
        "FastICA (scikit-learn)",
        "it works in numpy",
        by=(Definition("gradleak.images.cocktail", "unmix_features"),),
    ),
    Stays(
        "the ranks and linear programs of RLG (SciPy)",
        "they work in numpy",
        pages=("label-attacks-compared", "reveal-labels"),
    ),
    Stays(
        "training of language models, recognisers and image priors",
        "the networks are small, and a recipe gives the same network everywhere",
        by=(
            Definition("gradleak.models.language_training", "train_language_model"),
            Definition("gradleak.models.recogniser_training", "trained_recogniser"),
            Definition("gradleak.models.picture_training", "learned"),
        ),
    ),
    Stays(
        "small least-squares problems",
        "CUDA's only driver takes matrices of full rank",
    ),
    Stays(
        "SSIM (scikit-image) and the pairing of images with the truth (SciPy)",
        "they work in numpy",
    ),
)


def on_page(study: Study) -> str:
    """Return what is known to stay on the CPU on a page, in words."""
    reached = sources.of_trials(study).definitions
    return "; ".join(f"{one.what} ({one.reason})" for one in STAYS if one is OPEN or one.of(study.name, reached))


def text() -> str:
    """Return the table of everything that stays on the CPU, for the book's status page."""
    pages = [(page, sources.of_trials(page).definitions) for page in map(studies.load, studies.names())]
    lines = ["| stays on the CPU | because | on |", "| --- | --- | --- |"]
    for one in STAYS:
        own = [
            f"{{doc}}`{page.name} <executed/{page.paper}/{page.name}>`"
            for page, reached in pages
            if one.of(page.name, reached)
        ]
        place = "every page" if one is OPEN else ", ".join(own) or "any page that needs it"
        lines.append(f"| {one.what} | {one.reason} | {place} |")
    head = ":::{table} What stays on the CPU on a machine with a GPU.\n:name: tab-stays-on-cpu\n"
    return f"{head}:class: gradleak-table\n\n" + "\n".join(lines) + "\n:::\n"
