"""Graphs: whole, in slices, and every layer exactly once."""

import pytest
import torch
from torch import nn

from dovetail.models import Block, LayerGraph, ModelError
from tests.models.makers import ALL_MODELS, gradients, make_batch, make_model


@pytest.mark.parametrize("name", ALL_MODELS)
def test_every_parameter_belongs_to_exactly_one_layer(name):
    graph = make_model(name)

    held = [id(p) for position in range(len(graph)) for _, p in graph.parameters_of(position, position)]

    assert sorted(held) == sorted(id(p) for p in graph.parameters())
    assert len(set(held)) == len(held)
    assert {n for p in range(len(graph)) for n, _ in graph.parameters_of(p, p)} == {
        n for n, _ in graph.named_parameters()
    }


@pytest.mark.parametrize("name", ALL_MODELS)
def test_two_stages_give_the_loss_and_the_gradients_of_one_wherever_the_cut_is(name):
    batch = make_batch(name)
    whole = make_model(name, dropout=0.2)
    loss = whole(batch)
    loss.backward()
    expected = gradients(whole)

    for cut in range(1, len(whole)):
        graph = make_model(name, dropout=0.2)
        sent = graph.run(batch, last=cut - 1)
        assert tuple(sent) == graph.inputs_of(cut, len(graph) - 1) or set(sent) == set(
            graph.inputs_of(cut, len(graph) - 1)
        )
        arrived = {key: value.detach().requires_grad_(value.is_floating_point()) for key, value in sent.items()}
        out = graph.run(batch, arrived, first=cut)
        (last_name,) = out
        out[last_name].backward()
        back = [(sent[key], arrived[key].grad) for key in sent if sent[key].requires_grad]
        if back:
            torch.autograd.backward([tensor for tensor, _ in back], [grad for _, grad in back])

        assert out[last_name].item() == loss.item()
        found = gradients(graph)
        assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ALL_MODELS)
def test_a_slice_reads_only_the_fields_it_names(name):
    graph, batch = make_model(name), make_batch(name)
    activations = {}
    for position in range(len(graph)):
        fields = graph.reads_of(position, position)

        class Only:
            """A batch of which only some fields are there."""

        for field in fields:
            setattr(Only, field, getattr(batch, field))
        inputs = {key: activations[key] for key in graph.inputs_of(position, position)}
        activations |= graph.run(Only, inputs, first=position, last=position)  # type: ignore[arg-type]
    assert activations[graph.blocks[-1].name].item() == graph(batch).item()


@pytest.mark.parametrize("name", ALL_MODELS)
def test_any_split_of_a_batch_gives_the_same_gradient(name):
    batch = make_batch(name)
    whole, parts = make_model(name, dropout=0.3), make_model(name, dropout=0.3)
    whole(batch).backward()

    order = torch.tensor([5, 31, 0, 7, *(i for i in range(32) if i not in (5, 31, 0, 7))])
    shuffled = batch.take(order)
    for first, last in ((0, 1), (1, 20), (20, 32)):
        parts(shuffled.slice(first, last)).backward()

    expected, found = gradients(whole), gradients(parts)
    assert all(torch.allclose(found[key], expected[key], rtol=1e-4, atol=1e-5) for key in expected)


def test_what_crosses_each_cut_of_a_branching_model_is_known():
    graph = make_model("2emb")
    cut = graph.position("small_embedding")

    assert graph.outputs_of(0, cut - 1) == ("relu2",)
    assert graph.inputs_of(cut, len(graph) - 1) == ("relu2",)
    assert graph.outputs_of(0, cut) == ("relu2", "small_embedding")
    assert graph.reads_of(cut, cut) == ("ids", "offsets")
    assert graph.reads_of(cut + 1, len(graph) - 1) == ("labels", "weights")


def test_layers_of_the_published_sizes_have_the_published_parameters():
    from dovetail.models import load_model

    # 1,000,001 rows of 10; 26 * 10 + 13 inputs; 400, 400, 400, 2.
    expected = 1_000_001 * 10 + 273 * 400 + 400 + 2 * (400 * 400 + 400) + 400 * 2 + 2
    assert sum(p.numel() for p in load_model("ctr-dnn").parameters()) == expected


def linear(name: str, **more: object) -> Block:
    return Block(name=name, kind="fc", module=nn.Linear(2, 2), **more)


@pytest.mark.parametrize(
    ("blocks", "complaint"),
    [
        ([], "no layers"),
        ([linear("a", reads=("dense",)), linear("a")], "two layers are called `a`"),
        ([linear("a")], "`a` reads nothing"),
        ([linear("a", reads=("dense",), after=("b",)), linear("b")], "comes after `b`, which does not come before"),
        ([linear("a", reads=("dense",)), linear("b", reads=("dense",), after=())], "no layer reads the output of `a`"),
        ([linear("train", reads=("dense",))], "keeps for itself"),
    ],
)
def test_chains_that_cannot_be_are_refused(blocks, complaint):
    with pytest.raises(ModelError, match=complaint) as caught:
        LayerGraph(blocks)

    assert caught.value.hint


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        ({"name": "a.b"}, "called `a.b`"),
        ({"name": "a", "kind": "fcc"}, "kind `fcc`"),
        ({"name": "a", "reads": ("den ze",)}, "reads `den ze`"),
    ],
)
def test_blocks_that_cannot_be_are_refused(wish, complaint):
    with pytest.raises(ModelError, match=complaint):
        Block(**({"kind": "fc", "module": nn.Identity()} | wish))


def test_layers_that_share_a_parameter_are_known():
    shared, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.bias = shared.bias

    graph = LayerGraph(
        [
            Block(name="a", kind="fc", module=shared, reads=("dense",)),
            Block(name="b", kind="fc", module=shared),
            Block(name="c", kind="fc", module=other),
        ]
    )

    assert graph.ties() == [("weight", "a", "b"), ("bias", "a", "b"), ("bias", "a", "c")]
    assert [name for name, _ in graph.named_parameters()] == ["layers.a.weight", "layers.a.bias", "layers.c.weight"]


def test_a_slice_without_its_inputs_says_which_one_is_missing():
    graph = make_model("2emb")

    with pytest.raises(ModelError, match="reads the output of `relu2`, which was not given"):
        graph.run(make_batch("2emb"), first=graph.position("small_embedding"))
