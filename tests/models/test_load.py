"""Models by name, users' own, and initial values."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from dovetail.data import Clicks, Schema, load_data
from dovetail.models import Block, LayerGraph, ModelError, as_graph, initialise, load_model
from tests.models.makers import ALL_MODELS, make_batch, make_model

SOURCE = Clicks(num_slots=4, num_multi_valued=0, num_dense=5, rows_per_slot=10)
BATCH = SOURCE.read(0, 16)


@pytest.mark.parametrize("name", ["ctr-dnn", "2emb", "dlrm", "matchnet", "nce"])
def test_every_built_in_model_can_be_had_by_its_name_alone(name):
    graph = load_model(name, num_rows=1000)

    assert graph.blocks[-1].kind == "loss"
    assert graph.recipe.optimizer == "adam"


def test_published_layer_counts_of_the_matching_models_are_met():
    assert len(make_model("matchnet", hidden=(16, 16, 8))) == 16
    assert len(make_model("nce")) == 5


@pytest.mark.parametrize("name", ALL_MODELS)
def test_initial_values_depend_on_the_seed_and_the_names_alone(name):
    torch.manual_seed(1)
    a = make_model(name, seed=5)
    torch.manual_seed(2)
    b = make_model(name, seed=5)
    c = make_model(name, seed=6)

    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(a.parameters(), c.parameters(), strict=True))


def test_initial_values_of_a_layer_do_not_depend_on_the_others():
    def graph(*widths: int) -> LayerGraph:
        first, *others = widths
        blocks = [Block(name="fc0", kind="fc", module=nn.Linear(5, first), reads=("dense",))]
        blocks += [Block(name=f"fc{i}", kind="fc", module=nn.Linear(5, width)) for i, width in enumerate(others, 1)]
        return LayerGraph(blocks)

    long, short = graph(5, 5, 3), graph(5)
    initialise(long, 3)
    initialise(short, 3)

    assert torch.equal(long.layers.fc0.weight, short.layers.fc0.weight)
    assert not torch.equal(long.layers.fc0.weight, long.layers.fc1.weight)


def test_initial_values_are_the_same_in_another_process():
    script = (
        "import torch; torch.set_num_threads(1)\n"
        "from tests.models.makers import make_model\n"
        "print(float(sum(p.detach().double().sum() for p in make_model('ctr-dnn', seed=9).parameters())))"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=250)

    here = float(sum(p.detach().double().sum() for p in make_model("ctr-dnn", seed=9).parameters()))
    assert float(other.stdout) == here


def test_a_sequence_becomes_a_graph_with_its_own_parameters():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 4), nn.Tanh()), nn.Linear(4, 1))
    graph = as_graph(model)

    assert [(block.name, block.kind) for block in graph.blocks] == [
        ("linear0", "fc"),
        ("relu1", "activation"),
        ("linear2_0", "fc"),
        ("tanh2_1", "activation"),
        ("linear3", "fc"),
        ("loss", "loss"),
    ]
    assert {id(p) for p in graph.parameters()} == {id(p) for p in model.parameters()}
    assert torch.equal(graph.predict(BATCH), model(BATCH.dense))
    assert graph(BATCH).item() == pytest.approx(
        nn.functional.binary_cross_entropy_with_logits(model(BATCH.dense)[:, 0], BATCH.labels, reduction="sum").item()
    )


class Branching(nn.Module):
    """Two branches, a skip connection, sizes worked out on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(40, 3, include_last_offset=True, mode="sum")
        self.left = nn.Linear(5, 6)
        self.right = nn.Linear(12, 6)
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(12, 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        left = torch.relu(self.left(dense))
        embedded = self.table(ids, offsets).view(dense.size(0), -1)
        right = self.norm(self.right(embedded)) + left
        return self.out(torch.cat([left, right], dim=1))


def test_a_module_is_traced_into_a_graph_that_computes_the_same():
    model = Branching()
    graph = as_graph(model)

    assert torch.equal(graph.predict(BATCH), model(BATCH.dense, BATCH.ids, BATCH.offsets))
    assert {id(p) for p in graph.parameters()} == {id(p) for p in model.parameters()}
    kinds = {block.name: block.kind for block in graph.blocks}
    assert (kinds["left"], kinds["table"], kinds["norm"], kinds["cat"], kinds["relu"]) == (
        "fc", "embedding", "norm", "concat", "activation",
    )  # fmt: skip


class Scaling(nn.Module):
    """A layer with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((5,), 2.0))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.factor


class Nested(nn.Module):
    """Layers within modules within the model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Scaling(), nn.Linear(5, 3))
        self.out = nn.Linear(3, 1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(dense))


def test_modules_are_followed_down_to_layers_with_parameters():
    model = Nested()
    graph = as_graph(model)

    assert [block.name for block in graph.blocks] == ["inner_0", "inner_1", "out", "loss"]
    assert torch.equal(graph.predict(BATCH), model(BATCH.dense))


def test_a_traced_graph_can_be_cut_anywhere():
    graph = as_graph(Branching())
    whole = graph(BATCH).item()

    for cut in range(1, len(graph)):
        sent = graph.run(BATCH, last=cut - 1)
        assert graph.run(BATCH, sent, first=cut)[graph.blocks[-1].name].item() == whole


