"""Define the command line. Large packages are imported only when a command runs, so that --help is fast."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from gradleak import interrupts
from gradleak.errors import ForeignError, GradleakError, InputError, MissingData, StorageError, first_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradleak.auditing import Report
    from gradleak.runs.records import Record
    from gradleak.studies import Parameters, Study

# The states of a dataset, in the words of `gradleak run --show`.
STATES = {"embedded": "in the package", "file": "at hand", "download": "downloaded by the run", "missing": "MISSING"}
# The least width of a long column of a table.
NARROW = 16
# The most lines of a table of numbers that `gradleak run` prints.
MOST_LINES = 16
# The fields of claims that `gradleak claims` shows; the book's scoreboard explains them.
CLAIMED = ("id", "whose", "place", "statement", "published", "rule")


class Interrupted(Exception):
    """Ctrl-C with a message about what was kept, because typer would exit without a message."""


class Commands(TyperGroup):
    """Commands for which Ctrl-C and a `sys.exit` in the user's code become errors with a message."""

    def invoke(self, context: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(context)
        except BaseException as error:
            if interrupts.caused(error):
                trials = "finished trials are kept, the next run goes on from there"
                message = "no report is written" if context.invoked_subcommand == "audit" else trials
                raise Interrupted(message) from error
            # rich exits when the reader of the output has closed it, as in `gradleak list | head`.
            if isinstance(error, Exception) or isinstance(error.__context__, BrokenPipeError):
                raise
            raise ForeignError(
                f"code that the command ran ended it: {type(error).__name__}: {first_line(error)}"
            ) from error


app = typer.Typer(
    cls=Commands,
    help="An executable book of gradient leakage: run its pages, check its claims.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Settings = Annotated[
    list[str] | None,
    Option("-p", "--parameter", metavar="NAME=VALUE", help="Set a parameter; may be repeated."),
]
Profile = Annotated[str, Option(help="quick: minutes on a CPU; paper: the papers' scale.")]
Jobs = Annotated[int | None, Option(min=1, help="Parallel processes; default: one per core.")]
Cluster = Annotated[str | None, Option(metavar="ADDRESS", help="A Dask scheduler to run trials on.")]


def _version(asked: bool) -> None:
    if asked:
        from gradleak import __version__

        typer.echo(f"gradleak {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Read the options that all commands share."""
    from gradleak import paths

    try:
        paths.root()
    except MissingData:
        # The package is installed without a checkout, so cache results in the user's cache folder.
        os.environ.setdefault("GRADLEAK_CACHE", str(Path.home() / ".cache" / "gradleak"))


@app.command("list")
def list_studies() -> None:
    """List the studies and what each reproduces; `run STUDY --show` lists a study's parameters."""
    from gradleak import studies

    loaded = map(studies.load, studies.names())
    _show([{"study": one.name, "paper": one.paper, "regenerates": one.place, "title": one.title} for one in loaded])


@app.command()
def run(
    study: Annotated[str, Argument(help="A study's name; see `gradleak list`.")],
    parameter: Settings = None,
    profile: Profile = "quick",
    jobs: Annotated[int | None, Option(min=1, help="Parallel processes; default: one per core; `quick`: one.")] = None,
    out: Annotated[
        Path | None, Option(help="Folder for the executed page; default: runs/STUDY, with other parameters its own.")
    ] = None,
    cluster: Cluster = None,
    show: Annotated[bool, Option("--show", help="Only show the parameters; with `--profile paper`, the time.")] = False,
    open_page: Annotated[bool, Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Run one study, show its numbers and what they say of each claim, and write its notebook, record and HTML page."""
    interrupts.listen()
    ((loaded, parameters),) = _asked([study], profile, parameter)
    from gradleak import paths
    from gradleak.book import pages, rerun
    from gradleak.runs import forecast, records

    if show:
        values, fields = parameters.model_dump(), loaded.Parameters.model_fields.items()
        _show([{"parameter": name, "value": values[name], "what": field.description} for name, field in fields])
        _say(_data_of(loaded, parameters))
    if profile == "paper" and not cluster:  # the time on a cluster does not follow from this machine's
        typer.echo(forecast.forecast(loaded, parameters, jobs=jobs), err=True)
    if show:
        return
    folder = out or paths.runs() / rerun.folder_of(loaded, parameters)
    page = pages.run_page(loaded, parameters, folder, jobs=jobs, cluster=cluster)
    made = records.read(page.record)
    rows, sentences = rerun.summary(loaded, made)
    file = rerun.write(rows, sentences, page.notebook)
    for table in rerun.numbers(loaded, made):
        _show(table[:MOST_LINES])
        if further := len(table) - MOST_LINES:
            _say([f"… and {further} more lines, which the record holds"] if further > 0 else [])
    _show(rows)
    _say(sentences)
    typer.echo(f"notebook  {page.notebook}\nrecord    {page.record}\npage      {file}\ntook      {page.seconds:.1f} s")
    if open_page:
        import webbrowser

        webbrowser.open(file.as_uri())


@app.command()
def book(
    profile: Profile = "quick",
    jobs: Jobs = None,
    cluster: Cluster = None,
    pdf: Annotated[bool, Option("--pdf", help="Also print the book to a PDF; needs Chromium.")] = False,
) -> None:
    """Run every page that changed and build the book."""
    from gradleak.book import build, printing

    interrupts.listen()
    index = build.build(profile, jobs=jobs, cluster=cluster)
    typer.echo(f"book    {index}")
    if pdf:
        file = index.parent.parent / "gradleak.pdf"
        typer.echo(f"pdf     {file}  ({printing.write_pdf(index.parent, file)} sheets)")


@app.command()
def archive(
    out: Annotated[Path | None, Option(help="The zip file; default: in _build.")] = None,
    codecheck: Annotated[bool, Option("--codecheck", help="Only write codecheck.yml.")] = False,
) -> None:
    """Pack sources, records, the built book and its PDF into one zip file with checksums."""
    from gradleak.book import archive as packing

    _say([f"manifest {packing.write_codecheck()}"] if codecheck else packing.write(out))


@app.command()
def verify(
    study: Annotated[list[str] | None, Argument(help="Studies to verify, claim by claim; default: a summary.")] = None,
    failing: Annotated[bool, Option("--failing", help="Also list the claims that fail.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print all claims as JSON.")] = False,
    outdated: Annotated[bool, Option("--outdated", help="Only list records that today's code would change.")] = False,
) -> None:
    """Count what was reproduced, by paper; the exit code is 1 if a claim fails at the scale that it needs."""
    from gradleak import studies

    wanted = [studies.load(name).name for name in study] if study else list(studies.names())
    from gradleak import claims
    from gradleak.book import verifying
    from gradleak.runs import golden, records

    interrupts.listen()
    if outdated:
        _list_outdated(wanted)
        return
    fresh = latest_records()
    recorded = {name: records.recorded(name) for name in wanted}
    lines = [line for name in wanted for line in claims.lines(fresh, name)]
    states = {name: golden.state(record) if record else "none" for name, record in recorded.items()}
    if as_json:
        typer.echo(json.dumps(verifying.facts(lines, states), indent=1, ensure_ascii=False))
    else:
        _show(verifying.by_paper(lines))
        _say(verifying.sentences(lines, fresh))
        _show(verifying.rows(lines, states) if study else [])
    failed = [line for line in lines if line.failing]
    _say(verifying.failures(failed) if failing else [])
    loosened = [message for record in recorded.values() if record for message in claims.loosened(record)]
    _say(loosened, err=True)
    if failed or loosened:
        raise typer.Exit(1)


def _list_outdated(wanted: Sequence[str]) -> None:
    """List the records that today's code would change, and count records by state; fail if there is one."""
    from gradleak.runs import golden, records

    recorded = [record for name in wanted if (record := records.recorded(name))]
    old = [record for record in recorded if golden.outdated(record)]
    for record in old:
        typer.echo(
            f"{record.study}: {golden.outdated(record)} of {len(record.trials)} trials ran before the golden rows of "
            f"the page changed; run `gradleak record {record.study}`, or state in the record why its rows stand"
        )
    typer.echo(f"{len(recorded)} records: {len(recorded) - len(old)} current, {len(old)} outdated")
    if old:
        raise typer.Exit(1)


@app.command()
def rerun(
    study: Annotated[str, Argument(help="The study whose recorded trials run again.")],
    minutes: Annotated[float, Option(help="Total time in minutes.")] = 10.0,
    trials: Annotated[int | None, Option(min=1, help="The most trials.")] = None,
    device: Annotated[str | None, Option(help="cpu or cuda; default: as recorded.")] = None,
    jobs: Jobs = None,
) -> None:
    """Run recorded trials again, and show which rows and verdicts differ; nothing is stored."""
    interrupts.listen()
    from gradleak import studies

    studies.load(study)  # a mistake is found before the slow imports
    from gradleak.book import again

    found = again.again(study, minutes=minutes, most=trials, device=device, jobs=jobs)
    _say(found.lines)
    if found.differs:
        raise typer.Exit(1)


@app.command()
def record(
    study: Annotated[list[str] | None, Argument(help="Studies to record.")] = None,
    parameter: Settings = None,
    profile: Profile = "paper",
    part: Annotated[str | None, Option(help="Run all trials of this part, and no others.")] = None,
    undecided: Annotated[bool, Option("--undecided", help="Run the trials that decide most claims a second.")] = False,
    merge: Annotated[list[Path] | None, Option(metavar="FILE", help="Add a file's trials; may be repeated.")] = None,
    minutes: Annotated[float | None, Option(help="Stop after this time in minutes.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="With --undecided: only list the trials.")] = False,
    out: Annotated[Path | None, Option(metavar="FILE", help="With --undecided: append trials to this file.")] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """Run studies at the papers' scale; each finished trial is added to the record in results/ at once."""
    interrupts.listen()
    from tqdm import tqdm

    from gradleak import claims
    from gradleak.book import queue
    from gradleak.runs import forecast, recording, records

    if bool(study) + undecided + bool(merge) != 1:
        raise InputError("name studies to record, or give --undecided or --merge")
    if not undecided and (dry_run or out):
        raise InputError(f"{'--dry-run' if dry_run else '--out'} is an option of --undecided: give both")
    if dry_run:
        entries = queue.queue()
        _show([entry.row for entry in entries])
        typer.echo(queue.summary(entries))
    elif undecided:
        _say(queue.run(queue.queue(), minutes=minutes, jobs=jobs, out=out, say=tqdm.write))
    results = recording.merge(merge, claims.rules, queue.asked) if merge else []
    for loaded, parameters in _asked(study or [], profile, parameter):
        rules = claims.rules(loaded.name)
        if not cluster:
            todo = recording.Recording(loaded, parameters, rules).missing(part)
            typer.echo(forecast.forecast(loaded, parameters, jobs=jobs, todo=todo), err=True)
        results.append(
            recording.record(loaded, parameters, rules=rules, part=part, minutes=minutes, jobs=jobs, cluster=cluster)
        )
    for result in results:
        typer.echo(f"record  {records.file_of(result.study)}  ({result.size}, {result.seconds:.0f} s in all)")


@app.command()
def audit(
    model: Annotated[
        str,
        Argument(help="MODULE:FUNCTION, a function without arguments that returns the nn.Module; or a network's name."),
    ],
    samples: Annotated[
        str | None,
        Option(
            "--data",
            help="A dataset, a folder of images, an .npz, .csv or .parquet file; or MODULE:FUNCTION, a function "
            "without arguments that returns two tensors, inputs (N, …) and targets, or a dictionary of input_ids and "
            "labels.",
        ),
    ] = None,
    target: Annotated[str | None, Option(help="The column of a table that holds the class.")] = None,
    size: Annotated[int | None, Option(help="Side of the images in pixels (4 … 2048).")] = None,
    batch_size: Annotated[str, Option(metavar="1,4,16", help="Batch sizes.")] = "1,4",
    labels: Annotated[str | None, Option(help="The client's labels: onehot, smoothing/0.1 or mixup.")] = None,
    defense: Annotated[str, Option(metavar="none,clip/1", help="Defences.")] = "none",
    precision: Annotated[
        str | None, Option(help="The client's: float32, tf32, tf32-matmul, bf16 or fp16; default: the model's.")
    ] = None,
    mode: Annotated[
        str | None, Option(help="The client runs the model in eval or train mode; default: both, where they differ.")
    ] = None,
    loss: Annotated[str, Option(help="Loss: cross-entropy, focal or binary.")] = "cross-entropy",
    out: Annotated[Path, Option(help="Folder for the report.")] = Path("report"),
    minutes: Annotated[float, Option(help="Time for attacks and report in minutes.")] = 5.0,
    memory: Annotated[float | None, Option(metavar="GB", help="Memory limit; default: most.")] = None,
    no_images: Annotated[bool, Option("--no-images", help="Keep no private or recovered images.")] = False,
    fail_above: Annotated[
        list[str] | None,
        Option(
            metavar="MEASURE=LIMIT",
            help="Exit with 1 above the limit (labels=0.5, inputs=recognisable), with 2 if not attacked.",
        ),
    ] = None,
    allow_not_attacked: Annotated[
        bool, Option("--allow-not-attacked", help="Let --fail-above pass if its measure was not attacked.")
    ] = False,
    before: Annotated[Path | None, Option(help="Weights before a client's round (safetensors).")] = None,
    after: Annotated[Path | None, Option(help="Weights after the round.")] = None,
    rate: Annotated[float, Option(help="The client's learning rate.")] = 0.1,
    local_steps: Annotated[int | None, Option(min=1, help="The client's local steps; default: 1.")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Instead of --local-steps: passes over --data.")] = None,
    momentum: Annotated[float, Option(help="The client's momentum.")] = 0.0,
    weight_decay: Annotated[float, Option(help="The client's weight decay.")] = 0.0,
    shape: Annotated[str | None, Option(metavar="3,32,32", help="Input shape, with --before.")] = None,
    steps: Annotated[int, Option(min=1, help="Steps of a search for inputs.")] = 400,
    seed: Annotated[int, Option(help="Seed of all random numbers.")] = 0,
) -> None:
    """Run all applicable attacks on your own model's gradients, and write a report on what they reveal."""
    from gradleak import early

    for text in filter(None, (model, samples)):
        if ":" in text and not Path(text).exists():
            early.check_named(text)
    early.check_file(samples or "")
    if ":" not in model:
        early.check_known("network", model)
    if samples and ":" not in samples and not Path(os.path.expanduser(samples)).exists():
        early.check_known("dataset", samples)
    for text in filter(None, map(str.strip, defense.split(","))):
        early.check_known("defence", text.partition("/")[0])
    for text in fail_above or ():
        early.check_known("measure", text.partition("=")[0])
    from gradleak.auditing import folders, options, sentences

    limits = options.limits_of(fail_above or [])  # a mistake is found before the audit
    client = {"rate": rate, "momentum": momentum, "weight_decay": weight_decay}
    interrupts.listen()
    folder = out.absolute()  # the model's code may change the working directory
    with folders.held(folder):  # fails now rather than after the audit
        report = options.report(
            model, samples, size=size, target=target, batch_size=batch_size, labels=labels, defense=defense,
            precision=precision, mode=mode, loss=loss, minutes=minutes, before=before, after=after,
            local_steps=local_steps, epochs=epochs, client=client, shape=shape, seed=seed, memory=memory,
            images=not no_images, steps=steps,
        )  # fmt: skip
        with interrupts.finishing() as pressed:
            _write(report, folder)
    _say([report.verdict, *report.notes])
    _show(report.table())
    _say([*sentences.of_outcomes(report), *report.proofs])
    if message := sentences.of_haste(report):
        typer.echo(message)
    typer.echo(f"report  {out / folders.PAGE}")
    exceeded = report.above(limits, allow_not_attacked=allow_not_attacked)
    if report.broken:
        suffix = f" (and {len(report.broken) - 1} more)" if len(report.broken) > 1 else ""
        typer.echo(f"gradleak: the audit is not whole: {report.broken[0]}{suffix}", err=True)
    _say(exceeded, err=True)
    if exceeded:
        raise typer.Exit(1)
    if report.interrupted or pressed:
        raise Interrupted("the report has the results so far")
    if report.broken:
        raise typer.Exit(3)


def _write(report: Report, place: Path) -> None:
    """Write a report to its locked folder; if this fails, write it to a temporary folder and name that folder."""
    try:
        report.put(place)
    except GradleakError as error:
        spare = report.write(tempfile.mkdtemp(prefix="gradleak-report-"))
        raise StorageError(f"{error}; the report was written to {spare} instead") from error


@app.command()
def data(
    check: Annotated[bool, Option("--check", help="Load every file, and say whether it can be used.")] = False,
) -> None:
    """List the datasets and texts, and the source of each."""
    from gradleak import data as datasets
    from gradleak.book import lacking
    from gradleak.data import text

    if check:
        found = lacking.check()
        _show(found or [{"state": "no file in $GRADLEAK_DATA or $GRADLEAK_WEIGHTS that a page reads"}])
        raise typer.Exit(any(one["state"].startswith("cannot") for one in found))
    _show([vars(state) for state in (*datasets.states(), *text.states())])


@app.command()
def claims(study: Annotated[str | None, Argument(help="One study; default: all.")] = None) -> None:
    """List the papers' claims and our own, each with the rule by which it is judged."""
    from gradleak import studies

    name = studies.load(study).name if study else None  # a mistake is found before the slow imports
    from gradleak import claims as known
    from gradleak.claims import listed

    loaded = known.load(name)
    entries = [listed.listed(known.Line(one, one), None) for one in map(known.Judgement, loaded)]
    _show([{name: entry[name] for name in CLAIMED} for entry in entries])


@app.command()
def hunt(
    family: Annotated[list[str] | None, Argument(help="Families of attacks to test; default: all.")] = None,
    minutes: Annotated[float, Option(help="Time in minutes.")] = 5.0,
    rounds: Annotated[int | None, Option(min=1, help="Seeds for each attack, instead of --minutes.")] = None,
    seed: Annotated[int | None, Option(help="First seed; default: a random one.")] = None,
    kept: Annotated[Path, Option(help="File for the outcomes; a later hunt continues it.")] = Path("runs/hunt.jsonl"),
    strict: Annotated[bool, Option("--strict", help="Fail on a wrong certificate if all assumptions hold.")] = False,
) -> None:
    """Search for wrong certificates on random clients that meet all assumptions or violate one of them."""
    from gradleak import early

    for name in family or ():
        early.check_known("family of attacks", name)
    from gradleak import hunting

    limit = None if rounds else minutes
    tallies = hunting.hunt(minutes=limit, rounds=rounds, seed=seed, families=family or (), kept=kept, say=typer.echo)
    typer.echo(hunting.table(tallies))
    wrong = sum(tally.outcomes["wrong"] for tally in tallies if tally.broken == "none")
    typer.echo(f"wrong certificates where every assumption holds: {wrong}; all that was found: {kept}")
    if strict and wrong:
        raise typer.Exit(1)


def latest_records() -> dict[str, Record]:
    """Return the newest record of each study among the runs and the executed pages of the book."""
    from gradleak import paths, studies
    from gradleak.runs import records

    newest = {}
    for name in studies.names():
        files = [*paths.runs().glob(f"*/{name}.json"), *paths.executed().glob(f"*/{name}.json")]
        if files:
            newest[name] = records.read(max(files, key=lambda file: file.stat().st_mtime))
    return newest


def _data_of(study: Study, parameters: Parameters) -> list[str]:
    """Return a line for each dataset and each file of weights that a run reads: its source, or what is missing."""
    from gradleak import data as datasets
    from gradleak import paths
    from gradleak.data import text
    from gradleak.models import ready

    wanted = study.datasets(parameters)
    states = [state for state in (*datasets.states(), *text.states()) if state.name in wanted]
    lines = [f"data: {state.name} is {STATES.get(state.state, state.state)} ({state.source})" for state in states]
    named = {str(value) for inputs in study.trials(parameters) for value in inputs.values()}
    folder = paths.weights_folder()
    networks: dict[str, tuple[str, ...]] = {name: (ready.file_of(name),) for name in (*ready.READY, *ready.IMAGENET)}
    networks |= {f"{network}/published": (*linked.values(),) for network, linked in ready.WANG2024.items()}
    for network, linked in networks.items():
        for file in linked if any(network in value for value in named) else ():
            state = "file" if folder and (folder / file).is_file() else "missing"
            lines.append(f"weights: {network} is {STATES[state]} ({file} in $GRADLEAK_WEIGHTS)")
    return lines


def _asked(names: Sequence[str], profile: str, settings: list[str] | None) -> list[tuple[Study, Parameters]]:
    """Return studies with their parameters, some of which are set as "NAME=VALUE"."""
    from gradleak import studies

    loaded, given = [studies.load(name) for name in names], dict[str, str]()
    for setting in settings or []:
        name, separator, value = setting.partition("=")
        if not separator or not name.strip():
            raise InputError(f"-p takes NAME=VALUE; got '{setting}'")
        given[name.strip()] = value
    return [(study, studies.parameters(study, profile, given)) for study in loaded]


def _say(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines, to standard error with `err`."""
    for line in lines:
        typer.echo(line, err=err)


def _show(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table, with a width of 240 if the output is not a terminal; in a narrow terminal, a paragraph per row."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not rows:
        return
    console = Console(width=None if sys.stdout.isatty() else 240)
    cells = [[_text(cell) for cell in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(rows[0], *cells, strict=True)]
    if sum(min(width, NARROW) + 3 for width in widths) > console.width:
        for line in cells:
            text = "; ".join(f"{head}: {cell}" for head, cell in zip(rows[0], line, strict=True) if cell)
            typer.echo(textwrap.fill(text, console.width, subsequent_indent="  "))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(rows[0]):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    for line in cells:
        table.add_row(*line)
    console.print(table)


def _text(cell: Any) -> str:
    return "" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def main() -> None:
    """Run the command line, and print errors as one line or, with --debug, as a traceback."""
    debug = "--debug" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        app(args=arguments, standalone_mode=True)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, GradleakError):
            message, code = str(error), 2
        elif isinstance(error, Interrupted):
            message, code = f"interrupted; {error}", 130
        else:
            message, code = f"{type(error).__name__}: {printable(first_line(error))} (--debug shows where)", 3
        typer.echo(f"gradleak: {message}", err=True)
        sys.exit(code)


if __name__ == "__main__":
    main()
