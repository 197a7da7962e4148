"""Declare the work that runs on the CPU even if there is a GPU, with reasons, for the pages and the status page."""

from __future__ import annotations

from dataclasses import dataclass

from gradleak.runs import sources, studies
from gradleak.runs.sources import Definition
from gradleak.runs.studies import Study


@dataclass(frozen=True)
class Stays:
    """A kind of work that runs on the CPU even if there is a GPU.

    Attributes:
        what: The work.
        reason: Why it runs on the CPU.
        by: The definitions that do the work, which belongs to all pages whose experiments use one of them. Without any,
            the work may be part of any page.
    """

    what: str
    reason: str
    by: tuple[Definition, ...] = ()


OPEN = Stays(
    "the code that is shown unfolded at the top of a page",
    "it works on a few samples and ends before a GPU would have started",
)
STAYS = (
    OPEN,
    Stays(
        "the published searches for a soft label (L-BFGS and the particle swarm of pyswarms)",
        "they treat one sample after another, and pyswarms computes with NumPy",
        by=(
            Definition("gradleak.studies.shared.searched", "search"),
            Definition("gradleak.studies.wang2024.noise", "swarm"),
        ),
    ),
    Stays(
        "FastICA (scikit-learn)",
        "it computes with NumPy",
        by=(Definition("gradleak.images.cocktail", "unmix_features"),),
    ),
    Stays(
        "the ranks and linear programs of RLG (SciPy)",
        "they compute with NumPy",
        by=(Definition("gradleak.labels.hard.rlg", "rlg"),),
    ),
    Stays(
        "training of language models, recognisers and image priors",
        "the networks are small, and on the CPU the same settings give the same network on every machine",
        by=(
            Definition("gradleak.models.language_training", "train_language_model"),
            Definition("gradleak.models.recogniser_training", "trained_recogniser"),
            Definition("gradleak.models.picture_training", "learned"),
        ),
    ),
    Stays(
        "small least-squares problems",
        "the only solver that PyTorch offers on a GPU needs matrices of full rank",
    ),
    Stays(
        "SSIM (scikit-image) and the pairing of images with the truth (SciPy)",
        "they compute with NumPy",
    ),
)


def on_page(study: Study) -> str:
    """Return a text that lists the work of a page that is known to run on the CPU, with reasons."""
    definitions = sources.of_trials(study).definitions
    shared = [work for work in STAYS if work is OPEN or not definitions.isdisjoint(work.by)]
    return "; ".join([f"{work.what} ({work.reason})" for work in shared] + _experiments(study))


def text() -> str:
    """Return the table of all work that runs on the CPU, in Markdown, for the book's status page."""
    pages = [(page, sources.of_trials(page).definitions) for page in map(studies.load, studies.names())]
    lines = ["| stays on the CPU | because | on |", "| --- | --- | --- |"]
    for work in STAYS:
        links = [_link(page) for page, definitions in pages if not definitions.isdisjoint(work.by)]
        place = "every page" if work is OPEN else ", ".join(links) or "any page that needs it"
        lines.append(f"| {work.what} | {work.reason} | {place} |")
    reasons: dict[str, list[str]] = {}
    for page, _ in pages:
        for reason in _reasons(page):
            reasons.setdefault(reason, []).append(_link(page))
    lines += [f"| experiments of these pages | {reason} | {', '.join(links)} |" for reason, links in reasons.items()]
    head = ":::{table} What stays on the CPU on a machine with a GPU.\n:name: tab-stays-on-cpu\n"
    return f"{head}:class: gradleak-table\n\n" + "\n".join(lines) + "\n:::\n"


def _experiments(study: Study) -> list[str]:
    """Return the kinds of experiments of a study that run on the CPU, with their reasons."""
    descriptions = []
    for reason in _reasons(study):
        parts = [part for part, kind in study.experiments.items() if kind.stays_on_cpu == reason]
        subject = "all experiments" if len(parts) == len(study.experiments) else f"experiments {', '.join(parts)}"
        descriptions.append(f"{subject} ({reason})")
    return descriptions


def _reasons(study: Study) -> list[str]:
    """Return why experiments of a study run on the CPU."""
    return list(dict.fromkeys(kind.stays_on_cpu for kind in study.experiments.values() if kind.stays_on_cpu))


def _link(page: Study) -> str:
    return f"{{doc}}`{page.name} <executed/{page.paper}/{page.name}>`"