class Remembering(nn.Module):
    """An LSTM, which returns several values, of which one is used, or two."""

    def __init__(self, *, uses_both: bool = False) -> None:
        super().__init__()
        self.memory = nn.LSTM(5, 4, batch_first=True)
        self.out = nn.Linear(4, 1)
        self.uses_both = uses_both

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        seen, last = self.memory(dense.unsqueeze(1))
        return self.out(seen[:, -1] + last[0][0] if self.uses_both else seen[:, -1])


def test_a_layer_that_returns_several_values_is_one_with_the_value_that_is_used():
    model = Remembering()
    graph = as_graph(model)

    assert [block.name for block in graph.blocks] == ["unsqueeze", "memory", "getitem_2", "out", "loss"]
    assert torch.equal(graph.predict(BATCH), model(BATCH.dense))
    assert {id(p) for p in graph.parameters()} == {id(p) for p in model.parameters()}
    with pytest.raises(ModelError, match=r"uses several values of `memory`: line \d+ of test_load\.py: seen, last"):
        as_graph(Remembering(uses_both=True))


class Twisting(nn.Module):
    """Decides by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        return self.fc(dense) if dense.sum() > 0 else self.fc(-dense)


class Wasteful(Twisting):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        return self.fc(dense)


class Twofold(Twisting):
    def forward(self, dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.fc(dense), dense


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (Twisting(), "cannot be divided into layers: torch.fx says"),
        (Wasteful(), "no layer uses the parameters `spare.weight`, `spare.bias`"),
        (Twofold(), "returns several values"),
        (nn.Sequential(), "empty nn.Sequential"),
        (nn.Sequential(nn.EmbeddingBag(5, 2)), "include_last_offset"),
        ("a word", "a str is not a model"),
    ],
)
def test_models_that_cannot_be_cut_are_refused_with_the_reason(model, complaint):
    with pytest.raises(ModelError, match=complaint) as caught:
        as_graph(model)

    assert caught.value.hint


OWN = """
from torch import nn
from dovetail.models import LayerGraph, Block

def small(width=4, seed=0):
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 1))

def chained():
    return LayerGraph([Block(name="fc", kind="fc", module=nn.Linear(5, 2), reads=("dense",))])

def nothing():
    return 3

def broken():
    return 1 / 0

def fitting(schema):
    return nn.Sequential(nn.Linear(schema.num_dense, 1))
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own_model.py").write_text(OWN)
    return tmp_path / "own_model.py"


def test_a_users_own_model_is_loaded_with_its_options(own):
    graph = load_model(f"{own}:small", width=7)

    assert graph.blocks[0].module.out_features == 7
    assert graph.recipe.loss == "logistic"
    assert graph(BATCH).ndim == 0


def test_a_users_own_model_gets_the_schema_only_where_it_takes_one(own):
    assert load_model(f"{own}:small", schema=SOURCE.schema).blocks[0].module.in_features == 5
    assert load_model(f"{own}:fitting", schema=SOURCE.schema).blocks[0].module.in_features == SOURCE.schema.num_dense


@pytest.mark.parametrize("name", ALL_MODELS)
def test_the_made_data_that_a_recipe_names_fit_its_model(name):
    graph = load_model(name, num_rows=1000)
    batch = load_data("clicks", truth=graph.recipe.truth).read(0, 8)
    if name in ("ctr-dnn", "2emb", "dlrm"):
        assert len(batch.offsets) - 1 == 8 * 26

    assert torch.isfinite(graph(batch))


def test_the_loss_is_the_users_choice(own):
    graph = load_model(f"{own}:chained", loss="cross-entropy")

    assert graph.recipe.loss == "cross-entropy"
    assert torch.isfinite(graph(BATCH))
    assert make_model("matchnet", loss="softmax")(make_batch("matchnet")).item() > 0


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("ctr-dn", {}, "no model `ctr-dn`"),
        ("ctr-dnn", {"witdh": 5}, "no option `witdh`"),
        ("ctr-dnn", {"loss": "logistik"}, "no loss `logistik`"),
        ("no_such_module:build", {}, "no module `no_such_module`"),
        ("{own}:smal", {}, "no function `smal`"),
        ("{own}:small", {"depth": 5}, "depth"),
        ("{own}:nothing", {}, "a int is not a model"),
        ("{own}:broken", {}, "could not be built: ZeroDivisionError"),
        ("matchnet", {"schema": SOURCE.schema}, "needs the option `items` where a schema is given"),
    ],
)
def test_models_that_are_not_there_are_refused_with_a_way_out(own, name, options, complaint):
    with pytest.raises(ModelError, match=complaint) as caught:
        load_model(name.format(own=own), **options)

    assert caught.value.hint


def test_a_model_with_a_table_refuses_data_without_categories_and_says_what_to_name():
    with pytest.raises(ModelError, match="these data have no slots") as caught:
        load_model("ctr-dnn", schema=Schema(dense=("x",)))

    assert "slots=" in caught.value.hint
