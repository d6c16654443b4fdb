// The page: header, timeline, curves and the table of configurations, which are highlighted together.

const data = JSON.parse(document.getElementById("data").textContent);
// Hues a golden angle apart stay distinct for any number of models; lightness alternates from the ninth on.
function colourOf(number) {
  const hue = (25 + number * 137.508) % 360;
  const shift = [0, -0.12, 0.1][Math.floor(number / 8) % 3];
  return `oklch(calc(var(--unit-lightness) + ${shift}) var(--unit-chroma) ${hue.toFixed(1)})`;
}

// A canvas does not support custom properties and is fastest with plain RGB, so one pixel is painted and read back.
function resolved(colour) {
  const probe = make("i");
  probe.style.color = colour;
  document.body.append(probe);
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  pen.fillStyle = getComputedStyle(probe).color;
  probe.remove();
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
  return `rgb(${red}, ${green}, ${blue})`;
}

const [varying, shared] = varyingNames(data.configs);
const colours = data.configs.map((_, number) => colourOf(number));
let pinned = null;

// Header

function drawHeader() {
  const { run, resources, efficiency } = data;
  $("name").textContent = run.name;
  $("status").textContent = run.status === "running" ? "as it was when this page was written" : run.status;
  $("status").classList.add(run.status);
  const spent = (kind) => seconds(resources[kind]) + (kind in data.percentages ? ` (${data.percentages[kind]}%)` : "");
  const figures = {
    wall: seconds(resources.wall),
    workers: data.workers.length,
    units: resources.units.toLocaleString("en"),
    training: spent("train"),
    evaluation: spent("eval"),
    profiling: spent("pilot"),
    idle: spent("idle"),
    "against the lower bound": efficiency.bound > 0 ? `${efficiency.ratio.toFixed(3)}×` : "-",
    hops: `${resources.hops.toLocaleString("en")}, ${bytes(resources.bytes_hopped)}`,
    "time in hops": seconds(resources.hop),
    partitions: run.partitions,
    seed: run.seed,
  };
  $("started").textContent = `started ${new Date(run.started * 1000).toLocaleString()}`;
  for (const [name, value] of Object.entries(figures)) {
    $("figures").append(make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value ?? "-" })));
  }
}

// Table of configurations: the legend of both charts

function drawConfigs() {
  const numeric = (name) => data.configs.every((config) => typeof config.values[name] === "number");
  const remarks = data.configs.some((config) => remark(config));
  const heads = [["", false], ["configuration", false], ...varying.map((name) => [name, numeric(name)]),
    [`best ${data.run.metric}`, true], ["at", true], ["status", false], ...(remarks ? [["", false]] : [])];
  const row = make("tr", {}, ...heads.map(([text, number]) => make("th", { textContent: text, className: number ? "number" : "", scope: "col" })));
  $("configs").append(make("thead", {}, row), make("tbody", {}, ...data.configs.map((config, number) => configRow(config, number, numeric, remarks))));
  $("shared").textContent = shared.length && data.configs.length
    ? `In all: ${shared.map((name) => `${name} = ${word(data.configs[0].values[name])}`).join(", ")}` : "";
}

function configRow(config, number, numeric, remarks) {
  const swatch = make("span", { className: "swatch" });
  swatch.style.background = colours[number];
  const button = make("button", { type: "button", textContent: config.id, title: "keep it lit" });
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => pin(number));
  button.addEventListener("focus", () => light(number));
  button.addEventListener("blur", () => light(null));
  const row = make("tr", {},
    make("td", { textContent: number + 1, className: "number" }),
    make("td", {}, swatch, button),
    ...varying.map((name) => make("td", { textContent: name in config.values ? word(config.values[name]) : "-", className: numeric(name) ? "number" : "" })),
    make("td", { textContent: config.best ? figure(config.best[1]) : "none", className: "number" }),
    make("td", { textContent: config.best ? config.best[0] : "-", className: "number" }),
    make("td", { textContent: config.status, className: config.status }),
    ...(remarks ? [make("td", { textContent: remark(config), className: "remark" })] : []));
  row.addEventListener("pointerenter", () => light(number));
  row.addEventListener("pointerleave", () => light(null));
  return row;
}

