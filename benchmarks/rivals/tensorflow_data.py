"""How fast TensorFlow's `tf.data` reads a Parquet file in training order.

    python -m venv DIR && DIR/bin/pip install tensorflow-cpu pyarrow
    DIR/bin/python benchmarks/rivals/tensorflow_data.py samples.parquet --batch 4096 --window 4

Run it with the interpreter of TensorFlow's own environment (tried with 2.21). As TensorFlow reads no Parquet itself,
PyArrow does within a `map` with as many calls at once as `tf.data` finds best: row groups in random order, several in a
window, their rows shuffled, and batches cut from them. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pyarrow.parquet as arrow_parquet
import tensorflow as tf

SLOTS = [f"slot{number + 1}" for number in range(26)]
NUMBERS = [f"number{number + 1}" for number in range(13)]


def dataset(path: str, *, batch: int, window: int) -> tf.data.Dataset:
    """Return batches of ids, numbers and labels."""
    groups = arrow_parquet.ParquetFile(path).num_row_groups

    def read(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        table = arrow_parquet.ParquetFile(path).read_row_groups(numbers.tolist())
        order = np.random.default_rng(int(numbers[0])).permutation(table.num_rows)
        ids = np.stack([table[name].to_numpy() for name in SLOTS], axis=1)[order]
        dense = np.stack([table[name].to_numpy().astype(np.float32) for name in NUMBERS], axis=1)[order]
        return ids.astype(np.int64), dense, table["label"].to_numpy().astype(np.float32)[order]

    def read_all(numbers: tf.Tensor) -> tuple[tf.Tensor, ...]:
        ids, dense, labels = tf.numpy_function(read, [numbers], (tf.int64, tf.float32, tf.float32))
        return tf.ensure_shape(ids, (None, 26)), tf.ensure_shape(dense, (None, 13)), tf.ensure_shape(labels, (None,))

    windows = tf.data.Dataset.range(groups).shuffle(groups, seed=0).batch(window)
    read_ahead = windows.map(read_all, num_parallel_calls=tf.data.AUTOTUNE)
    batches = read_ahead.flat_map(lambda *rows: tf.data.Dataset.from_tensor_slices(rows).batch(batch))
    return batches.prefetch(tf.data.AUTOTUNE)


def main() -> None:
    """Read the file twice, and print the speed of the second time."""
    parser = argparse.ArgumentParser(description="Samples of a Parquet file by tf.data.")
    parser.add_argument("path")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--window", type=int, default=4)
    wishes = parser.parse_args()
    batches = dataset(wishes.path, batch=wishes.batch, window=wishes.window)
    for _ in batches.take(2):
        pass
    begin_s, begin_processor_s, total = time.perf_counter(), time.process_time(), 0
    for _, _, labels in batches:
        total += int(labels.shape[0])
    print(
        json.dumps(
            {
                "samples": total,
                "samples_per_s": total / (time.perf_counter() - begin_s),
                "samples_a_processor_s": total / (time.process_time() - begin_processor_s),
                "tensorflow": tf.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
