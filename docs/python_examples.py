"""An example of every public name of `dovetail`, shown in docs/reference/python.md and run by the tests.

A function has the name of what it shows; its body is the example. They run in a folder with `clicks.parquet`,
`first_training.py`, `problem.toml` and `jobs.json`, and with a run in `runs/mine`, as the start pages leave it.
"""


def plan():
    import dovetail

    plan = dovetail.plan("problem.toml", max_cost_per_hour=3.0)
    print(plan.cost, plan.lower_bound, [(stage.resource, stage.units) for stage in plan.stages])


def profile():
    import dovetail

    problem = dovetail.profile("ctr-dnn", batch=256, model_options={"num_rows": 10_000}, short_runs_s=0)
    print(dovetail.plan(problem).samples_per_s)


def run():
    import dovetail

    if __name__ == "__main__":  # it starts processes, which import this file
        found = dovetail.run("first_training.py:MyModel", "clicks.parquet", samples=4_000, batch=500)
        print(found)


def train():
    import dovetail
    from first_training import MyModel

    if __name__ == "__main__":
        result = dovetail.train(MyModel(), "clicks.parquet", folder="runs/again", samples=4_000, batch=500, lr=1e-2)
        print(result.loss, result.auc)


def resume():
    import dovetail
    from first_training import MyModel

    if __name__ == "__main__":
        result = dovetail.resume("runs/mine", model=MyModel(), data="clicks.parquet", epochs=2)
        print(result.step)


def evaluate():
    import dovetail
    from first_training import MyModel

    print(dovetail.evaluate("runs/mine", model=MyModel(), metrics=["auc", "log-loss"]))


def predict():
    import dovetail
    from first_training import MyModel

    scores = dovetail.predict("runs/mine", "clicks.parquet", model=MyModel())
    print(scores.probabilities[:3])


def export():
    from pathlib import Path

    import dovetail
    from first_training import MyModel

    print(dovetail.export("runs/mine", Path("model"), model=MyModel()))


def simulate():
    import dovetail

    for policy in ("fifo", "dovetail"):
        print(policy, dovetail.simulate("jobs.json", policy).mean_jct_s)


def serve():
    import dovetail

    if __name__ == "__main__":
        dovetail.serve("cluster", nodes="cpu:2x1", tell=print)  # until Ctrl-C; jobs come by `dovetail submit`


def join():
    from pathlib import Path

    import dovetail

    if __name__ == "__main__":  # one more worker for a run that goes on, until the run is over
        dovetail.join(Path("runs/shared"))


def privacy():
    import dovetail

    found = dovetail.privacy(samples=1_000_000, batch=1_000, epochs=3, epsilon=3.0, delta=1e-7)
    print(found.noise)


def read_problem():
    import dovetail

    problem = dovetail.read_problem("problem.toml")
    print([layer.name for layer in problem.layers], problem.training.min_samples_per_s)


def write_problem():
    from pathlib import Path

    import dovetail

    problem = dovetail.read_problem("problem.toml").with_floor(500_000)
    dovetail.write_problem(problem, Path("faster.toml"))


def read_plan():
    import json
    from pathlib import Path

    import dovetail
    import msgspec

    Path("plan.json").write_bytes(msgspec.json.encode(dovetail.plan("problem.toml")))
    print(dovetail.read_plan(Path("plan.json")).cost, json.loads(Path("plan.json").read_text())["optimal"])


def Table():
    import dovetail
    import numpy as np

    with dovetail.Table(width=4, host_bytes=1_000_000, folder="rows") as table:
        keys = np.array([7, -3, 7])
        values = table.lookup(keys)  # a new key gets its first values
        table.update(keys, 0.1 * values)
        table.save("saved")


def Callback():
    import dovetail
    from first_training import MyModel

    class StopWhenGood(dovetail.Callback):
        def report(self, report):
            self.stop = report.loss < 0.5

    if __name__ == "__main__":
        dovetail.train(
            MyModel(), "clicks.parquet", folder="runs/good", samples=4_000, batch=500, callbacks=[StopWhenGood()]
        )


