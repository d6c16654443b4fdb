// The page: header, leaderboard, shares, and the charts, which are highlighted and brushed together.

const data = JSON.parse($("data").textContent);
const FIRST_ROWS = 100;
const PART_NAMES = { train: "training", eval: "evaluation", pilot: "profiling", hop: "hops (fetching)", load: "loading data", save: "saving states", idle: "idle" };
const colours = tones(data.configs);
let pinned = null;
let pictures = [];

// Header

function drawHeader() {
  const { run } = data;
  $("name").textContent = run.name;
  $("status").textContent = run.status === "running" ? "running, as it was when this page was written" : run.status;
  $("status").classList.add(run.status);
  $("started").textContent = `started ${new Date(run.started * 1000).toLocaleString()}`;
  const reached = data.configs.reduce((sum, config) => sum + config.epoch, 0);
  const failed = data.configs.filter((config) => config.status === "failed").length;
  const figures = {
    search: run.search || "-", configurations: run.configs.toLocaleString("en"), ...(failed ? { failed } : {}),
    "epochs, in all": reached.toLocaleString("en"), wall: seconds(run.seconds), workers: data.time.workers.length,
    "against the lower bound": data.efficiency === null ? "-" : `${data.efficiency.toFixed(3)}×`,
    "data set": run.dataset ?? "-", partitions: run.partitions, seed: run.seed ?? "-",
  };
  for (const [name, value] of Object.entries(figures)) {
    $("figures").append(make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value })));
  }
  $("notes").append(...[run.error, ...run.notes].filter(Boolean).map((textContent) => make("li", { textContent })));
  drawBestCard();
}

function drawBestCard() {
  const best = data.configs[0];
  if (!best?.best) {
    $("best").append(make("span", { className: "which", textContent: `No configuration has a finite ${data.run.metric} yet.` }));
    return;
  }
  const values = [...data.axes.map((axis, n) => [axis.name, shown(best, n)]), ...Object.entries(data.shared).map(([name, value]) => [name, text(value)])];
  $("best").append(
    make("b", { textContent: `${data.run.metric} ${figure(best.best[1])}` }),
    make("span", { className: "which" }, "best, ", make("code", { textContent: best.id }), ` after epoch ${best.best[0]}`),
    make("ul", {}, ...values.map(([name, value]) => make("li", {}, make("span", { textContent: `${name} ` }), value))));
}

function text(value) { return typeof value === "number" ? (Number.isInteger(value) ? word(value) : figure(value)) : spelled(value); }

function shown(config, number) { return config.has && !config.has[number] ? "–" : text(config.values[number]); }

// Leaderboard

const columns = [
  { name: "#", number: true, value: (_, rank) => rank + 1 },
  { name: "configuration", value: (config) => config.id },
  { name: `best ${data.run.metric}`, number: true, value: (config) => config.best?.[1] ?? null, shown: (config) => (config.best ? figure(config.best[1]) : "none") },
  { name: "at epoch", number: true, value: (config) => config.best?.[0] ?? null },
  ...data.axes.map((axis, n) => ({ name: axis.name, number: axis.kind !== "words", value: (config) => (config.has && !config.has[n] ? null : config.values[n]), shown: (config) => shown(config, n) })),
  { name: "epochs", number: true, value: (config) => config.epoch },
  { name: "device time", number: true, value: (config) => config.seconds, shown: (config) => seconds(config.seconds) },
  { name: "status", value: (config) => config.status },
  ...(data.configs.some((config) => config.error) ? [{ name: "error", value: (config) => config.error ?? "", remark: true }] : []),
];
const board = { by: 0, descending: false, whole: false, kept: null, rows: [] };

