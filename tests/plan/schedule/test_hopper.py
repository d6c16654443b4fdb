"""What the scheduler does with epochs, evaluations, resumed models, fixed orders and wrong calls."""

from __future__ import annotations

import pytest
from hopper_invariants import RecordedHopper, check_hopper
from schedule_instances import hopper_for, known, train, two_workers

from regatta.errors import UsageError
from regatta.plan.schedule.estimates import KnownTimes
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.simulate import simulate
from regatta.plan.schedule.units import Assignment, Unit


def test_a_model_continues_with_the_next_epoch_at_once() -> None:
    hopper = two_workers(models=1)
    seen = []
    for _ in range(4):
        (assignment,) = hopper.assign()
        finished = hopper.finish(assignment.worker)
        seen.append((assignment.unit.epoch, finished.trained, finished.evaluated))
    assert seen == [(1, False, False), (1, True, True), (2, False, False), (2, True, True)]
    assert hopper.done()


def test_evaluations_come_before_training_and_beside_the_next_epoch() -> None:
    hopper = two_workers(evals=2, models=1)
    (first,) = hopper.assign()
    hopper.finish(first.worker)
    (second,) = hopper.assign()
    finished = hopper.finish(second.worker)
    assert (finished.trained, finished.evaluated) == (True, False)
    evals = hopper.assign()
    assert evals == [Assignment("w0", Unit("eval", "m0", 1, 0)), Assignment("w1", Unit("eval", "m0", 1, 1))]
    finished = hopper.finish("w0")
    assert (finished.trained, finished.evaluated) == (False, False)
    assert hopper.assign() == [Assignment("w0", train("m0", 2, 0))]  # while its first epoch is evaluated on w1
    finished = hopper.finish("w1")
    assert (finished.trained, finished.evaluated) == (False, True)
    check_hopper(hopper)


def test_the_oldest_evaluation_goes_first() -> None:
    hopper = two_workers(evals=1, models=2)
    trained = []
    for _ in range(2):
        for assignment in reversed(hopper.assign()):
            if hopper.finish(assignment.worker).trained:
                trained.append(assignment.unit.model)
    assert len(trained) == 2
    assert [a.unit for a in hopper.assign()] == [Unit("eval", model, 1, 0) for model in trained]


def test_a_resumed_model_trains_only_what_is_missing() -> None:
    hopper = two_workers(models=0)
    hopper.add_model("m0", 3, done=1, visited=[0])
    assert hopper.units_left() == 3
    assert hopper.assign() == [Assignment("w1", train("m0", 2, 1))]
    assert hopper.finish("w1").trained
    assert [a.unit.epoch for a in hopper.assign()] == [3]


def test_a_model_resumed_between_training_and_evaluation_is_evaluated() -> None:
    hopper = two_workers(evals=2, models=0)
    hopper.add_model("m0", 1, visited=[0, 1])
    assert hopper.units_left() == 2
    assert [a.unit for a in hopper.assign()] == [Unit("eval", "m0", 1, 0), Unit("eval", "m0", 1, 1)]
    hopper.finish("w0")
    assert hopper.finish("w1").evaluated
    assert hopper.done()


def test_missing_evaluations_of_earlier_epochs_are_done() -> None:
    hopper = two_workers(evals=2, models=0)
    hopper.add_model("m0", 2, done=1, evals=[(1, 1)])
    assert {(a.worker, a.unit) for a in hopper.assign()} == {
        ("w1", Unit("eval", "m0", 1, 1)),
        ("w0", train("m0", 2, 0)),
    }
    assert hopper.finish("w1").evaluated


def test_a_fixed_order_is_kept() -> None:
    times = [*[[1.0, 2.0, 3.0, 4.0]] * 3, [1.5] * 4]
    hopper = hopper_for(times, "longest", epochs=2, later=1)
    hopper.stop_model("m0")
    order = {1: [3, 1, 0, 2], 2: [2, 0, 1, 3]}
    hopper.add_model("m3", 2, order=order)
    schedule = simulate(hopper, known(times))
    assert [schedule.visits("m3", epoch) for epoch in (1, 2)] == [order[1], order[2]]
    check_hopper(hopper)


def test_a_stopped_model_finishes_its_unit_and_can_be_resumed() -> None:
    hopper = two_workers(evals=1)
    running = {a.unit.model: a.worker for a in hopper.assign()}
    hopper.stop_model("m0")
    hopper.finish(running["m0"])
    hopper.finish(running["m1"])
    assert {a.unit.model for a in hopper.assign()} == {"m1"}
    left = hopper.units_left()
    hopper.extend_model("m0", 2)
    assert hopper.units_left() == left + 5  # one and two of training, two of evaluation
    assert {a.unit.model for a in hopper.assign()} == {"m0"}
    check_hopper(hopper)


def test_evaluations_of_a_stopped_model_wait_until_it_is_resumed() -> None:
    hopper = two_workers(evals=1, models=1)
    for _ in range(2):
        (assignment,) = hopper.assign()
        hopper.finish(assignment.worker)
    hopper.stop_model("m0")
    assert hopper.done()
    assert hopper.assign() == []
    hopper.extend_model("m0", 1)
    assert [a.unit for a in hopper.assign()] == [Unit("eval", "m0", 1, 0)]


