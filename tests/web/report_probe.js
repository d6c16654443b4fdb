// Looks at a report, and touches it: sorts, hovers, brushes, chooses.
const $ = (id) => document.getElementById(id);
const rows = () => [...$("board").tBodies[0].rows];
const ids = () => rows().map((row) => row.querySelector("button").textContent);
const head = (name) => [...document.querySelectorAll("#board th button")].find((button) => button.textContent === name);
const cells = (name) => {
  const at = [...document.querySelectorAll("#board th")].findIndex((th) => th.textContent === name);
  return at < 0 ? [] : rows().map((row) => row.cells[at].textContent);
};
const lit = () => rows().filter((row) => row.classList.contains("lit")).map((row) => row.querySelector("button").textContent);
const change = (id, value, property = "value") => { $(id)[property] = value; $(id).dispatchEvent(new Event("change")); };

out.images = document.images.length;
out.best = $("best").textContent;
out.ids = ids();
out.curves = document.querySelectorAll("#learning .line").length;
out.lines = document.querySelectorAll("#parallel .line").length;
out.bars = document.querySelectorAll("#budget rect").length;
out.rungs = [...document.querySelectorAll("#budget text")].map((text) => text.textContent).filter((text) => / at /.test(text));
out.kin = document.querySelectorAll("#budget .kin").length;
out.shares = [...document.querySelectorAll("#importance dd")].map((share) => parseFloat(share.textContent));
out.method = $("importance-note").textContent;
out.labels = [...document.querySelectorAll(".plot svg")].map((svg) => svg.getAttribute("aria-label"));
out.wide = document.documentElement.scrollWidth;

const sort = head("lr");
sort?.click();
out.sorted = cells("lr").map(Number);
out.direction = sort?.closest("th").getAttribute("aria-sort");
sort?.click();
out.reversed = cells("lr").map(Number);
head("#").click();

const svg = document.querySelector("#learning svg");
if (svg) {
  const box = svg.getBoundingClientRect();
  const top = document.querySelector("#learning circle.top")?.getBoundingClientRect();
  if (top) svg.dispatchEvent(new PointerEvent("pointermove", { clientX: top.x + top.width / 2, clientY: top.y + top.height / 2, bubbles: true }));
  out.hovered = { tip: $("tip").textContent, hidden: $("tip").hidden, lit: lit() };
  svg.dispatchEvent(new PointerEvent("pointerleave"));
  out.left = { hidden: $("tip").hidden, lit: lit() };
}
const axis = document.querySelectorAll("#parallel g[tabindex]")[0];
if (axis) {
  const press = (key) => axis.dispatchEvent(new KeyboardEvent("keydown", { key }));
  press("ArrowUp");
  out.brushed = {
    said: $("board-count").textContent, rows: rows().length, lr: cells("lr").map(Number),
    out: document.querySelectorAll("#learning .line.out").length, label: axis.getAttribute("aria-label"),
  };
  press("+"); press("ArrowDown"); press("Escape");
  out.unbrushed = { rows: rows().length, out: document.querySelectorAll(".plot .out").length };
}
const button = rows()[1]?.querySelector("button");
button?.click();
out.pinned = [lit(), button?.getAttribute("aria-pressed")];
button?.click();
if ($("metric").options.length > 1) {
  change("metric", $("metric").options[1].value);
  out.other = $("learning-title").textContent;
  change("metric", $("metric").options[0].value);
}
out.log = [$("log").disabled, $("log").checked];
if (!$("log").disabled) change("log", !$("log").checked, "checked");
change("unit", "seconds");
out.end = ids().length;
