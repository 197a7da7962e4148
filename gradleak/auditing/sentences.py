"""Write the sentences of a report: what an attack recovered, and what would stop this attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gradleak import metrics
from gradleak.answers import Answer
from gradleak.auditing.findings import Cost, Finding, Outcome, Place, Target, measure_text
from gradleak.cases import Case
from gradleak.catalogue import ATTACKS

if TYPE_CHECKING:
    from gradleak.auditing.report import Report

SHARES = ("labels", "classes", "features", "words", "sentences")
CERTAIN = {
    "unique": "no other answer fits",
    "exact": "every layer's equations are met",
    "partial": "the best that its equations leave",
    "found": "all searches that end agree",
    "ambiguous": "other answers fit as well",
    "counted": "an estimate",
    "searched": "the best of a search",
    "failed": "it says itself that it failed",
}
# The targets that a verdict names, the worst for privacy first.
MAIN: tuple[Target, ...] = ("inputs", "sentences", "words", "labels")
# A defence stops an attack if all attacks together recover at most this share of it, or no more than a guess.
STOPPED = 0.25
# A finding whose measure is below this value recovers too little to be stopped.
WORTH = 0.1


def of_finding(found: Answer, measures: Mapping[str, float], chance: Mapping[str, float], case: Case) -> str:
    """Return the result of an attack in one sentence."""
    certain = CERTAIN.get(found.status, found.status)
    if case.rounds and found.certain:
        certain += " within its rounding"
    if found.status == "counted" and found.counts is not None:
        certain += _simulated(found)
    remarks = [found.reason if found.status not in ("counted", "unique") else ""]
    remarks += [found.in_front] if found.in_front not in found.reason else []
    remark = f" ({'; '.join(filter(None, remarks))})" if any(remarks) else ""
    if not measures:
        return _begun(f"{_claimed(found)}: {certain}{remark}.", case)
    parts = [f"{measure_text(name, measures[name])} of the {name}" for name in SHARES if name in measures]
    if "inputs" in measures:
        exact, recognisable = (measure_text(name, measures[name]) for name in ("inputs", "recognisable"))
        more = "" if exact == recognisable else f", {recognisable} recognisable"
        parts.append(f"{exact} of the inputs exact{more}")
    if "labels" in chance:
        parts[0] += f", where guessing gets {measure_text('labels', chance['labels'])}"
    if "image-psnr" in measures:
        best = "the image" if case.size == 1 else "the best image"
        ssim = f", SSIM {measures['image-ssim']:.2f}" if "image-ssim" in measures else ""
        psnr = measures["image-psnr"]
        flat = ", no better than a flat image in its mean colour" if measures.get("image-gain", 1.0) <= 0 else ""
        graded = metrics.grade(psnr)
        if graded == "not recognisable" and measures.get("recognisable"):
            graded = "recognisable by its SSIM"
        parts.append(f"{best} at {measure_text('image-psnr', psnr)} ({graded}){ssim}{flat}")
    return _begun(f"{'; '.join(parts)}: {certain}{remark}.", case)


def _simulated(found: Answer) -> str:
    """Return how reliable a count is, by simulation."""
    if found.expected is None:
        return ", and how sure it is was not simulated"
    share, guess = found.expected.share, found.expected.guess
    right, lucky = measure_text("labels", share), measure_text("labels", guess)
    text = f"; on simulated batches {right} of such counts are right, and {lucky} of"
    return f"{text} even guesses" + (": a guess is the better answer" if share <= guess else "")


def _begun(text: str, case: Case) -> str:
    """Return a sentence that begins with the client's precision, unless that is float32 or float64."""
    return f"In {case.precision}, {text[0].lower()}{text[1:]}" if case.rounds else f"{text[0].upper()}{text[1:]}"


def _claimed(found: Answer) -> str:
    """Return what an attack claims to have recovered, for answers that cannot be compared with the truth."""
    if found.failed:
        return "Nothing"
    if found.sentences is not None:
        return f"{len(found.sentences)} sentences"
    if found.labels is not None:
        classes = found.labels.nan_to_num(0).argmax(dim=1).tolist()
        return f"Labels and features of {len(classes)} samples, of classes {', '.join(map(str, classes[:12]))}"
    if found.counts is not None:
        pairs = [f"{place} × {int(found.counts[place])}" for place in found.counts.nonzero()[:, 0].tolist()]
        return f"Classes {', '.join(pairs[:12])}"
    if found.classes is not None:
        return f"Classes {', '.join(map(str, sorted(found.classes)[:12]))}"
    if found.inputs is not None:
        return f"{len(found.inputs)} inputs"
    return f"{len(found.tokens or found.words or ())} words"


def main_measure(finding: Finding) -> str:
    """Return the measure by which a finding is judged, "" if it has none; the measure of inputs comes first."""
    for name in ("recognisable", "sentences", "words", "labels", "classes", "features"):
        if name in finding.measures:
            return name
    return ""


