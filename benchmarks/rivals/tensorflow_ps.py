"""CTR-DNN under TensorFlow's ParameterServerStrategy: a coordinator, one worker and one server on loopback.

    python benchmarks/rivals/make_data.py out/rivals.npz
    python -m venv DIR && DIR/bin/pip install tensorflow-cpu
    DIR/bin/python benchmarks/rivals/tensorflow_ps.py --data out/rivals.npz

Run it with the interpreter of TensorFlow's own environment (tried with 2.21); it needs no more than TensorFlow. Table
and layers are variables on the server, gradients of the table are IndexedSlices, one scheduled closure is one batch,
and closures are scheduled ahead. `--from v1` takes TensorFlow's own optimizers (tf.compat.v1.train), whose Adagrad has
a kernel for sparse updates, `--from keras` those of tf.keras that TensorFlow installs (Keras 3). All but v1's Adagrad
go over the whole table in every step. `--tables 26` has a variable a slot in place of one. The last line is JSON with
samples_per_s.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import numpy as np
import tensorflow as tf
from rates import add_options, print_result, windows

NUM_SLOTS, NUM_ROWS, WIDTH, NUM_DENSE, HIDDEN = 26, 2_600_000, 16, 13, 400
LEARNING_RATE = {"adagrad": 0.01, "adam": 0.001}


def main() -> None:
    """Be the coordinator and start the others, or be one of them."""
    arguments = parse()
    if arguments.role:
        serve(arguments)
        return
    cluster = {"chief": [free_address()], "worker": [free_address()], "ps": [free_address()]}
    with started("ps", cluster), started("worker", cluster):
        measure(arguments, cluster)


def parse() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--threads", type=int, default=2, help="for one operation, in each process")
    parser.add_argument("--from", dest="source", choices=("v1", "keras"), default="v1", help="whose optimizer")
    parser.add_argument("--tables", type=int, choices=(1, NUM_SLOTS), default=1, help="variables the rows lie in")
    parser.add_argument("--role", choices=("ps", "worker"), help=argparse.SUPPRESS)
    parser.add_argument("--cluster", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def free_address() -> str:
    """Return an address on loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def started(role: str, cluster: dict[str, list[str]]) -> Iterator[None]:
    """Start the worker or the server; end it by its id."""
    command = [sys.executable, __file__, *sys.argv[1:], "--role", role, "--cluster", json.dumps(cluster)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def serve(arguments: argparse.Namespace) -> None:
    """Be the worker or the server until killed."""
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=arguments.threads,
        inter_op_parallelism_threads=4,  # fewer can deadlock a server
    )
    cluster = tf.train.ClusterSpec(arguments.cluster)
    server = tf.distribute.Server(cluster, job_name=arguments.role, task_index=0, protocol="grpc", config=config)
    server.join()


def measure(arguments: argparse.Namespace, cluster: dict[str, list[str]]) -> None:
    """Train by closures and print the rate."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        step = make_step(strategy, arguments)
    batches = iter(coordinator.create_per_worker_dataset(make_dataset(arguments.data, arguments.batch)))

    losses: list[Any] = []

    def run_steps(steps: int) -> None:
        losses[:] = [coordinator.schedule(step, args=(batches,)) for _ in range(steps)]
        coordinator.join()

    found = list(windows(run_steps, arguments))
    details = {name: getattr(arguments, name) for name in ("batch", "threads", "optimizer", "source", "tables")}
    print_result("tensorflow-ps", found, loss=float(losses[-1].fetch()), tensorflow=tf.__version__, **details)


def make_dataset(file: Path, batch: int) -> Callable[[], Any]:
    """Return what makes the worker's data: batches without end from memory."""
    with np.load(file) as arrays:
        parts = [arrays[name] for name in ("ids", "dense", "labels")]
    num_batches = parts[0].shape[0] // batch
    cut = tuple(part[: num_batches * batch].reshape(num_batches, batch, *part.shape[1:]) for part in parts)
    return lambda: tf.data.Dataset.from_tensor_slices(cut).repeat().prefetch(4)


def make_step(strategy: Any, options: argparse.Namespace) -> Callable[[Any], Any]:
    """Return a training step of one batch; its variables are made now, on the server."""
    num_rows = NUM_ROWS // options.tables
    tables = [tf.Variable(tf.random.uniform([num_rows, WIDTH], -1 / 12, 1 / 12)) for _ in range(options.tables)]
    widths = [NUM_SLOTS * WIDTH + NUM_DENSE, HIDDEN, HIDDEN, HIDDEN, 2]
    glorot = tf.keras.initializers.GlorotUniform(seed=0)
    weights = [tf.Variable(glorot([rows, columns])) for rows, columns in itertools.pairwise(widths)]
    biases = [tf.Variable(tf.zeros([columns])) for columns in widths[1:]]
    variables = [*tables, *weights, *biases]
    optimizer = make_optimizer(options, variables)

    def train(ids: Any, dense: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            slots = tf.split(ids % num_rows, len(tables), axis=1)
            rows = [tf.nn.embedding_lookup(table, slot) for table, slot in zip(tables, slots, strict=True)]
            hidden = tf.concat([tf.reshape(row, [len(row), -1]) for row in rows] + [dense], axis=1)
            for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
                hidden = tf.nn.relu(tf.nn.bias_add(hidden @ weight, bias))
            scores = tf.nn.bias_add(hidden @ weights[-1], biases[-1])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return tf.function(lambda batches: strategy.run(train, args=next(batches)))


def make_optimizer(options: argparse.Namespace, variables: list[Any]) -> Any:
    """Return an optimizer with its state beside the variables."""
    rate = LEARNING_RATE[options.optimizer]
    if options.source == "v1":
        if options.optimizer == "adam":
            return tf.compat.v1.train.AdamOptimizer(rate)
        return tf.compat.v1.train.AdagradOptimizer(rate, initial_accumulator_value=1e-10)
    if options.optimizer == "adam":
        optimizer = tf.keras.optimizers.Adam(rate)
    else:
        optimizer = tf.keras.optimizers.Adagrad(rate, initial_accumulator_value=0.0, epsilon=1e-10)
    optimizer.build(variables)
    return optimizer


if __name__ == "__main__":
    main()