function drawBoard() {
  const heads = columns.map((column, number) => {
    const button = make("button", { type: "button", textContent: column.name });
    button.addEventListener("click", () => sortBy(number));
    return make("th", { className: column.number ? "number" : "", scope: "col" }, button);
  });
  board.rows = data.configs.map(boardRow);
  $("board").append(make("thead", {}, make("tr", {}, ...heads)), make("tbody"));
  $("shared").textContent = Object.keys(data.shared).length ? `In all: ${Object.entries(data.shared).map(([name, value]) => `${name} = ${text(value)}`).join(", ")}` : "";
  fillBoard();
}

function boardRow(config, number) {
  const cells = columns.map((column) => {
    const content = column.shown ? column.shown(config) : String(column.value(config, number) ?? "-");
    const cell = make("td", { className: column.remark ? "remark" : column.number ? "number" : "", title: content.length > 30 ? content : "" });
    if (column !== columns[1]) { cell.textContent = content; return cell; }
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = number === 0 && config.best ? "var(--best)" : colours[number];
    const button = make("button", { type: "button", textContent: config.id, title: "keep it lit" });
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => pin(number));
    button.addEventListener("focus", () => light(number));
    button.addEventListener("blur", () => light(null));
    cell.append(swatch, button);
    return cell;
  });
  const row = make("tr", { className: number === 0 && config.best ? "first" : "" }, ...cells);
  row.addEventListener("pointerenter", () => light(number));
  row.addEventListener("pointerleave", () => light(null));
  return row;
}

function sortBy(number) {
  board.descending = board.by === number && !board.descending;
  board.by = number;
  fillBoard();
}

// Missing values come last in either direction; numbers come before words.
function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 2;
  if (b === null || b === undefined) return -2;
  if (typeof a === "number" && typeof b === "number") return a - b < 0 ? -1 : 1;
  return typeof a === "number" ? -1 : typeof b === "number" ? 1 : String(a) < String(b) ? -1 : 1;
}

