// Shared by the charts of a search: scales, ticks, colours by rank, the tooltip.

function ticksOf(low, high, count, log) {
  if (!(high > low)) return [low];
  if (log) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high * 1.001; power++) {
      for (const factor of [1, 2, 5]) ticks.push(factor * 10 ** power);
    }
    const inside = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
    const powers = inside.filter((tick) => Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9);
    if (inside.length <= count) return inside.length > 1 ? inside : [low, high];
    const step = Math.ceil(powers.length / count);
    return powers.length > 1 ? powers.filter((_, n) => n % step === 0) : [low, high];
  }
  const step = niceStep(high - low, count);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) ticks.push(n * step);
  return ticks;
}

class Scale {
  constructor({ kind, low, high, words, values }) {
    Object.assign(this, { kind, low, high, words });
    this.marked = values?.length ? values.map((value) => [value, word(value)]) : null; // few enough for labels
  }

  // The position of a value from 0 to 1, or null if it has none.
  part(value) {
    if (value === null || value === undefined) return null;
    if (this.kind === "words") {
      const number = this.words.indexOf(spelled(value));
      return number < 0 ? null : this.words.length > 1 ? number / (this.words.length - 1) : 0.5;
    }
    if (typeof value !== "number" || (this.kind === "log" && value <= 0)) return null;
    const scale = this.kind === "log" ? Math.log : (v) => v;
    const [low, high] = [scale(this.low), scale(this.high)];
    return high > low ? (scale(value) - low) / (high - low) : 0.5;
  }

  ticks(count) {
    if (this.kind !== "words") return ticksOf(this.low, this.high, count, this.kind === "log").map((value) => [value, word(value)]);
    const step = Math.ceil(this.words.length / Math.max(2, count));
    return this.words.filter((_, n) => n % step === 0).map((text) => [text, text]);
  }
}

// A value as Python formats it, since the words of an axis come from Python.
function spelled(value) {
  return value === null ? "None" : value === true ? "True" : value === false ? "False" : String(value);
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// Configurations are sorted, best first, so an index is a rank.
function tones(configs) {
  const ranked = configs.filter((config) => config.best).length;
  return configs.map((config, rank) => (config.best ? `var(--q${Math.min(8, Math.floor((9 * rank) / Math.max(1, ranked)))})` : "var(--none)"));
}

function showTip(title, rows, x, y) {
  const tip = $("tip");
  tip.hidden = false;
  const list = make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", { textContent: shortened(name, 40) }), make("dd", { textContent: shortened(String(value), 60) })]));
  tip.replaceChildren(make("b", { textContent: title }), list);
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 14 + box.width < innerWidth ? x + 14 : x - 14 - box.width)}px`;
  tip.style.top = `${Math.max(4, y + 14 + box.height < innerHeight ? y + 14 : y - 14 - box.height)}px`;
}

function hideTip() { $("tip").hidden = true; }

// A chart that fills its element, and is drawn again when the width changes.
class Plot {
  constructor(place, data, hooks) {
    Object.assign(this, { place, data, hooks, tones: tones(data.configs), kept: null, lit: null });
  }

  begin() {
    this.redraw();
    new ResizeObserver(() => { if (this.place.clientWidth !== this.width) this.redraw(); }).observe(this.place);
  }

  redraw() {
    this.width = this.place.clientWidth;
    this.place.replaceChildren();
    this.draw();
    this.keep(this.kept);
    this.light(this.lit);
  }

  svg(width, height, attributes) {
    const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, ...attributes }, this.place);
    svg.addEventListener("pointerleave", () => { hideTip(); this.hooks.light(null); });
    return svg;
  }

  // The configurations that pass the brushes; null means all.
  keep(kept) {
    this.kept = kept;
    this.marks?.forEach((mark, number) => mark?.classList.toggle("out", kept !== null && !kept.has(number)));
  }

  isKept(number) { return this.kept === null || this.kept.has(number); }

  light(number) { this.lit = number; }
}

function pathOf(points) {
  let path = "", pen = "M";
  for (const point of points) {
    if (point === null) { pen = "M"; continue; }
    path += `${pen}${point[0].toFixed(1)},${point[1].toFixed(1)}`;
    pen = "L";
  }
  return path;
}

// The vertical distance of the pointer from a line of points; Infinity to the left or right of it.
function distanceTo(points, x, y) {
  let after = points.findIndex((point) => point !== null && point[0] >= x);
  if (after < 0) after = points.length - 1;
  const [right, left] = [points[after], points[Math.max(0, after - 1)]];
  if (!right || !left || x < left[0] - 12 || x > right[0] + 12) return Infinity;
  const part = right[0] > left[0] ? Math.min(1, Math.max(0, (x - left[0]) / (right[0] - left[0]))) : 1;
  return Math.abs(left[1] + part * (right[1] - left[1]) - y);
}

function nearest(lines, x, y, wanted) {
  let [best, found] = [24, null];
  lines.forEach((points, number) => {
    if (!wanted(number)) return;
    const distance = distanceTo(points, x, y);
    if (distance < best) [best, found] = [distance, number];
  });
  return found;
}
