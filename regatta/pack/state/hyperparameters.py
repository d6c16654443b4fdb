"""The hyperparameters of an optimizer: all that its parameter groups hold besides the parameters.

A schedule may change any of them, and so may a user between two calls of `train`. A captured step reads tensors where
they are and holds everything else as a constant.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from regatta.pack.state.host_arithmetic import WatchedArithmetic
from regatta.pack.state.python_state import PythonState
from regatta.pack.state.schedule_guard import ScheduleGuard, TouchesTraining

if TYPE_CHECKING:
    from regatta.pack.member import Member

Group = dict[str, Any]
Numbers = Callable[[Sequence[Group]], list[float]]  # the hyperparameters that a step reads from the device
Constants = Callable[[Sequence[Group]], list[Group]]  # those that it holds


class HyperparameterChanged(Exception):
    """A schedule changes a hyperparameter that a captured step holds as a constant; the message names it."""


def hyperparameters(optimizer: torch.optim.Optimizer) -> list[Group]:
    """The parameter groups without their parameters; the values are those of the optimizer itself."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def copy_hyperparameters(optimizer: torch.optim.Optimizer) -> list[Group]:
    return [copy_group(group) for group in optimizer.param_groups]


def copy_group(group: Group) -> Group:
    """A copy without parameters and with tensors of its own; lists and dicts are shared."""
    found = {name: value.detach().clone() if type(value) is torch.Tensor else value for name, value in group.items()}
    found.pop("params", None)
    betas = found.get("betas")
    if betas is not None and tensors_in(betas):
        found["betas"] = _map_tensors(betas, lambda tensor: tensor.detach().clone())
    return found


def put_back(optimizer: torch.optim.Optimizer, saved: Sequence[Group]) -> None:
    """Write hyperparameters back: tensors in place, because captured steps need the addresses."""
    for group, before in zip(optimizer.param_groups, saved, strict=True):
        for name in [name for name in group if name != "params" and name not in before]:
            del group[name]
        group.update({name: _in_place(group.get(name), value) for name, value in before.items()})


def _in_place(present: Any, value: Any) -> Any:
    if isinstance(present, torch.Tensor):
        with torch.no_grad():
            return present.copy_(torch.as_tensor(value))
    if isinstance(present, tuple) and isinstance(value, tuple) and len(present) == len(value):
        return tuple(map(_in_place, present, value))
    return copy.deepcopy(value)


def constants(groups: Sequence[Group]) -> list[Group]:
    """What a captured step holds: everything but tensors."""
    return [{name: _map_tensors(value, lambda _: None) for name, value in _held(group)} for group in groups]


def tensor_numbers(groups: Sequence[Group]) -> list[float]:
    """What a captured step reads from the device: the values of tensors."""
    return [float(tensor) for group in groups for _, value in _held(group) for tensor in tensors_in(value)]


def set_tensors(groups: Sequence[Group], numbers: torch.Tensor) -> None:
    """Write numbers into the tensors, in the order of `tensor_numbers`."""
    tensors = (tensor for group in groups for _, value in _held(group) for tensor in tensors_in(value))
    for tensor, number in zip(tensors, numbers, strict=True):
        tensor.copy_(number)


def first_changed(before: Sequence[Group], after: Sequence[Group]) -> str | None:
    """The name of a hyperparameter that differs, or None."""
    for one, other in zip(before, after, strict=True):
        for name in sorted(one.keys() | other.keys()):
            if one.get(name) != other.get(name) or (name in one) != (name in other):
                return name
    return None


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors_in(part)] if isinstance(value, list | tuple) else []


def _held(group: Group) -> list[tuple[str, Any]]:
    return sorted((name, value) for name, value in group.items() if name not in ("params", "initial_lr"))