def TrainingResult():
    import dovetail
    from first_training import MyModel

    if __name__ == "__main__":
        result = dovetail.train(MyModel(), "clicks.parquet", folder="runs/result", samples=4_000, batch=500)
        print(result.samples_per_s, result.checkpoint)
        module = result.load_model().module


def DovetailError():
    import dovetail

    try:
        dovetail.plan("problem.toml", min_samples_per_s=1e9)
    except dovetail.DovetailError as error:
        print(error)
        print(error.hint)


def __version__():
    import dovetail

    print(dovetail.__version__)


def catalogue():
    from dovetail.catalogue import load_catalogue

    print(load_catalogue()["aws:g5.xlarge"].price_per_hour)


def charts():
    from pathlib import Path

    import dovetail
    from dovetail.charts import draw_plan, save_figure

    problem = dovetail.read_problem("problem.toml")
    save_figure(draw_plan(problem, dovetail.plan(problem)), Path("plan.svg"))


def data():
    from dovetail.data import Loader, load_data

    source = load_data("parquet", path="clicks.parquet")
    for batch in Loader(source, batch_size=1000, seed=1, stop=3000):
        print(batch.dense.shape, batch.ids.shape)


def embedding():
    import numpy as np
    from dovetail.embedding import Adagrad, Table

    with Table(width=4, optimizer=Adagrad(learning_rate=0.05)) as table:
        print(table.lookup_pooled(np.array([7, -3, 9]), np.array([0, 2, 3])).shape)  # sums of two bags


def models():
    from dovetail.data import Clicks
    from dovetail.models import load_model, make_optimizer, train_step

    clicks = Clicks(rows_per_slot=100)
    model = load_model("ctr-dnn", schema=clicks.schema, num_rows=2600)
    optimizer = make_optimizer(model, model.recipe.optimizer, model.recipe.learning_rate)
    print(train_step(model, clicks.read(0, 500), optimizer))


def orchestrate():
    from dovetail.orchestrate import ReplanRule, run

    if __name__ == "__main__":  # a run that moves to another plan where that pays
        found = run("ctr-dnn", samples=40_000, batch=1000, short_runs_s=5, replan=ReplanRule(), tell=print)
        print(found.planned.plan.samples_per_s, found.measured_samples_per_s)


def planner():
    import time

    import dovetail
    from dovetail.planner import Demands, pareto_plans

    problem = dovetail.read_problem("problem.toml")
    for plan in pareto_plans(problem, Demands(), points=4, clock=time.perf_counter):
        print(plan.samples_per_s, plan.cost_per_hour)


def profiler():
    from dovetail.profiler import measure_loopback

    print(measure_loopback())


def runtime():
    from dovetail.runtime import restore_model
    from first_training import MyModel

    model = restore_model("runs/mine", model=MyModel())
    print(sum(parameter.numel() for parameter in model.parameters()))


def scheduler():
    from dovetail.scheduler import POLICIES, make_policy

    print(list(POLICIES), make_policy("dovetail", knob=0.0))


def simulator():
    from pathlib import Path

    from dovetail.scheduler import make_policy
    from dovetail.simulator import simulate
    from dovetail.simulator.traces.read import read_any

    workload = read_any(Path("jobs.json"))
    trial = simulate(workload, make_policy("srtf"), name="srtf")
    print([change for change in trial.changes][:3])


def spec():
    import dovetail
    from dovetail.spec import Layer, LayerTime, Problem, ResourceType, Training

    core = LayerTime(compute_s=0.1, comm_s=0.0, compute_parallel=0.9, comm_parallel=0.0)
    problem = Problem(
        training=Training(samples=1_000_000, batch=1000),
        resources=(ResourceType(name="cpu", price_per_hour=0.04),),
        layers=(Layer(name="all", on={"cpu": core}),),
    )
    print(dovetail.plan(problem).cost)