function remark(config) {
  if (config.error) return config.error.trim().split("\n").at(-1);
  const lost = config.series.find((point) => point[1] === null);
  return lost ? `NaN at epoch ${lost[0]}` : "";
}

// Highlighting

function light(number) {
  const lit = number ?? pinned;
  if (timeline.lit === lit) return;
  timeline.lit = lit;
  timeline.draw();
  curves.light(lit);
  [...$("configs").tBodies[0].rows].forEach((row, other) => row.classList.toggle("lit", other === lit));
}

function pin(number) {
  pinned = pinned === number ? null : number;
  document.querySelectorAll("#configs button").forEach((button, other) => button.setAttribute("aria-pressed", String(other === pinned)));
  light(pinned);
}

// Details of a unit

function describe(unit) {
  const units = data.units;
  const config = data.configs[units.config[unit]];
  const what = { train: "training", eval: "evaluation", pilot: "profiling" }[units.kind[unit]] ?? units.kind[unit];
  const rows = varying.map((name) => [name, name in config.values ? word(config.values[name]) : "-"]);
  if (units.kind[unit] !== "pilot") rows.push(["epoch", units.epoch[unit]], ["partition", units.partition[unit]]);
  rows.push(["worker", data.workers[units.worker[unit]]], ["time", seconds(units.end[unit] - units.start[unit])],
    ["begun after", seconds(units.start[unit])]);
  if (units.rows[unit]) rows.push(["rows", units.rows[unit].toLocaleString("en")]);
  if (units.hop_bytes[unit]) rows.push(["hopped", `${bytes(units.hop_bytes[unit])} in ${seconds(units.hop_seconds[unit])}`]);
  for (const [name, column] of Object.entries(units.metrics)) {
    if (column[unit] !== null) rows.push([name, figure(column[unit])]);
    else if (units.kind[unit] === "train" && name === data.run.metric) rows.push([name, "NaN"]);
  }
  return [`${config.id} ${what}`, rows];
}

function showTip(unit, x, y) {
  const tip = $("tip");
  tip.hidden = unit === null;
  if (unit === null) return;
  const [title, rows] = describe(unit);
  const list = make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
  tip.replaceChildren(make("b", { textContent: title }), list);
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 14 + box.width < innerWidth ? x + 14 : x - 14 - box.width)}px`;
  tip.style.top = `${Math.max(4, y + 14 + box.height < innerHeight ? y + 14 : y - 14 - box.height)}px`;
}

const hooks = {
  light,
  over(unit, x, y) {
    showTip(unit, x, y);
    light(unit === null ? null : data.units.config[unit]);
  },
  chosen(unit) {
    if (unit === null) { this.over(null); return; }
    this.over(unit, ...timeline.placeOf(unit));
    const [title, rows] = describe(unit);
    $("said").textContent = `${title}, ${rows.map((row) => row.join(" ")).join(", ")}`;
  },
};

drawHeader();
drawConfigs();
$("curves-title").textContent = `${data.run.metric} after each epoch (${data.run.mode === "min" ? "lower" : "higher"} is better)`;
const curves = new Curves($("curves"), data, colours, hooks);
const timeline = new Timeline(document.querySelector("#timeline canvas"), data, colours.map(resolved), hooks);

$("log").checked = curves.log;
$("log").disabled = !curves.canLog;
$("log").addEventListener("change", () => { curves.log = $("log").checked; curves.draw(); curves.light(timeline.lit); });
const actions = { in: () => timeline.zoom(0.6), out: () => timeline.zoom(1 / 0.6), fit: () => timeline.fit() };
document.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", actions[button.dataset.do]));
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && pinned !== null) pin(pinned); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  timeline.colours = colours.map(resolved);
  timeline.draw();
});