def _map_tensors(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(_map_tensors(part, function) for part in value)
    return value


def runs_own_code(schedule: Any) -> bool:
    """Whether a schedule calls functions that a user has written. They may change anything, such as a dropout rate."""
    own = not type(schedule).__module__.startswith("torch.optim.")
    functions = getattr(schedule, "lr_lambdas", None) or getattr(schedule, "_scale_fn_custom", None)
    return own or bool(functions) or any(map(runs_own_code, getattr(schedule, "_schedulers", ())))


def _copies_on(groups: Sequence[Group], places: Sequence[dict[str, torch.device]]) -> list[Group]:
    """Copies of the groups, with their tensors where `places` says, or else on the host."""

    def copied(value: Any, place: torch.device | None) -> Any:
        return _map_tensors(value, lambda tensor: tensor.detach().to(place or "cpu", copy=True))

    return [
        {name: copied(value, there.get(name)) for name, value in group.items()}
        for group, there in zip(groups, places, strict=True)
    ]


class HyperparameterPreview:
    """The hyperparameters of the next steps: the schedule is advanced in advance, on the host.

    A schedule computes with the values in the parameter groups. Most arithmetic rounds the same on the host and on the
    device, so a tensor gives the same values from a copy on the host. Where it may not, as in a division, the copy is
    on the device: that is exact as well, but has to wait for the device at each step.
    """

    def __init__(self, member: Member, numbers: Numbers = tensor_numbers, held: Constants = constants) -> None:
        self.model, self.optimizer, self.schedule = member.model, member.optimizer, member.schedule
        self._numbers, self._constants = numbers, held
        present = hyperparameters(self.optimizer)
        self._places = [
            {name: tensors_in(value)[0].device for name, value in group.items() if tensors_in(value)}
            for group in present
        ]
        self._follows_on_host = any(place.type != "cpu" for places in self._places for place in places.values())
        self._ahead = _copies_on(present, [{} for _ in present])
        self._held = held(self._ahead)
        self._is_own_code = runs_own_code(self.schedule)

    def next(self, steps: int) -> torch.Tensor:
        """The numbers of the next steps; fewer steps if a constant changes before. Raises HyperparameterChanged."""
        schedule = PythonState(code=[("the schedule", self.schedule)], ignored=[self.optimizer, *self._trained()])
        guard = ScheduleGuard(self._trained(), self.optimizer) if self._is_own_code else None
        self._before = schedule, [copy_group(group) for group in self._ahead]
        model = PythonState(self.model)
        present = self._swap(self._ahead)
        found: list[list[float]] = []
        failure: Exception | None = None
        watched = WatchedArithmetic()
        try:
            with (
                watched if self._follows_on_host else contextlib.nullcontext(),
                contextlib.nullcontext() if guard is None else guard.scope,
            ):
                while len(found) < steps and self._constants(self.optimizer.param_groups) == self._held:
                    found.append(self._numbers(self.optimizer.param_groups))
                    self.schedule.step()
        except Exception as error:  # noqa: BLE001 (code of a user: the step where it fails is taken alone)
            failure = error
        finally:
            self._ahead = self._swap(present)
        touched = None if guard is None else guard.first_change()
        changed = model.first_change()
        if watched.differs is not None:
            model.put_back()
            self._go_back()
            self._ahead, self._follows_on_host = _copies_on(self._ahead, self._places), False
            return self.next(steps)
        if failure is not None or touched is not None or changed is not None:
            model.put_back()
            self._go_back()
            if failure is not None and len(found) > 1:
                return self.next(len(found) - 1)
            if touched is not None and len(found) > 1:  # nothing says at which step
                return self.next(len(found) // 2)
            what = touched or (f"changes {changed}" if failure is None else _failing(failure))
            raise HyperparameterChanged(f"its schedule {what}, which a captured step cannot follow")
        if not found and steps:
            raise HyperparameterChanged(f"its schedule changes {self._changed()}, which a captured step cannot follow")
        return torch.tensor(found, dtype=torch.float64)

    def change_within(self, steps: int) -> str | None:
        """The name of a constant that changes within the next steps, or None. The schedule stays where it is."""
        found = len(self.next(steps))
        name = self._changed() if found < steps else None
        self.rewind(0)
        return name

    def _trained(self) -> list[torch.Tensor]:
        """What training changes."""
        states = [value for state in self.optimizer.state.values() for value in _values(state)]
        return [*self.model.parameters(), *self.model.buffers(), *states]

    def _changed(self) -> str | None:
        return first_changed(self._held, self._constants(self._ahead))

    def rewind(self, taken: int) -> None:
        """Go back: only `taken` of the last requested steps were taken."""
        self._go_back()
        self.next(taken)

    def _go_back(self) -> None:
        schedule, self._ahead = self._before
        schedule.put_back()

    def finish(self) -> None:
        """Leave each group with the hyperparameters of its next step."""
        put_back(self.optimizer, self._ahead)

    def _swap(self, groups: list[Group]) -> list[Group]:
        """Put other values into the parameter groups, and return those that were there."""
        before = hyperparameters(self.optimizer)
        for group, values in zip(self.optimizer.param_groups, groups, strict=True):
            parameters = group["params"]
            group.clear()
            group.update(params=parameters, **values)
        return before


def _values(state: Any) -> list[torch.Tensor]:
    found = state.values() if isinstance(state, dict) else [state]
    return [value for value in found if isinstance(value, torch.Tensor)]


def _failing(error: Exception) -> str:
    return str(error) if isinstance(error, TouchesTraining) else f"raises {type(error).__name__}"