def test_fewer_epochs_than_begun_are_rounded_up() -> None:
    hopper = two_workers(models=1)
    (first,) = hopper.assign()
    hopper.finish(first.worker)
    hopper.extend_model("m0", 0)
    assert hopper.units_left() == 1
    hopper.assign()
    assert hopper.units_left() == 1


def test_a_lost_unit_is_done_again_elsewhere() -> None:
    times = KnownTimes({("m0", 0): 1.0})
    hopper = RecordedHopper(1, estimates=times, rule="longest")
    hopper.add_worker("a", [0])
    hopper.add_worker("b", [0])
    hopper.add_model("m0", 1)
    (assignment,) = hopper.assign()
    assert hopper.remove_worker(assignment.worker) == assignment.unit
    (again,) = hopper.assign()
    assert again.unit == assignment.unit
    assert again.worker != assignment.worker


def test_partitions_without_a_holder_are_named() -> None:
    hopper = two_workers(models=1)
    hopper.remove_worker("w1")
    assert hopper.unheld_partitions() == [1]
    assert hopper.assign() == [Assignment("w0", train("m0", 1, 0))]
    hopper.finish("w0")
    assert hopper.assign() == []
    assert not hopper.done()
    hopper.add_worker("w1", [1])
    assert hopper.assign() == [Assignment("w1", train("m0", 1, 1))]


@pytest.mark.parametrize("rule", ["longest", "randomized", "match", "lpt", "backlog", "rotation"])
def test_the_likely_next_unit_is_the_next_assignment(rule: str) -> None:
    """With one worker busy and all other models idle, the forecast is the next assignment."""
    hopper = hopper_for([[1.0], [2.0], [3.0]], rule)
    hopper.assign()
    for _ in range(2):
        expected = hopper.likely_next("w0")
        assert expected is not None
        running = hopper.running()["w0"]
        assert expected.model != running.model
        hopper.finish("w0")
        assert [a.unit for a in hopper.assign()] == [expected]
    assert hopper.likely_next("w0") is None


def test_the_likely_next_unit_may_be_an_evaluation() -> None:
    hopper = two_workers(evals=2, models=2)
    for assignment in hopper.assign():
        hopper.finish(assignment.worker)
    hopper.assign()
    model = hopper.running()["w1"].model
    assert hopper.finish("w1").trained
    assert Assignment("w1", Unit("eval", model, 1, 0)) in hopper.assign()
    assert hopper.likely_next("w1") == Unit("eval", model, 1, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h: h.add_worker("w0", [0]), "worker 'w0' already"),
        (lambda h: h.add_worker("w2", [2]), "partition held by 'w2' is 2; there are 2"),
        (lambda h: h.add_model("m0", 1), "model 'm0' already"),
        (lambda h: h.add_model("x", 1, done=2), "1 epochs when 2 are done"),
        (lambda h: h.add_model("x", 1, visited=[5]), "visited partition of 'x' is 5"),
        (lambda h: h.add_model("x", 1, order={1: [0, 0]}), r"order of 'x' in epoch 1 is \[0, 0\]"),
        (lambda h: h.finish("w0"), "'w0' does not run a unit"),
        (lambda h: h.finish("w00"), "no worker 'w00'"),
        (lambda h: h.give_back("w1"), "'w1' does not run a unit"),
        (lambda h: h.stop_model("m9"), "no model 'm9'"),
        (lambda h: Hopper(0, estimates=known([[1.0]])), "0 partitions"),
        (lambda h: Hopper(1, estimates=known([[1.0]]), rule="planned").assign(), "no schedule to follow"),
    ],
)
def test_wrong_calls_raise_errors_that_name_the_problem(call, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(two_workers())


def test_models_that_may_get_more_epochs_start_first() -> None:
    hopper = two_workers(models=0, rule="auto")
    hopper.add_model("m0", 2)
    hopper.add_model("m1", 1, most=9)
    hopper.add_model("m2", 1)
    assert {assignment.unit.model for assignment in hopper.assign()} == {"m0", "m1"}
    alone = two_workers(models=0, rule="auto")
    alone.add_model("m0", 1)
    alone.add_model("m1", 1)
    alone.add_model("m2", 1, most=9)
    assert "m2" in {assignment.unit.model for assignment in alone.assign()}


def test_reducing_epochs_between_two_epochs() -> None:
    """The next epoch, which has not begun, is not trained, and nothing waits for it."""
    hopper = two_workers(models=1)  # two epochs
    for _ in range(2):
        (assignment,) = hopper.assign()
        hopper.finish(assignment.worker)
    hopper.extend_model("m0", 1)
    assert hopper.done() and hopper.assign() == []
    check_hopper(hopper)
    hopper.extend_model("m0", 2)
    assert [assignment.unit.epoch for assignment in hopper.assign()] == [2]
