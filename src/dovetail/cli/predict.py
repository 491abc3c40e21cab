"""`dovetail predict`: scores of samples, by a run's model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.data import parse_options
from dovetail.cli.output import errors_shown, print_line, say
from dovetail.errors import SpecError
from dovetail.units import format_count

if TYPE_CHECKING:
    from torch import nn

    from dovetail.runtime.finished.predict import Predictions

SUFFIXES = (".csv", ".parquet")
HEADER = "row,score,probability"


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    data: Annotated[
        str | None,
        typer.Option(help="The samples: csv, parquet, package.module:function, ...; absent: as the run."),
    ] = None,
    data_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the data, e.g. path=today.csv.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A .csv or .parquet file to write; absent: CSV on stdout.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="So many samples at most.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint's folder; absent: the best of the run, else its newest.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="package.module:Class of a run that began with a module object.")
    ] = None,
) -> None:
    """Score samples with a run's model: raw rows in, scores out; labels are not needed."""
    with errors_shown():
        if out is not None and out.suffix not in SUFFIXES:
            raise SpecError(f"--out is `{out}`", hint="write to a file that ends in .csv or .parquet")
        from dovetail.runtime.finished.predict import predictions

        found = predictions(
            run,
            data,
            data_options=parse_options(data_option or []),
            model=own_module(model),
            checkpoint=checkpoint,
            num_samples=samples,
        )
        total = 0
        parts: list[Predictions] = []
        if out is None:
            print_line(HEADER)
        for part in found:
            total += len(part.rows)
            if out is None:
                for line in _lines(part):
                    print_line(line)
            else:
                parts.append(part)
        if out is not None:
            _write(out, parts)
        say(f"scored {format_count(total)} samples" + (f"; written to {out}" if out is not None else ""))


def own_module(name: str | None) -> nn.Module | None:
    """Return the module that `package.module:Class` makes, or None where there is no name."""
    if name is None:
        return None
    from torch import nn

    from dovetail.models.imports import import_function

    made: Any = import_function(name, what="model")
    module = made() if not isinstance(made, nn.Module) else made
    if not isinstance(module, nn.Module):
        raise SpecError(
            f"`{name}` makes a {type(module).__name__}", hint="name a class or function that makes a module"
        )
    return module


def _lines(part: Predictions) -> list[str]:
    """Return predictions as lines of CSV."""
    chances = [""] * len(part.rows) if part.probabilities is None else [f"{c:.9g}" for c in part.probabilities]
    scores = part.scores.reshape(len(part.rows), -1)
    words = ["|".join(f"{value:.9g}" for value in row) for row in scores]
    return [",".join(line) for line in zip(map(str, part.rows), words, chances, strict=True)]


def _table(part: Predictions) -> Any:
    """Return predictions as an Arrow table."""
    import pyarrow as pa

    scores = part.scores if part.scores.ndim == 1 else part.scores.reshape(len(part.rows), -1).tolist()
    columns = {"row": part.rows, "score": scores}
    if part.probabilities is not None:
        columns["probability"] = part.probabilities
    return pa.table(columns)


def _write(out: Path, parts: list[Predictions]) -> None:
    """Write predictions into one file."""
    if not parts:
        raise SpecError("the data have no samples that are not broken", hint="look at them: dovetail data inspect")
    try:
        if out.suffix == ".csv":
            lines = [line for part in parts for line in _lines(part)]
            out.write_text("\n".join([HEADER, *lines, ""]), encoding="utf-8")
            return
        import pyarrow as pa
        import pyarrow.parquet as arrow_parquet

        arrow_parquet.write_table(pa.concat_tables([_table(part) for part in parts]), out)
    except OSError as error:
        raise SpecError(f"{out}: cannot be written: {error}", hint="give a path in a folder that exists") from None
