"""Trials follow the search and the requests of users, in the order of the journal."""

from __future__ import annotations

from typing import Any

from regatta import search
from regatta.configuration import config_id
from regatta.engine.controller.trials import Trials
from regatta.journal.journal_file import Record
from regatta.search.base import Goal

GOAL = Goal("loss", "min", 4, 0)


def request(verb: str, config: str, **more: Any) -> Record:
    return {"event": "request", "verb": verb, "config": config, "answer": {"done": True}, **more}


def report(config: str, epoch: int, loss: float) -> Record:
    return {
        "event": "report", "config": config, "epoch": epoch, "metrics": {"loss": loss}, "elapsed": 0.0,
        "device_seconds": 0.0,
    }  # fmt: skip


def test_epochs_that_users_asked_for_count_in_a_later_rung() -> None:
    trials = Trials(search.hyperband(lr=search.uniform(0.001, 0.1), batch_size=[7], R=4, eta=2), GOAL)
    rung = [trial.id for trial in trials.start()][:4]
    trials.replay_record(request("extend", rung[0], epochs=4))
    for epoch in (1, 2, 3, 4):
        trials.replay_record(report(rung[0], epoch, 0.5))
    for place, config in enumerate(rung[1:]):
        trials.replay_record(report(config, 1, 0.1 + place))
    assert trials[rung[1]].epochs == 2, "the two best go on; the other one is there already"
    trials.replay_record(report(rung[1], 2, 0.1))
    assert trials[rung[1]].epochs == 4, "and the better of them to the end"
    assert trials[rung[2]].epochs == 1


def test_a_clone_is_reported_when_the_search_asks_for_it_later() -> None:
    values = [{"batch_size": 7, "lr": rate} for rate in (0.1, 0.2, 0.3)]
    for fails in (False, True):
        trials = Trials(search.asha(lr=[0.1, 0.2, 0.3], batch_size=[7], n=3, eta=3, at_once=1), GOAL)
        first = trials.start()[0]
        clones = [config_id(other) for other in values if config_id(other) != first.id]
        for clone, other in [(config_id(v), v) for v in values if config_id(v) in clones]:
            trials.replay_record(request("clone", first.id, values=other, warm=False, epochs=1, parent_epoch=None))
            line = {"event": "failed", "config": clone, "epoch": 1} if fails else report(clone, 1, 0.1)
            trials.replay_record(line)
        assert not any(trials[clone].search_epochs for clone in clones)
        trials.replay_record(report(first.id, 1, 0.5))
        assert all(trials[clone].search_epochs for clone in clones), "one after another, without waiting"
        assert sum(trial.epochs == 4 for trial in trials) == 1, "one of three in a rung goes on"
