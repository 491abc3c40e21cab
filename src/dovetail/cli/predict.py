"""`dovetail predict`: scores of samples, by a run's model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.data import parse_options
from dovetail.cli.options import KeyFile, OwnModel, Trust, with_key
from dovetail.cli.output import errors_shown, print_line, say
from dovetail.errors import SpecError
from dovetail.units import format_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from dovetail.runtime.finished.predict import Predictions

SUFFIXES = (".csv", ".parquet")


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    data: Annotated[
        str | None,
        typer.Option(help="The samples: a path, a format, package.module:function, ...; absent: as the run."),
    ] = None,
    data_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the data, e.g. path=today.csv.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A .csv or .parquet file to write; absent: CSV on stdout.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="So many samples at most.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint's folder; absent: the best of the run, else its newest.")
    ] = None,
    model: OwnModel = None,
    key_file: KeyFile = None,
    trust: Trust = False,
) -> None:
    """Score samples with a run's model: raw rows in, scores out; labels are not needed."""
    with errors_shown():
        if out is not None and out.suffix not in SUFFIXES:
            raise SpecError(f"--out is `{out}`", hint="write to a file that ends in .csv or .parquet")
        from dovetail.runtime.finished.predict import predictions

        with_key(key_file, run, checkpoint)
        found = predictions(
            run,
            data,
            data_options=parse_options(data_option or []),
            model=own_module(model),
            checkpoint=checkpoint,
            num_samples=samples,
            trust=trust,
            tell=say,
        )
        total = 0
        parts: list[Predictions] = []
        for part in found:
            if out is None and not total:
                print_line(_header(part))
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

    from dovetail.references import import_function

    made: Any = import_function(name, what="model")
    module = made() if not isinstance(made, nn.Module) else made
    if not isinstance(module, nn.Module):
        raise SpecError(
            f"`{name}` makes a {type(module).__name__}", hint="name a class or function that makes a module"
        )
    return module


def _columns(part: Predictions) -> dict[str, NDArray[np.float32] | None]:
    """Return scores and probabilities under the names of their columns; those of several answers have their names."""
    if not isinstance(part.scores, dict):
        chances = part.probabilities
        return {"score": part.scores, "probability": None if isinstance(chances, dict) else chances}
    by_name = part.probabilities if isinstance(part.probabilities, dict) else {}
    columns: dict[str, NDArray[np.float32] | None] = {}
    for name, scores in part.scores.items():
        columns |= {f"{name}.score": scores, f"{name}.probability": by_name.get(name)}
    return columns


def _header(part: Predictions) -> str:
    """Return the first line of CSV."""
    return ",".join(["row", *_columns(part)])


def _lines(part: Predictions) -> list[str]:
    """Return predictions as lines of CSV; several numbers of a sample have | between them."""
    words = [_words(column, len(part.rows)) for column in _columns(part).values()]
    return [",".join(line) for line in zip(map(str, part.rows), *words, strict=True)]


def _words(column: NDArray[np.float32] | None, rows: int) -> list[str]:
    """Return a column as text."""
    if column is None:
        return [""] * rows
    return ["|".join(f"{value:.9g}" for value in row) for row in column.reshape(rows, -1)]


def _table(part: Predictions) -> Any:
    """Return predictions as an Arrow table."""
    import pyarrow as pa

    columns: dict[str, Any] = {"row": part.rows}
    for name, column in _columns(part).items():
        if column is not None:
            columns[name] = column if column.ndim == 1 else column.reshape(len(part.rows), -1).tolist()
    return pa.table(columns)


def _write(out: Path, parts: list[Predictions]) -> None:
    """Write predictions into one file."""
    if not parts:
        raise SpecError("the data have no samples that are not broken", hint="look at them: dovetail data inspect")
    try:
        if out.suffix == ".csv":
            lines = [line for part in parts for line in _lines(part)]
            out.write_text("\n".join([_header(parts[0]), *lines, ""]), encoding="utf-8")
            return
        import pyarrow as pa
        import pyarrow.parquet as arrow_parquet

        arrow_parquet.write_table(pa.concat_tables([_table(part) for part in parts]), out)
    except OSError as error:
        raise SpecError(f"{out}: cannot be written: {error}", hint="give a path in a folder that exists") from None
