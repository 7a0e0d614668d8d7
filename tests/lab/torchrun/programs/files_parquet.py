# row: 11
# needs: pyarrow
"""A Parquet file that the script leaves open, as far as pyarrow completes it."""

import os

import pyarrow
import pyarrow.parquet

table = pyarrow.table({"x": [1, 2, 3]})
writer = pyarrow.parquet.ParquetWriter(f"{os.environ['OUT']}/rank-{os.environ['RANK']}.parquet", table.schema)
writer.write_table(table)
