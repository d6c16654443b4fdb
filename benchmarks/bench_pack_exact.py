"""Ten mixed members, three epochs, loaded and freed in between: every value bitwise equal to a plain loop.

Widths, architectures (BatchNorm and dropout among them), batch sizes with a short last batch, optimizers, schedules,
clipping and loss scaling differ. Three members are freed after an epoch, three come later, one comes back.

    python benchmarks/bench_pack_exact.py [cpu]
"""

from __future__ import annotations

import sys

import torch
from pack_exactness import KINDS, alone, data, differences, parts
from report import Bar, report

import regatta.pack


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    pack, given, states, epochs = regatta.pack.Pack(device), data(device), {}, dict.fromkeys(range(len(KINDS)), 0)
    members = {number: pack.load(**parts(number, device)) for number in range(7)}
    placements = {}

    def train() -> None:
        pack.train(given, epochs=1)
        placements.update({number: (m.tier, m.reason) for number, m in members.items()})
        for number in members:
            epochs[number] += 1

    def free(number: int) -> None:
        member = members.pop(number)
        states[number] = {**pack.free(member), "losses": torch.from_numpy(member.losses)}

    train()
    for number in (0, 3, 5):
        free(number)
    members |= {number: pack.load(**parts(number, device)) for number in (7, 8, 9)}
    train()
    members[0] = pack.load(**parts(0, device), state=states[0])
    train()
    free(2)
    train()
    for number in list(members):
        free(number)
    rows, wrong = [], 0
    for number in range(len(KINDS)):
        expected = alone(number, epochs[number], device)
        found = differences(states[number], expected)
        if number != 0:  # the one that came back has the losses of its second stay only
            found += [] if torch.equal(states[number]["losses"], expected["losses"]) else ["losses"]
        wrong += bool(found)
        name = parts(number, device)["name"]
        rows.append(
            [name, epochs[number], placements[number][0], placements[number][1][:60], ", ".join(found[:3]) or "equal"]
        )
        print(rows[-1], flush=True)
    report(
        f"pack_exact{'_cpu' if device == 'cpu' else ''}",
        ["member", "epochs", "tier", "why", "against the plain loop"],
        rows,
        bars=[Bar("members that differ in any bit", wrong, 0)],
    )


if __name__ == "__main__":
    main()
