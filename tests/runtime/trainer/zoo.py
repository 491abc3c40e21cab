"""Small models of the zoo with data for them, and the same training by PyTorch alone."""

from dovetail.data.load import load_data
from dovetail.models.load import load_model
from dovetail.runtime.model.build import items_for
from dovetail.spec.run import RunModel
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import DATA, NUM_ROWS, make_run

SGD = RunOptimizer(name="sgd", learning_rate=0.5)
NEXT = {"truth": "next-item", "rows_per_user_slot": 100, "num_items": 100}
MATCH = {"truth": "user-item", "num_user_slots": 3, "user_values": 2.0, "num_item_slots": 4, "num_dense": 2}
ZOO = {
    "ctr-dnn": (DATA, {"num_rows": NUM_ROWS, "width": 4, "hidden": [16, 8]}),
    "2emb": (DATA, {"num_rows": NUM_ROWS, "width": 4, "hidden": [16, 8], "small_rows": 20, "small_slots": 2}),
    "dlrm": (DATA, {"num_rows": NUM_ROWS, "width": 4, "bottom": [8, 4], "top": [16]}),
    "matchnet": (
        MATCH | {"num_items": 40, "rows_per_user_slot": 20},
        {"num_rows": NUM_ROWS, "width": 4, "hidden": [16, 8], "num_user_slots": 3, "num_negatives": 3},
    ),
    "nce": (NEXT, {"num_rows": 200, "width": 4, "num_negatives": 3}),
}
"""Small models, and data for them."""
SAMPLES = 401
"""With batches of 100, the last has one sample: of several workers all but one have nothing to compute."""


def run_of(name, **how):
    """Return a run of a small model of the zoo."""
    data, options = ZOO[name]
    return make_run(model=RunModel(name=name, options=options), data=data, samples=SAMPLES, batch=100, **how)


def one_process(run):
    """Return the same training by PyTorch alone."""
    source = load_data("clicks", **run.data.options)
    options = {"schema": source.schema, **items_for(run), **run.model.options}
    alone = OneProcess(run, load_model(run.model.name, seed=3, **options), source)
    alone.train()
    return alone
