"""The kind of a model: by its build, by gaps between times, or by the hyperparameters that decide."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.plan.schedule.model_kinds import (
    ALL_MODELS,
    KIND_GAP,
    LabelsByValues,
    ModelKinds,
    TimedModel,
    split_by_time,
)


@given(st.dictionaries(st.text(max_size=3), st.floats(0.001, 1000.0), max_size=20))
def test_models_are_split_where_the_next_one_takes_much_longer(seconds: dict[str, float]) -> None:
    parts = split_by_time(seconds)
    names = [name for part in parts for name in part]
    assert sorted(names) == sorted(seconds)
    assert [seconds[name] for name in names] == sorted(seconds.values())
    for part in parts:
        for name, following in itertools.pairwise(part):
            assert seconds[following] <= KIND_GAP * seconds[name]
    for part, following in itertools.pairwise(parts):
        assert seconds[following[0]] > KIND_GAP * seconds[part[-1]]


def test_a_build_is_guessed_by_decisive_values() -> None:
    builds = LabelsByValues()
    assert builds.label_of("new", {"width": 8}) == ""
    for number, (width, lr) in enumerate([(8, 0.1), (8, 0.2), (16, 0.3), (16, 0.4)]):
        builds.learn(f"m{number}", {"width": width, "lr": lr, "seed": 1}, f"of {width}")
    assert builds.label_of("m0", {"width": 8, "lr": 0.1, "seed": 1}) == "of 8"
    assert builds.label_of("new", {"width": 16, "lr": 0.9, "seed": 7}) == "of 16"
    assert builds.label_of("strange", {"width": 32, "lr": 0.9, "seed": 7}) == ""


def test_a_single_build_holds_for_all() -> None:
    builds = LabelsByValues()
    builds.learn("m", {"lr": 0.1}, "only")
    assert builds.label_of("new", {"lr": 0.7}) == "only"


def test_a_learning_rate_does_not_decide_on_builds_after_few_profiles() -> None:
    builds = LabelsByValues()
    builds.learn("a", {"lr": 0.1, "batch_size": 8, "hidden": 16}, "small")
    builds.learn("b", {"lr": 0.2, "batch_size": 64, "hidden": 16}, "large")
    assert builds.label_of("c", {"lr": 0.2, "batch_size": 8, "hidden": 16}) == "small"
    assert builds.label_of("d", {"lr": 0.3, "batch_size": 64, "hidden": 16}) == "large"
    assert builds.label_of("e", {"lr": 0.1, "batch_size": 32, "hidden": 16}) == ""


def test_a_learned_label_counts_even_if_the_values_do_not_tell_it() -> None:
    builds = LabelsByValues()
    builds.learn("a", {"lr": 0.1}, "one")
    builds.learn("b", {"lr": 0.1}, "another")
    assert [builds.label_of(name, {"lr": 0.1}) for name in "ab"] == ["one", "another"]


def test_labels_that_are_learned_later_count() -> None:
    builds = LabelsByValues()
    builds.learn("m", {"width": 8}, "small")
    assert builds.label_of("new", {"width": 16}) == "small", "nothing else is known"
    builds.learn("n", {"width": 16}, "large")
    assert builds.label_of("new", {"width": 16}) == "large"


@pytest.mark.parametrize("build", ["", "cuda"])
def test_models_of_one_build_are_several_kinds_where_their_times_tell(build: str) -> None:
    kinds = ModelKinds(
        {
            "a": TimedModel({"width": 8, "lr": 0.1}, build, 1.0),
            "b": TimedModel({"width": 8, "lr": 0.2}, build, 1.2),
            "c": TimedModel({"width": 512, "lr": 0.1}, build, 30.0),
        }
    )
    small, large = kinds.labels_of("new", {"width": 8, "lr": 0.3}), kinds.labels_of("new", {"width": 512, "lr": 0.3})
    assert small == kinds.labels_of("a", {"width": 8, "lr": 0.1})
    assert large == kinds.labels_of("c", {"width": 512, "lr": 0.1})
    assert small[0] != large[0]
    assert small[1:] == large[1:] == ((f"build {build}", ALL_MODELS) if build else (ALL_MODELS,))
    assert kinds.labels_of("strange", {"width": 64, "lr": 0.3}) == small[1:]


def test_without_profiles_all_models_are_alike() -> None:
    assert ModelKinds({}).labels_of("new", {"lr": 0.1}) == (ALL_MODELS,)
