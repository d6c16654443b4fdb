"""The contract of a framework: inherit `FrameworkContract` and supply subjects, small models to test it with.

class TestMine(FrameworkContract):
    @pytest.fixture
    def subject(self) -> Subject:
        return Subject(my_framework, model_fn, loss_fn, (x, y), draw=lambda: my_library.random())
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regatta.configuration import Configuration
from regatta.data.order import batch_order
from regatta.errors import CorruptError, NotFoundError, UsageError
from regatta.frameworks.base import Framework, Indices
from regatta.frameworks.settings import keep

UNITS = 4  # training passes of a test; every second one ends an epoch


@dataclass(frozen=True)
class Setting:
    """A setting of the whole process: functions to read and set it, and a value that it does not have."""

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    other: Any


@dataclass(frozen=True)
class Subject:
    """A small model of a framework; `draw` takes a number from the framework's own global generator."""

    framework: Framework
    model_fn: Callable[[dict[str, Any]], Any]
    loss_fn: Callable[[Any, Any, Configuration], Any] | None
    arrays: Any
    draw: Callable[[], float]
    config: dict[str, Any] = field(default_factory=lambda: {"batch_size": 8, "lr": 0.05})
    device: str = "cpu"
    setting: Setting | None = None
    precision: float = 1e-12  # of mean losses; some models compute them in single precision

    def assemble(self, seed: int = 0) -> Any:
        with self.framework.seeded(seed):
            built = self.model_fn(dict(self.config))
        return self.framework.assemble(built, self.device)

    def data(self) -> Any:
        return self.framework.prepare(self.arrays, self.device)

    def batches(self, seed: int) -> list[Indices]:
        return batch_order(self.framework.rows(self.data()), self.config["batch_size"], seed)

    def train(self, trainee: Any, unit: int) -> float:
        with self.framework.seeded(unit):
            found = self.framework.train(trainee, self.data(), self.batches(unit), self.loss_fn, self.config)
            if unit % 2:
                self.framework.end_epoch(trainee)
        return found["loss"]

    def evaluate(self, trainee: Any, batches: Iterable[Indices]) -> float:
        with self.framework.seeded(0):
            return self.framework.evaluate(trainee, self.data(), batches, self.loss_fn, self.config)["loss"]

    def bits(self, trainee: Any, folder: Path) -> bytes:
        """The whole state of a trainee, as the bytes of its file."""
        path = folder / "bits"
        self.framework.save(trainee, path)
        return path.read_bytes()

    def hop(self, trainee: Any, folder: Path) -> Any:
        """The trainee after a hop: its state in a new model, built with another seed."""
        path = folder / "hop"
        self.framework.save(trainee, path)
        fresh = self.assemble(seed=99)
        self.framework.restore(fresh, self.framework.read(path))
        return fresh


