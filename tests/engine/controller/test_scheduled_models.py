"""The models that are scheduled as one."""

from __future__ import annotations

from regatta.engine.controller.scheduled_models import ScheduledModels
from regatta.engine.controller.trials import Trial


def test_a_trial_that_only_waits_for_evaluation_is_not_forgotten() -> None:
    scheduled = ScheduledModels()
    done, going = (Trial(name, {}, epochs) for name, epochs in (("done", 1), ("going", 2)))
    pack = scheduled.add([done, going], [])
    pack.end_epoch(1, [done, going])
    pack.trials = [going]
    going.failed = True
    scheduled.disband(pack)
    assert scheduled.take_ready(lambda trial: True) == [done]
    pack.end_epoch(2, [done])  # what ran when it was disbanded
    assert done not in pack.all_trials()
