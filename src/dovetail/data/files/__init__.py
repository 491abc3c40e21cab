"""Click logs in files: the public TSV format, CSV and Parquet, local or remote, packed or not."""

from dovetail.data.files.columns import Columns
from dovetail.data.files.criteo import CriteoDecoder
from dovetail.data.files.csv import CsvDecoder
from dovetail.data.files.parquet import ParquetDecoder
from dovetail.data.files.source import FileSource

__all__ = ["Columns", "CriteoDecoder", "CsvDecoder", "FileSource", "ParquetDecoder"]
