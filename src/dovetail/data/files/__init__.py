"""Samples in files: tables of several formats and the public click log, local or remote, packed or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.on_demand import on_demand

if TYPE_CHECKING:
    from dovetail.data.files.arrow import ArrowDecoder, HuggingFaceDecoder
    from dovetail.data.files.columns import Columns
    from dovetail.data.files.criteo import CriteoDecoder
    from dovetail.data.files.csv import CsvDecoder
    from dovetail.data.files.numpy import NumpyDecoder
    from dovetail.data.files.parquet import ParquetDecoder
    from dovetail.data.files.source import FileSource
    from dovetail.data.files.webdataset import WebDatasetDecoder

__all__ = [
    "ArrowDecoder",
    "Columns",
    "CriteoDecoder",
    "CsvDecoder",
    "FileSource",
    "HuggingFaceDecoder",
    "NumpyDecoder",
    "ParquetDecoder",
    "WebDatasetDecoder",
]

__getattr__, __dir__ = on_demand(__name__)
