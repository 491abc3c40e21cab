"""What commands that build a model are given: its name and options, its data, prices."""

from __future__ import annotations

from typing import Annotated

import typer

ModelName = Annotated[str, typer.Argument(help="ctr-dnn, 2emb, dlrm, matchnet, nce, or package.module:function.")]
ModelOptions = Annotated[
    list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the model.")
]
DataName = Annotated[str, typer.Option(help="clicks, criteo, csv, parquet, or package.module:function.")]
DataOptions = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the data, e.g. path=day.tsv.gz.")
]
Prices = Annotated[
    list[str] | None, typer.Option(metavar="NAME=USD", help="USD per hour of `cpu` (one core) or `gpu`.")
]

ReplanAbove = Annotated[
    float, typer.Option(min=0.0, help="With --replan: the part by which a stage's throughput may be off.")
]
ReplanSteps = Annotated[int, typer.Option(min=1, help="With --replan: over how many steps stages are measured.")]
