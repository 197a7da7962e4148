"""The command line. Everything heavy is imported when a command runs, so that --help answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradleak.errors import GradleakError, InputError

if TYPE_CHECKING:
    import pandas as pd

    from gradleak.book.records import Record

app = typer.Typer(
    help="An executable book of gradient leakage: run its pages, check its claims.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Settings = Annotated[
    list[str] | None,
    typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="Change one parameter; may be given several times."),
]
ProfileOption = Annotated[str, typer.Option("--profile", help="quick: minutes on a CPU; paper: the papers' scale.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Processes at once; default: one a core.")]
Cluster = Annotated[str | None, typer.Option("--cluster", metavar="ADDRESS", help="A Dask scheduler to run trials on.")]


def _version(asked: bool) -> None:
    if asked:
        from gradleak import __version__

        typer.echo(f"gradleak {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Options of every command."""


@app.command("list")
def list_studies() -> None:
    """List the pages and what each regenerates; `run STUDY --show` lists its parameters."""
    import pandas as pd

    from gradleak import studies

    loaded = [studies.load(name) for name in studies.names()]
    _show(pd.DataFrame({"study": s.name, "paper": s.paper, "regenerates": s.place, "title": s.title} for s in loaded))


@app.command()
def run(
    study: Annotated[str, typer.Argument(help="A study's name; see `gradleak list`.")],
    parameter: Settings = None,
    profile: ProfileOption = "quick",
    jobs: Jobs = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the executed page; default runs/STUDY.")] = None,
    cluster: Cluster = None,
    show: Annotated[bool, typer.Option("--show", help="Only show the parameters, with their defaults.")] = False,
) -> None:
    """Run one page and write its executed notebook and its record."""
    from gradleak import paths, studies
    from gradleak.book import pages

    loaded = studies.load(study)
    parameters = studies.parameters(loaded, profile, _settings(parameter))
    if show:
        _show(_parameter_frame(loaded.Parameters, parameters.model_dump()))
        return
    page = pages.run_page(loaded, parameters, out or paths.runs() / study, jobs=jobs, cluster=cluster, fresh=True)
    typer.echo(f"page    {page.notebook}\nrecord  {page.record}\ntook    {page.seconds:.1f} s")


@app.command()
def book(profile: ProfileOption = "quick", jobs: Jobs = None) -> None:
    """Run every page that changed and build the book."""
    from gradleak.book import build as builder

    index = builder.build(profile, jobs=jobs)
    typer.echo(f"book    {index}")


@app.command()
def verify(
    study: Annotated[list[str] | None, typer.Argument(help="Studies to verify; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show each claim with its published, recorded and fresh values; fail if one fails at the scale it needs."""
    import pandas as pd

    from gradleak import claims, studies
    from gradleak.book import records

    wanted = [studies.load(name).name for name in study] if study else list(studies.names())
    fresh = latest_records()
    lines = [line for name in wanted for line in claims.lines(fresh, name)]
    rows = [
        {
            "claim": line.claim.id,
            "place": line.claim.place,
            "paper": line.claim.published,
            "rule": line.claim.rule_text,
            "recorded": line.recorded.shown,
            "fresh": line.fresh.shown,
            "verdict": line.verdict_text,
        }
        for line in lines
    ]
    if as_json:
        values = [
            row | {"recorded_value": line.recorded.value, "fresh_value": line.fresh.value, "failing": line.failing}
            for row, line in zip(rows, lines, strict=True)
        ]
        typer.echo(json.dumps(values, indent=1, ensure_ascii=False))
    else:
        _show(pd.DataFrame(rows))
    looser = [said for name in wanted if (kept := records.recorded(name)) for said in claims.loosened(kept)]
    failing = [line for line in lines if line.failing]
    for line in failing:
        values_found = f"recorded {line.recorded.shown}, fresh {line.fresh.shown}"
        typer.echo(f"{line.claim.id}: {values_found}; holds if {line.claim.rule_text}", err=True)
    for said in looser:
        typer.echo(said, err=True)
    if failing:
        typer.echo(f"{len(failing)} of {len(lines)} claims fail at the scale they need", err=True)
    if failing or looser:
        raise typer.Exit(1)


@app.command()
def record(
    study: Annotated[list[str], typer.Argument(help="Studies to record.")],
    parameter: Settings = None,
    profile: ProfileOption = "paper",
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """Run studies at the papers' scale and keep their results in results/."""
    from gradleak import studies
    from gradleak.book import records, runner

    loaded = [studies.load(name) for name in study]
    chosen = [studies.parameters(one, profile, _settings(parameter)) for one in loaded]
    for one, parameters in zip(loaded, chosen, strict=True):
        result = runner.run_study(one, parameters, jobs=jobs, cluster=cluster)
        path = records.file_of(one.name)
        records.write(result, path)
        typer.echo(f"record  {path}  ({result.provenance.wall_seconds:.0f} s)")


@app.command()
def data() -> None:
    """List the datasets, and where each would come from."""
    import pandas as pd

    from gradleak import data as datasets

    _show(pd.DataFrame([vars(state) for state in datasets.states()]))


@app.command()
def claims(study: Annotated[str | None, typer.Argument(help="One study; default: all.")] = None) -> None:
    """List what the papers claim, and the rule under which each counts as reproduced."""
    import pandas as pd

    from gradleak import claims as known
    from gradleak import studies

    name = studies.load(study).name if study else None
    columns = [
        {"claim": c.id, "place": c.place, "statement": c.statement, "paper": c.published, "rule": c.rule_text}
        for c in known.load(name)
    ]
    _show(pd.DataFrame(columns))


def latest_records() -> dict[str, Record]:
    """Return the newest record of each study among the runs and the book's pages."""
    from gradleak import paths, studies
    from gradleak.book import records

    found = {}
    for name in studies.names():
        files = [*paths.runs().glob(f"*/{name}.json"), *paths.executed().glob(f"*/{name}.json")]
        if files:
            found[name] = records.read(max(files, key=lambda file: file.stat().st_mtime))
    return found


def _settings(pairs: list[str] | None) -> dict[str, str]:
    settings = {}
    for pair in pairs or []:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise InputError(f"-p takes NAME=VALUE; got '{pair}'")
        settings[name.strip()] = value
    return settings


def _parameter_frame(model: Any, values: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {"parameter": name, "value": str(values[name]), "quick": str(field.default), "what": field.description}
        for name, field in model.model_fields.items()
    )


def _show(frame: pd.DataFrame) -> None:
    """Print a table; where the output is not a terminal nothing is folded or cut."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 240)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(frame.columns):
        table.add_column(str(column), overflow="fold", no_wrap=index == 0)
    for row in frame.astype(object).where(frame.notna(), "").values.tolist():
        table.add_row(*[str(cell) for cell in row])
    console.print(table)


def main() -> None:
    """Run the command line: one clear line for an error, a traceback only with --debug."""
    debug = "--debug" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        app(args=arguments, standalone_mode=True)
    except GradleakError as error:
        if debug:
            raise
        typer.echo(f"gradleak: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("gradleak: interrupted; finished trials are kept, the next run goes on from there", err=True)
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        first = str(error).splitlines()[0] if str(error) else ""
        typer.echo(f"gradleak: {type(error).__name__}: {first} (--debug shows where)", err=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