def stopped(finding: Finding, others: Sequence[Finding], costs: Sequence[Cost]) -> str:
    """Return the defences that stopped an attack here, with their cosines, or else what stops it in principle."""
    name = main_measure(finding)
    if not name or finding.measures[name] < max(WORTH, finding.chance.get(name, 0.0) + 1e-9):
        return ""
    remedy = next(entry.remedy for entry in ATTACKS if entry.name == finding.attack)
    threshold = max(STOPPED * finding.measures[name], finding.chance.get(name, 0.0))
    cosines = {entry.place: entry.cosine for entry in costs}
    stopping, tried = [], False
    for defense in dict.fromkeys(entry.defense for entry in costs):
        place = finding.place._replace(defense=defense)
        rivals = [entry for entry in others if entry.place == place]
        if defense in ("none", finding.defense):
            continue
        # The labels determine the classes.
        names = {name, "labels"} if name == "classes" else {name}
        values = [entry.measures[measure] for entry in rivals for measure in names if measure in entry.measures]
        if not values:
            continue  # without a measure it is unknown whether the defence stops the attack
        tried = True
        if max(values) <= threshold:
            cosine = cosines.get(place)
            stopping.append(f"{defense} (cosine {cosine:.2f})" if cosine is not None else defense)
    if stopping:
        return f"Stopped here by {', '.join(stopping)}."
    tail = "None of the other defences tried here stops it. " if tried else ""
    return f"{tail}In principle: {remedy}."


def of_unproved(rounded: Sequence[str], defenses: Sequence[str]) -> list[str]:
    """Return lines on the defences and precisions for which nothing is proved, because they change the gradient."""
    changed = [name for name in dict.fromkeys(defenses) if name not in ("none", "update")]
    lines = (
        [f"Nothing is proved behind {', '.join(changed)}: the gradient is changed before it is sent"] if changed else []
    )
    return lines + ([f"Nothing is proved in {', '.join(rounded)}: the gradient is rounded"] if rounded else [])


def of_outcomes(report: Report) -> list[str]:
    """Return a line for each target that was not attacked, or not by all applicable attacks, with the reason."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for outcome in report.outcomes:
        if outcome.why or outcome.outcome == "not compared":
            why = outcome.why or f"nothing certifies {outcome.attack}'s answer, and there is no private batch"
            partly = "" if outcome.outcome in ("not attacked", "not compared") else ", but not by all attacks"
            place = f"{report.shown_place(outcome.place)}, batch of {outcome.batch_size}"
            groups.setdefault((outcome.target, outcome.outcome + partly, why), []).append(place)
    total = len(report.cases)
    places = {key: "" if len(where) == total else f" ({'; '.join(where)})" for key, where in groups.items()}
    return [f"{target} {state}{places[target, state, why]}: {why}" for target, state, why in groups]


def of_verdict(outcomes: Sequence[Outcome], budget: str) -> str:
    """Return the result of an audit in one sentence: what the strongest attacks recovered in the worst case.

    Args:
        outcomes: The outcomes of all cases.
        budget: What attacks were given, in words.
    """
    cases: dict[Place, dict[Target, Outcome]] = {}
    for outcome in outcomes:
        cases.setdefault(outcome.place, {})[outcome.target] = outcome
    if not cases:
        return "Nothing was attacked."
    place = max(cases, key=lambda place: _severity(cases[place]))
    # Labels determine the classes, and exact inputs the features.
    told = [cases[place][target] for target in MAIN if target in cases[place]]
    found = [_recovered(outcome) for outcome in told if outcome.outcome == "recovered"]
    nothing = [outcome.target for outcome in told if outcome.outcome == "not recovered"]
    unknown = [f"{outcome.target} ({outcome.attack})" for outcome in told if outcome.outcome == "not compared"]
    missed = [outcome.target for outcome in told if outcome.outcome == "not attacked"]
    parts = ["recovered: " + ", ".join(found)] if found else [] if unknown else ["nothing was recovered"]
    parts += [f"{', '.join(nothing)} not recovered by these attacks within {budget}"] if nothing else []
    compared = "which cannot be compared without the private batch"
    parts += [f"found without a guarantee: {', '.join(unknown)}, {compared}"] if unknown else []
    parts += [f"not attacked: {', '.join(missed)}"] if missed else []
    known = {"none": "without a defence", "update": "from the update"}
    where = f"{known.get(place.defense, f'behind {place.defense}')}, in a batch of {place.batch_size}: "
    start = f"In the worst of {len(cases)} cases, {where}" if len(cases) > 1 else where[0].upper() + where[1:]
    return f"{start}{'; '.join(parts)}."


def _severity(case: Mapping[Target, Outcome]) -> tuple[float, ...]:
    """Return how bad the outcomes of a case are; inputs and sentences count first."""
    grades = {"exact": 2.0, "recognisable": 1.0}
    severity: list[float] = []
    for target in MAIN:
        outcome = case.get(target)
        recovered = outcome is not None and outcome.outcome == "recovered"
        grade = grades.get(outcome.grade or "", 0.0) if outcome is not None else 0.0
        severity += [float(recovered), grade, (outcome.share or 0.0) if recovered and outcome is not None else 0.0]
    return tuple(severity)


def _recovered(outcome: Outcome) -> str:
    """Return what an attack recovered, how much of it, and how surely."""
    number = f"{outcome.number} of {outcome.samples} {outcome.target}"
    if outcome.target == "words" or not outcome.samples:
        share = "" if outcome.share is None else f"{measure_text(outcome.target, outcome.share)} of the "
        number = f"{share}{outcome.target}"
    how = {"exact": " exactly", "recognisable": " recognisably"}.get(outcome.grade or "", "")
    # Without the private batch, only what is guaranteed counts as recovered.
    sure = "" if outcome.samples else "guaranteed, "
    sure = f"{outcome.certified} of them guaranteed, " if outcome.certified else sure
    return f"{number}{how} ({sure}{outcome.attack})"


def of_haste(report: Report) -> str:
    """Return a sentence on the attacks that had too little time, "" if there are none."""
    stopped_early = [attempt.attack for attempt in report.not_tried if attempt.late]
    names = dict.fromkeys([*stopped_early, *(attempt.attack for attempt in report.findings if attempt.cut)])
    return f"Cut short by the time: {', '.join(names)}. More minutes may find more." if names else ""