class FrameworkContract:
    """Everything that the engine relies on. Subclasses define the fixtures `subject` and, once, `wrong_build`."""

    @pytest.fixture
    def subject(self) -> Subject:
        raise NotImplementedError("supply a Subject")

    # -- state ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("units", [0, 1, 2])
    def test_a_state_survives_a_hop_bit_for_bit(self, subject: Subject, tmp_path: Path, units: int) -> None:
        trainee = subject.assemble()
        for unit in range(units):
            subject.train(trainee, unit)
        before = subject.bits(trainee, tmp_path)
        assert subject.bits(subject.hop(trainee, tmp_path), tmp_path) == before

    def test_hopping_does_not_change_later_training(self, subject: Subject, tmp_path: Path) -> None:
        staying, hopping = subject.assemble(), subject.assemble()
        for unit in range(UNITS):
            hopping = subject.hop(hopping, tmp_path)
            assert _same(subject.train(hopping, unit), subject.train(staying, unit))
            assert subject.bits(hopping, tmp_path) == subject.bits(staying, tmp_path)

    def test_a_state_can_be_restored_again_after_it_was_trained_on(self, subject: Subject, tmp_path: Path) -> None:
        """A model must not write to the state that it was restored from, which may be restored again."""
        trainee = subject.assemble()
        subject.train(trainee, 0)
        subject.train(trainee, 1)
        before = subject.bits(trainee, tmp_path)
        subject.framework.save(trainee, tmp_path / "state")
        state = subject.framework.read(tmp_path / "state")
        for unit in (2, 3):
            fresh = subject.assemble(seed=unit)
            subject.framework.restore(fresh, state)
            assert subject.bits(fresh, tmp_path) == before
            subject.train(fresh, unit)
            assert subject.bits(fresh, tmp_path) != before
        assert (tmp_path / "state").read_bytes() == before

    def test_a_cached_trainee_is_as_good_as_a_new_one(self, subject: Subject, tmp_path: Path) -> None:
        """Where compiling is expensive, a worker restores the next state into a used trainee."""
        if not subject.framework.COMPILES:
            pytest.skip("a worker does not cache models of this framework")
        trainee, kept = subject.assemble(), subject.assemble(seed=5)
        subject.train(trainee, 0)
        subject.framework.save(trainee, tmp_path / "state")
        for unit in (3, 2, 1):
            subject.train(kept, unit)
            subject.evaluate(kept, subject.batches(1))
        subject.framework.restore(kept, subject.framework.read(tmp_path / "state"))
        for unit in (1, 2):
            assert _same(subject.train(kept, unit), subject.train(trainee, unit))
            assert subject.bits(kept, tmp_path) == subject.bits(trainee, tmp_path)

    def test_training_does_not_change_unsaved_values(self, subject: Subject) -> None:
        """The states of these models are complete, and unsaved values can be compared."""
        trainee = subject.assemble()
        before = subject.framework.unsaved_values(trainee)
        assert before == subject.framework.unsaved_values(subject.assemble(seed=3))
        subject.train(trainee, 0)
        assert subject.framework.unsaved_values(trainee) == before

    def test_saving_twice_gives_the_same_bits(self, subject: Subject, tmp_path: Path) -> None:
        trainee = subject.assemble()
        subject.train(trainee, 0)
        assert subject.bits(trainee, tmp_path) == subject.bits(trainee, tmp_path)

    def test_states_do_not_grow_with_steps(self, subject: Subject, tmp_path: Path) -> None:
        trainee = subject.assemble()
        subject.train(trainee, 0)
        size = len(subject.bits(trainee, tmp_path))
        for unit in range(1, UNITS):
            subject.train(trainee, unit)
        assert len(subject.bits(trainee, tmp_path)) == pytest.approx(size, abs=256)

    def test_a_missing_state_is_not_found(self, subject: Subject, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match="not there"):
            subject.framework.read(tmp_path / "nothing")

    def test_a_damaged_state_is_refused(self, subject: Subject, tmp_path: Path) -> None:
        whole = subject.bits(subject.assemble(), tmp_path)
        for length in (0, 7, 8, len(whole) // 2, len(whole) - 1):
            (tmp_path / "cut").write_bytes(whole[:length])
            with pytest.raises(CorruptError, match="cut: The state cannot be read"):
                subject.framework.read(tmp_path / "cut")

    # -- training and evaluation -----------------------------------------------------------------------

    def test_training_twice_gives_the_same_bits(self, subject: Subject, tmp_path: Path) -> None:
        ends = []
        for _ in range(2):
            trainee = subject.assemble()
            losses = [subject.train(trainee, unit) for unit in range(UNITS)]
            ends.append((np.array(losses).tobytes(), subject.bits(trainee, tmp_path)))
        assert ends[0] == ends[1]

    def test_training_changes_the_model(self, subject: Subject, tmp_path: Path) -> None:
        trainee = subject.assemble()
        before = subject.bits(trainee, tmp_path)
        loss = subject.train(trainee, 0)
        assert math.isfinite(loss)
        assert subject.bits(trainee, tmp_path) != before

    def test_evaluation_changes_nothing(self, subject: Subject, tmp_path: Path) -> None:
        evaluated, untouched = subject.assemble(), subject.assemble()
        for unit in range(UNITS):
            before = subject.bits(evaluated, tmp_path)
            values = {subject.evaluate(evaluated, subject.batches(7)) for _ in range(2)}
            assert len(values) == 1
            assert subject.bits(evaluated, tmp_path) == before
            subject.train(evaluated, unit)
            subject.train(untouched, unit)
            assert subject.bits(evaluated, tmp_path) == subject.bits(untouched, tmp_path)

    def test_the_mean_loss_weighs_rows_not_batches(self, subject: Subject) -> None:
        trainee = subject.assemble()
        subject.train(trainee, 0)
        rows = subject.framework.rows(subject.data())
        uneven = np.split(np.arange(rows), [rows // 2, rows // 2 + 3])
        parts = [subject.evaluate(trainee, [part]) * len(part) for part in uneven]
        assert subject.evaluate(trainee, uneven) == pytest.approx(sum(parts) / rows, rel=subject.precision)

    def test_train_fn_gets_the_model_and_the_optimizer(self, subject: Subject) -> None:
        trainee = subject.assemble()
        model, optimizer, schedule = subject.framework.train_fn_arguments(trainee)
        assert subject.framework.owns(model)
        assert optimizer is trainee.optimizer is not None
        assert (schedule is None) == (subject.framework.schedule_position(trainee) is None)

    def test_training_advances_the_schedule_of_steps(self, subject: Subject) -> None:
        trainee = subject.assemble()
        before = subject.framework.schedule_position(trainee)
        assert subject.framework.schedule_position(trainee) == before
        subject.train(trainee, 0)
        assert before is None or subject.framework.schedule_position(trainee) != before

    def test_evaluation_mode_ends_with_its_scope(self, subject: Subject, tmp_path: Path) -> None:
        scoped, untouched = subject.assemble(), subject.assemble()
        with subject.framework.seeded(5), subject.framework.evaluating(scoped):
            pass
        with pytest.raises(ZeroDivisionError), subject.framework.evaluating(scoped):
            raise ZeroDivisionError
        for unit in range(2):
            assert _same(subject.train(scoped, unit), subject.train(untouched, unit))
        assert subject.bits(scoped, tmp_path) == subject.bits(untouched, tmp_path)

    def test_a_model_without_an_optimizer_cannot_take_steps(self, subject: Subject) -> None:
        if subject.loss_fn is None:
            pytest.skip("a model with its own loss has its own optimizer")
        model = subject.assemble().model
        trainee = subject.framework.assemble(model, subject.device)
        with pytest.raises(UsageError, match="model_fn returned none"):
            subject.train(trainee, 0)
        assert math.isfinite(subject.evaluate(trainee, subject.batches(0)))

    # -- random numbers ----------------------------------------------------------------------------------

    def test_seeded_draws_repeat(self, subject: Subject) -> None:
        drawn = []
        for seed in (7, 7, 8, 2**63 - 1):
            with subject.framework.seeded(seed):
                drawn.append(_draws(subject))
        assert drawn[0] == drawn[1]
        for mine, other in zip(drawn[0], drawn[2], strict=True):
            assert mine != other

    def test_a_seeded_scope_does_not_disturb_random_numbers_outside(self, subject: Subject) -> None:
        seeded = subject.framework.seeded
        with seeded(1):
            undisturbed = [_draws(subject), _draws(subject)]
        with seeded(1):
            first = _draws(subject)
            with seeded(2):
                _draws(subject)
            with pytest.raises(ZeroDivisionError), seeded(3):
                _draws(subject)
                raise ZeroDivisionError
            assert [first, _draws(subject)] == undisturbed

    def test_random_numbers_drawn_before_do_not_matter(self, subject: Subject, tmp_path: Path) -> None:
        ends = []
        for draws in (0, 3):
            for _ in range(draws):
                _draws(subject)
            trainee = subject.assemble()
            subject.train(trainee, 0)
            ends.append(subject.bits(trainee, tmp_path))
        assert ends[0] == ends[1]

    def test_settings_of_the_process_are_restored(self, subject: Subject) -> None:
        setting = subject.setting
        if setting is None:
            pytest.skip("the framework has no settings")
        before = setting.get()
        assert before != setting.other
        with pytest.raises(ZeroDivisionError), keep(subject.framework.settings()):
            setting.put(setting.other)
            assert setting.get() == setting.other
            raise ZeroDivisionError
        assert setting.get() == before
        with keep(subject.framework.settings()):
            setting.put(setting.other)
        assert setting.get() == before

    # -- what the user gives ---------------------------------------------------------------------------------

    def test_rows_are_those_of_the_arrays(self, subject: Subject) -> None:
        assert subject.framework.rows(subject.data()) == len(subject.arrays[0])

    def test_shared_data_cannot_be_changed_unnoticed(self, subject: Subject) -> None:
        """Either the data is read-only, or the end of the scope reports the change."""
        data = subject.data()
        with subject.framework.check_unmodified(data):
            subject.framework.rows(data)
        before = np.asarray(data[0]).tobytes()
        try:
            with pytest.raises(UsageError, match="in place"), subject.framework.check_unmodified(data):
                data[0][0] = 77
        except (TypeError, ValueError):
            assert np.asarray(data[0]).tobytes() == before

    def test_the_framework_recognizes_its_models(self, subject: Subject) -> None:
        assert subject.framework.owns(subject.assemble().model)
        for other in (None, 1, "model", object(), [], {}, {"w": [1.0]}):
            assert not subject.framework.owns(other)


class WrongBuilds:
    """Wrong returns of `model_fn`, each with a part of its error message. Subclasses define `wrong_build`."""

    def test_a_wrong_return_of_model_fn_is_a_usage_error(
        self, framework: Framework, wrong_build: tuple[Any, str]
    ) -> None:
        built, text = wrong_build
        with pytest.raises(UsageError, match=text):
            framework.assemble(built, "cpu")


def _draws(subject: Subject) -> tuple[float, ...]:
    return random.random(), float(np.random.rand()), float(np.random.standard_normal()), subject.draw()


def _same(one: float, other: float) -> bool:
    """Bitwise, so that NaN equals itself and zeros of different sign do not."""
    return np.float64(one).tobytes() == np.float64(other).tobytes()
