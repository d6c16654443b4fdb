"""The scheduler when finished units are lost, and when workers leave, are replaced or come back."""

from __future__ import annotations

import pytest
from hopper_invariants import RecordedHopper, check_hopper
from schedule_instances import known, train, two_workers

from regatta.errors import UsageError
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.simulate import Outage, simulate, spread_partitions
from regatta.plan.schedule.units import Assignment, Unit


def train_one(hopper: Hopper, model: str = "m0") -> Unit:
    """Start and finish the next training unit of a model; what else starts is given back."""
    begun = {a.unit.model: a for a in hopper.assign() if a.unit.kind == "train"}
    for worker, unit in hopper.running().items():
        if unit != begun[model].unit:
            hopper.give_back(worker)
    hopper.finish(begun[model].worker)
    check_hopper(hopper)
    return begun[model].unit


def finish_all(hopper: Hopper) -> list[Unit]:
    """Run to the end; all units that finished, in order."""
    seen = []
    while not hopper.done():
        hopper.assign()
        assert hopper.running(), f"stuck with {hopper.units_left()} units left"
        worker, unit = next(iter(hopper.running().items()))
        hopper.finish(worker)
        seen.append(unit)
        check_hopper(hopper)
    return seen


def epoch_of(model: str, epoch: int, evals: int = 0) -> list[Unit]:
    return [train(model, epoch, j) for j in range(2)] + [Unit("eval", model, epoch, j) for j in range(evals)]


# -- units that did not happen after all ---------------------------------------------------------------


def test_a_unit_lost_in_mid_epoch_is_done_again() -> None:
    hopper = two_workers(models=1)
    lost = train_one(hopper)
    assert hopper.units_left() == 3
    hopper.undo("m0", 1, lost.partition)
    check_hopper(hopper)
    assert hopper.units_left() == 4
    assert sorted(finish_all(hopper), key=str) == sorted(epoch_of("m0", 1) + epoch_of("m0", 2), key=str)


def test_an_epoch_whose_last_unit_is_lost_is_not_evaluated() -> None:
    """Its evaluations wait in the queue, those of another model between them."""
    hopper = two_workers(evals=2, models=2)
    for _ in range(2):
        for assignment in hopper.assign():
            hopper.finish(assignment.worker)
    left = hopper.units_left()
    hopper.undo("m0", 1, 1)
    check_hopper(hopper)
    assert hopper.units_left() == left + 1
    assert {a.unit for a in hopper.assign()} == {Unit("eval", "m1", 1, 0), Unit("eval", "m1", 1, 1)}
    rest = [*hopper.running().values()]
    for worker in ("w0", "w1"):
        hopper.finish(worker)
    again = finish_all(hopper)
    assert again.index(train("m0", 1, 1)) < again.index(Unit("eval", "m0", 1, 0))
    assert train("m0", 1, 0) not in again
    wanted = [train("m0", 1, 1), *epoch_of("m0", 1, 2)[2:], *epoch_of("m0", 2, 2), *rest, *epoch_of("m1", 2, 2)]
    assert sorted([*rest, *again], key=str) == sorted(wanted, key=str)


def test_an_epoch_lost_with_its_last_unit_is_reported_again() -> None:
    hopper = two_workers(models=1)
    train_one(hopper)
    last = train_one(hopper)
    hopper.undo("m0", 1, last.partition)
    (again,) = hopper.assign()
    assert again.unit == last
    finished = hopper.finish(again.worker)
    assert (finished.trained, finished.evaluated) == (True, True)


def test_one_unit_after_the_other_may_be_lost_across_an_epoch() -> None:
    hopper = two_workers(models=1)
    done = [train_one(hopper) for _ in range(3)]
    for unit in reversed(done):
        hopper.undo("m0", unit.epoch, unit.partition)
        check_hopper(hopper)
    assert hopper.units_left() == 4
    assert len(finish_all(hopper)) == 4


def test_a_lost_unit_of_a_stopped_model_waits_until_it_is_resumed() -> None:
    hopper = two_workers(models=1)
    lost = train_one(hopper)
    hopper.stop_model("m0")
    hopper.undo("m0", 1, lost.partition)
    check_hopper(hopper)
    assert hopper.done()
    assert hopper.assign() == []
    hopper.extend_model("m0", 1)
    check_hopper(hopper)
    assert sorted(finish_all(hopper), key=str) == epoch_of("m0", 1)


def test_shelved_evaluations_of_a_lost_epoch_are_dropped() -> None:
    """The last unit ends after its model was stopped: the evaluations are shelved, and go with the unit."""
    hopper = two_workers(evals=2, models=1)
    train_one(hopper)
    (last,) = hopper.assign()
    hopper.stop_model("m0")
    assert hopper.finish(last.worker).trained
    hopper.undo("m0", 1, last.unit.partition)
    check_hopper(hopper)
    assert hopper.done()
    hopper.extend_model("m0", 1)
    assert hopper.units_left() == 3
    assert finish_all(hopper) == [last.unit, Unit("eval", "m0", 1, 0), Unit("eval", "m0", 1, 1)]


def test_a_fixed_order_is_kept_when_a_unit_is_lost() -> None:
    hopper = two_workers(models=0)
    hopper.add_model("m0", 1, order={1: [1, 0]})
    assert train_one(hopper) == train("m0", 1, 1)
    hopper.undo("m0", 1, 1)
    assert finish_all(hopper) == [train("m0", 1, 1), train("m0", 1, 0)]