function fillBoard() {
  const { value } = columns[board.by];
  const order = data.configs.map((_, number) => number).filter((number) => board.kept === null || board.kept.has(number));
  const keys = data.configs.map(value);
  order.sort((a, b) => {
    const found = compare(keys[a], keys[b]);
    return (Math.abs(found) === 2 || !board.descending ? found : -found) || a - b;
  });
  const listed = board.whole ? order : order.slice(0, FIRST_ROWS);
  $("board").tBodies[0].replaceChildren(...listed.map((number) => board.rows[number]));
  [...$("board").tHead.rows[0].cells].forEach((cell, number) => {
    if (number === board.by) cell.setAttribute("aria-sort", board.descending ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
  });
  $("board-count").textContent = board.kept === null ? "" : `${order.length} of ${data.configs.length} pass`;
  drawMore(order.length - listed.length);
}

function drawMore(hidden) {
  $("board-more").replaceChildren();
  if (hidden > 0) {
    const button = make("button", { type: "button", textContent: `show ${hidden.toLocaleString("en")} more` });
    button.addEventListener("click", () => { board.whole = true; fillBoard(); });
    $("board-more").append(button);
  }
  const left = data.run.configs - data.configs.length;
  if (left > 0) $("board-more").append(` The ${left.toLocaleString("en")} worst configurations are not on this page.`);
}

// Shares

function drawImportance() {
  const { method, shares, text: words } = data.importance;
  $("importance-note").textContent = method ? `${words} Shares by ${method}; they say what mattered among what was tried, not why.` : words;
  if (!method) return;
  const list = make("dl", { className: "shares" });
  for (const [name, share] of Object.entries(shares)) {
    const bar = make("i");
    bar.style.width = `${100 * share}%`;
    list.append(make("dt", { textContent: name }), make("div", { className: "track", ariaHidden: "true" }, bar), make("dd", { textContent: `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%` }));
  }
  $("importance").append(list);
}

function drawTime() {
  const { parts, workers, seconds: table } = data.time;
  if (!workers.length) { $("time").textContent = "No unit has ended yet."; return; }
  const sums = parts.map((_, part) => table.reduce((sum, row) => sum + row[part], 0));
  const whole = sums.reduce((a, b) => a + b, 0) || 1;
  const items = parts.map((part, n) => {
    const mark = make("i");
    mark.style.background = `var(--${part})`;
    return make("li", {}, mark, make("span", { textContent: PART_NAMES[part] }), make("b", { textContent: seconds(sums[n]) }), make("span", { textContent: `${((100 * sums[n]) / whole).toFixed(1)}%` }));
  });
  $("time").append(stack(parts, sums, ""), make("ul", { className: "legend" }, ...items));
  if (workers.length > 1) {
    const rows = workers.slice(0, 32).flatMap((worker, n) => [make("span", { textContent: worker }), stack(parts, table[n], "small")]);
    $("time").append(make("div", { className: "rows", ariaHidden: "true" }, ...rows));
  }
}

function stack(parts, sums, size) {
  const whole = sums.reduce((a, b) => a + b, 0) || 1;
  return make("div", { className: `stack ${size}`, ariaHidden: "true" }, ...parts.map((part, n) => {
    const piece = make("i", { title: `${PART_NAMES[part]}: ${seconds(sums[n])}` });
    piece.style.cssText = `width: ${(100 * sums[n]) / whole}%; background: var(--${part})`;
    return piece;
  }));
}

// Highlighting and brushing

function light(number) {
  const lit = number ?? pinned;
  pictures.forEach((picture) => picture.light(lit));
  board.rows.forEach((row, other) => { if (row.classList.contains("lit") !== (other === lit)) row.classList.toggle("lit", other === lit); });
}

function pin(number) {
  pinned = pinned === number ? null : number;
  board.rows.forEach((row, other) => row.querySelector("button").setAttribute("aria-pressed", String(other === pinned)));
  light(pinned);
}

const hooks = {
  light,
  tip(number, rows, x, y) {
    const config = data.configs[number];
    const values = data.axes.slice(0, 12).map((axis, n) => [axis.name, shown(config, n)]);
    const best = config.best ? [[`best ${data.run.metric}`, `${figure(config.best[1])} at epoch ${config.best[0]}`]] : [["status", config.status]];
    showTip(`${config.id}, rank ${number + 1}`, [...rows, ...values, ...best], x, y);
  },
  keep(kept) {
    board.kept = kept;
    fillBoard();
    $("unbrush").hidden = kept === null;
    pictures.forEach((picture) => picture.keep(kept));
  },
};

function drawPictures() {
  const learning = new Learning($("learning"), data, hooks);
  const budget = new Budget($("budget"), data, hooks);
  pictures = [learning, budget];
  if (data.axes.length) {
    const parallel = new Parallel($("parallel"), data, hooks);
    pictures.push(parallel);
    $("unbrush").addEventListener("click", () => parallel.clear());
  } else {
    $("parallel-section").hidden = true;
  }
  const choose = () => {
    $("log").checked = learning.log;
    $("log").disabled = !learning.canLog;
    const better = learning.metric === data.run.metric ? ` (${data.run.mode === "min" ? "lower" : "higher"} is better)` : "";
    $("learning-title").textContent = `${learning.metric} after each epoch${better}`;
    $("learning-note").textContent = learning.note();
  };
  $("metric").append(...data.metrics.map((name) => make("option", { value: name, textContent: shortened(name, 30) })));
  $("metric").addEventListener("change", () => { learning.choose($("metric").value); learning.redraw(); choose(); });
  $("log").addEventListener("change", () => { learning.log = $("log").checked; learning.redraw(); choose(); });
  $("unit").addEventListener("change", () => { budget.unit = $("unit").value; budget.redraw(); });
  $("unit").value = budget.unit;
  $("budget-note").textContent = budget.note();
  choose();
}

if (data.configs.length < 2) document.querySelectorAll(".ramp").forEach((ramp) => ramp.remove());
drawHeader();
drawBoard();
drawImportance();
drawTime();
if (data.configs.length) drawPictures();
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && pinned !== null) pin(pinned); });
