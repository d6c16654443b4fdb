"""A run as a small HTML table for notebooks."""

from __future__ import annotations

from html import escape

from regatta.journal.run_record import ConfigRecord, RunRecord

MAX_ROWS = 20


def table_html(name: str, record: RunRecord) -> str:
    """The leaderboard, best value first, with the hyperparameters that vary."""
    if not record.header:
        return f"<p><b>{escape(name)}</b>: not started</p>"
    board = record.leaderboard()
    names = dict.fromkeys(key for config in board for key in config.values)
    varying = [key for key in names if len({str(c.values.get(key)) for c in board}) > 1]
    titles = ("", "configuration", *varying, f"best {record.metric}", "epoch", "status")
    head = "".join(f"<th>{escape(text)}</th>" for text in titles)
    rows = "".join(_row(rank, config, record, varying) for rank, config in enumerate(board[:MAX_ROWS], 1))
    more = f"<p>and {len(board) - MAX_ROWS} more</p>" if len(board) > MAX_ROWS else ""
    done, wanted = record.progress()
    return (
        f"<p><b>{escape(name)}</b>: {record.status}, {done} of {wanted} units</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"
    )


def _row(rank: int, config: ConfigRecord, record: RunRecord, varying: list[str]) -> str:
    best = config.best(record.metric, record.mode)
    value, epoch = (f"{best[1]:.4g}", str(best[0])) if best else ("-", "-")
    cells = (str(rank), config.id, *(str(config.values.get(key, "")) for key in varying), value, epoch, config.status)
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