@pytest.mark.parametrize(
    ("before", "unit", "message"),
    [
        (0, (1, 0), "not among the units that finished in the last epoch, 0"),
        (1, (1, 1), "not among the units that finished in the last epoch, 1"),
        (1, (1, 7), "not among the units that finished"),
        (3, (1, 0), "not among the units that finished in the last epoch, 2"),
    ],
)
def test_only_the_last_unit_can_be_undone(before: int, unit: tuple[int, int], message: str) -> None:
    hopper = two_workers(models=0)
    hopper.add_model("m0", 2, order={1: [0, 1], 2: [0, 1]})
    for _ in range(before):
        train_one(hopper)
    with pytest.raises(UsageError, match=message):
        hopper.undo("m0", *unit)
    check_hopper(hopper)


def test_a_unit_with_dependent_units_cannot_be_undone() -> None:
    hopper = two_workers(evals=2, models=1)
    first = train_one(hopper)
    (second,) = hopper.assign()
    with pytest.raises(UsageError, match=r"m0, epoch 1, partition \d, cannot be undone: a unit that depends"):
        hopper.undo("m0", 1, first.partition)
    hopper.finish(second.worker)
    hopper.assign()
    with pytest.raises(UsageError, match="is running"):
        hopper.undo("m0", 1, second.unit.partition)
    hopper.finish("w0")
    hopper.give_back("w1")
    with pytest.raises(UsageError, match="its epoch was evaluated, at least in part"):
        hopper.undo("m0", 1, second.unit.partition)
    check_hopper(hopper)


# -- workers ------------------------------------------------------------------------------------------


def test_partitions_of_a_lost_worker_are_trained_by_their_new_holder() -> None:
    hopper = two_workers(evals=2)
    hopper.assign()
    lost = hopper.remove_worker("w1")
    assert lost is not None
    assert hopper.unheld_partitions() == [1]
    hopper.set_partitions("w0", [0, 1], [0, 1])  # while it is in the middle of a unit
    assert hopper.unheld_partitions() == []
    assert hopper.workers() == {"w0": ([0, 1], [0, 1])}
    done = finish_all(hopper)
    assert lost in done
    assert sorted(done, key=str) == sorted(
        [unit for model in ("m0", "m1") for epoch in (1, 2) for unit in epoch_of(model, epoch, 2)], key=str
    )


@pytest.mark.parametrize("rule", ["auto", "longest", "backlog", "placed", "randomized"])
def test_a_run_ends_on_the_workers_that_took_over(rule: str) -> None:
    times = known([[1.0, 2.0, 1.5]] * 5)
    hopper = RecordedHopper(3, estimates=times, rule=rule)
    for worker, held in spread_partitions(3, 3).items():
        hopper.add_worker(worker, *held)
    for model in range(5):
        hopper.add_model(f"m{model}", 2)
    taken = []

    def take_over(hopper: Hopper) -> None:
        check_hopper(hopper)
        if hopper.unheld_partitions() and not taken:
            taken.extend(hopper.unheld_partitions())
            hopper.set_partitions("w0", [0, *taken])

    schedule = simulate(hopper, times, outages=[Outage("w2", 2.5)], after=take_over)
    assert taken == [2]
    assert len(schedule.rows) == 30
    assert {row.worker for row in schedule.rows if row.unit.partition == 2 and row.start > 2.5} == {"w0"}


def test_a_worker_comes_back_under_its_old_name() -> None:
    hopper = two_workers(models=3)
    hopper.assign()
    running = hopper.running()["w1"]
    assert hopper.remove_worker("w1") == running
    with pytest.raises(UsageError, match="no worker 'w1'"):
        hopper.finish("w1")
    hopper.add_worker("w1", [1])
    check_hopper(hopper)
    assert hopper.workers() == {"w0": ([0], []), "w1": ([1], [])}
    (again,) = hopper.assign()
    assert (again.worker, again.unit.partition) == ("w1", 1)
    assert len(finish_all(hopper)) == 12


def test_a_worker_that_comes_back_may_hold_other_partitions() -> None:
    hopper = two_workers(models=1)
    hopper.remove_worker("w1")
    hopper.set_partitions("w0", [0, 1])
    hopper.add_worker("w1", [])
    assert {a.worker for a in hopper.assign()} == {"w0"}
    hopper.finish("w0")
    hopper.remove_worker("w0")
    assert hopper.unheld_partitions() == [0, 1]
    assert hopper.assign() == []
    hopper.set_partitions("w1", [0, 1])
    assert {unit.partition for unit in finish_all(hopper)[1:]} == {0, 1}


def test_only_a_present_worker_can_hold_partitions() -> None:
    hopper = two_workers()
    hopper.remove_worker("w1")
    with pytest.raises(UsageError, match="no worker 'w1'"):
        hopper.set_partitions("w1", [1])
    with pytest.raises(UsageError, match="partition held by 'w0' is 2; there are 2"):
        hopper.set_partitions("w0", [0, 2])


# -- what is wanted -----------------------------------------------------------------------------------


def test_an_extension_may_fix_the_order_of_its_epochs() -> None:
    hopper = two_workers(models=0)
    hopper.add_model("m0", 1, order={1: [1, 0]})
    hopper.extend_model("m0", 3, order={1: [0, 1], 2: [0, 1], 3: [1, 0]})  # the first is fixed already
    assert [unit.partition for unit in finish_all(hopper)] == [1, 0, 0, 1, 1, 0]
    with pytest.raises(UsageError, match=r"order of 'm0' in epoch 4 is \[0\]"):
        hopper.extend_model("m0", 4, order={4: [0]})


def test_an_order_given_in_mid_epoch_holds_for_its_rest() -> None:
    hopper = two_workers(models=0)
    hopper.add_model("m0", 1)
    first = train_one(hopper)
    hopper.extend_model("m0", 1, order={1: [0, 1]})
    assert hopper.assign() == [Assignment(f"w{1 - first.partition}", train("m0", 1, 1 - first.partition))]
