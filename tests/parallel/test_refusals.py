"""What a mesh cannot divide is refused, with a number or a shape that it can."""

from __future__ import annotations

import pytest
from arl_parallel.plans import FAMILIES, check_family
from arl_parallel.shape import Shape
from mesh_models import MODELS
from meshes import MESHES, found, run_ranks

from agentgym_rl.core import TrainerError
from tests.kit.cases import cases


def test_a_family_without_a_plan_is_refused_with_those_that_have_one():
    with pytest.raises(TrainerError, match="no plan of tensor parallelism for 'gpt2'") as raised:
        check_family(MODELS["gpt2"], 2)
    assert ", ".join(FAMILIES) in str(raised.value)


@cases("name, tensor, near", [("six heads", 4, 3), ("qwen3", 8, 4), ("two heads", 3, 2)])
def test_heads_that_do_not_divide_are_refused_with_the_nearest_number(name, tensor, near):
    with pytest.raises(TrainerError, match=rf"nearest number that does is t{near}$"):
        check_family(MODELS[name], tensor)


def test_families_with_a_plan_have_a_model_here():
    assert {it.model_type for it in MODELS.values()} >= {*FAMILIES}


@cases(
    "mesh, ranks, problem",
    [
        ("c2t2", 8, ""),
        ("e4", 8, ""),
        ("c2t2", 6, "does not divide 6 ranks; the nearest number is 8"),
        ("e4", 6, "does not divide 6 ranks; the nearest number is 8"),
        ("t4", 1, "does not divide 1 ranks; the nearest number is 4"),
    ],
)
def test_ranks_that_do_not_divide_are_refused(mesh, ranks, problem):
    found = Shape.read(mesh).problem(ranks)
    assert found.endswith(problem)
    assert bool(found) == bool(problem)


@cases("text", ["x2", "c", "c0", "c2c2", "c2 t2", "2c", "c02"])
def test_other_texts_are_no_shape(text):
    with pytest.raises(ValueError, match="as in c2t2e2"):
        Shape.read(text)


REFUSED = [
    ("c2", "recurrent", "which Zamba2ForCausalLM does not compute correctly: use d alone"),
    ("c4", "sinks, two heads", "c4 does not divide the 2 heads of attention of a rank"),
    ("t2", "gpt2", "no plan of tensor parallelism for 'gpt2'"),
    ("t2", "phi, tied", "is tied to its embeddings"),
    ("t4", "six heads", "the nearest number that does is t3"),
    ("t4", "phi3", "t4 does not divide the 2 heads of keys"),
    ("e2", "plain", "Qwen3ForCausalLM has no experts"),
    ("e4", "six experts", "e4 does not divide the 6 experts of a layer; the nearest number that"),
]


@pytest.mark.slow
def test_ranks_refuse_models(models, tmp_path, subtests):
    for mesh in dict.fromkeys(mesh for mesh, *_ in REFUSED):
        its = [(name, text) for of, name, text in REFUSED if of == mesh]
        run_ranks(MESHES[mesh], [("refuse", name) for name, _ in its], models, tmp_path / mesh)
        for name, text in its:
            for said in found(tmp_path / mesh, MESHES[mesh], "refuse", name):
                with subtests.test(f"{mesh} {name}"):
                    assert text in said
