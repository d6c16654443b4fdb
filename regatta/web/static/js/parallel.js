// Parallel coordinates: an axis for each hyperparameter that varies and one for the metric; brushing selects lines.

class Parallel extends Plot {
  constructor(place, data, hooks) {
    super(place, data, hooks);
    const { metric, mode } = data.run;
    const values = data.configs.filter((config) => config.best).map((config) => config.best[1]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const log = low > 0 && high / low > 50;
    this.axes = data.axes.map((axis, number) => ({ name: axis.name, scale: new Scale(axis), value: (config) => valueOf(config, number, axis) }));
    if (values.length) this.axes.push({ name: `best ${metric}`, scale: new Scale({ kind: log ? "log" : "linear", low, high }), value: (config) => config.best?.[1] ?? null, turned: mode === "min" });
    this.brushes = this.axes.map(() => null);
    this.begin();
  }

  draw() {
    const count = this.axes.length;
    this.box = { left: 62, right: 78, top: 34, bottom: 14 };
    this.height = 330;
    this.across = Math.max(this.width, this.box.left + this.box.right + (count - 1) * 96);
    const svg = this.svg(this.across, this.height, { role: "group", "aria-label": this.describe() });
    this.group = shape("g", { class: this.data.configs.length > 120 ? "many" : "" }, svg);
    this.lines = this.data.configs.map((config) => this.axes.map((axis, number) => this.place_(axis, number, config)));
    this.marks = [];
    for (let number = this.lines.length - 1; number >= 0; number--) {
      this.marks[number] = shape("path", { d: pathOf(this.lines[number]), class: "line", style: `stroke: ${this.tones[number]}` }, this.group);
    }
    if (this.data.configs[0]?.best) shape("path", { d: pathOf(this.lines[0]), class: "top" }, svg);
    this.overlay = shape("path", { class: "lit" }, svg);
    this.handles = this.axes.map((axis, number) => this.drawAxis(svg, axis, number));
    svg.addEventListener("pointermove", (event) => this.point(event));
    svg.addEventListener("pointerdown", (event) => this.point(event));
  }

  x(number) {
    const { left, right } = this.box;
    return left + (this.axes.length > 1 ? number / (this.axes.length - 1) : 0.5) * (this.across - left - right);
  }

  y(part) { return this.height - this.box.bottom - part * (this.height - this.box.top - this.box.bottom); }

  part(axis, value) {
    const part = axis.scale.part(value);
    return part === null ? null : axis.turned ? 1 - part : part;
  }

  place_(axis, number, config) {
    const part = this.part(axis, axis.value(config));
    return part === null ? null : [this.x(number), this.y(part)];
  }

  drawAxis(svg, axis, number) {
    const x = this.x(number);
    const group = shape("g", { tabindex: 0, role: "group", "aria-label": axis.name }, svg);
    shape("line", { x1: x, x2: x, y1: this.y(0), y2: this.y(1), class: "axis" }, group);
    const last = number === this.axes.length - 1;
    const anchor = number === 0 ? "start" : last ? "end" : "middle";
    const name = shape("text", { x: number === 0 ? 0 : last ? this.across : x, y: 14, "text-anchor": anchor, class: "name" }, group, shortened(axis.name, number === 0 || last ? 22 : 14));
    shape("title", {}, name, axis.name + (axis.scale.kind === "log" ? " (log scale)" : ""));
    for (const [value, text] of axis.scale.marked ?? axis.scale.ticks(axis.scale.kind === "words" ? 12 : 6)) {
      const y = this.y(this.part(axis, value)) + 4;
      shape("text", { x: x + (last ? 7 : -7), y, "text-anchor": last ? "start" : "end", class: "tick" }, group, shortened(text, 9));
    }
    const brush = shape("rect", { x: x - 7, width: 14, class: "brush", visibility: "hidden" }, group);
    const rail = shape("rect", { x: x - 14, width: 28, y: this.y(1) - 6, height: this.y(0) - this.y(1) + 12, class: "rail" }, group);
    this.listen(group, rail, number);
    const handle = { group, brush };
    this.showBrush(handle, axis, this.brushes[number]);
    return handle;
  }

  listen(group, rail, number) {
    const partAt = (event) => {
      const y = event.clientY - rail.ownerSVGElement.getBoundingClientRect().top;
      return Math.min(1, Math.max(0, (this.height - this.box.bottom - y) / (this.height - this.box.top - this.box.bottom)));
    };
    let from = null;
    rail.addEventListener("pointerdown", (event) => { from = partAt(event); rail.setPointerCapture(event.pointerId); });
    rail.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = partAt(event);
      if (Math.abs(to - from) > 0.02) this.brush(number, [Math.min(from, to), Math.max(from, to)]);
    });
    rail.addEventListener("pointerup", (event) => {
      if (from !== null && Math.abs(partAt(event) - from) <= 0.02) this.brush(number, null);
      from = null;
    });
    group.addEventListener("keydown", (event) => this.key(event, number));
  }

  key(event, number) {
    const [low, high] = this.brushes[number] ?? [0.7, 1];
    const moved = (by) => (low + by < -0.001 || high + by > 1.001 ? [low, high] : [low + by, high + by]);
    const changes = {
      ArrowUp: () => (this.brushes[number] ? moved(0.05) : [low, high]), ArrowDown: () => (this.brushes[number] ? moved(-0.05) : [0, 0.3]),
      "+": () => [Math.max(0, low - 0.05), Math.min(1, high + 0.05)], "-": () => (high - low > 0.11 ? [low + 0.05, high - 0.05] : [low, high]),
      Escape: () => null, Delete: () => null,
    };
    if (!(event.key in changes)) return;
    event.preventDefault();
    this.brush(number, changes[event.key]());
  }

  brush(number, range) {
    this.brushes[number] = range;
    this.showBrush(this.handles[number], this.axes[number], range);
    this.hooks.keep(this.passing());
  }

  showBrush({ group, brush }, axis, range) {
    brush.setAttribute("visibility", range ? "visible" : "hidden");
    group.setAttribute("aria-label", range ? `${axis.name}, kept from ${Math.round(100 * range[0])}% to ${Math.round(100 * range[1])}% of the axis` : axis.name);
    if (!range) return;
    brush.setAttribute("y", this.y(range[1]));
    brush.setAttribute("height", this.y(range[0]) - this.y(range[1]));
  }

  clear() {
    this.axes.forEach((axis, number) => { this.brushes[number] = null; this.showBrush(this.handles[number], axis, null); });
    this.hooks.keep(null);
  }

  passing() {
    if (this.brushes.every((range) => range === null)) return null;
    const passes = (config) => this.axes.every((axis, number) => {
      const range = this.brushes[number];
      if (range === null) return true;
      const part = this.part(axis, axis.value(config));
      return part !== null && part >= range[0] - 1e-9 && part <= range[1] + 1e-9;
    });
    return new Set(this.data.configs.flatMap((config, number) => (passes(config) ? [number] : [])));
  }

  point(event) {
    const box = event.currentTarget.getBoundingClientRect();
    const number = nearest(this.lines, event.clientX - box.left, event.clientY - box.top, (n) => this.isKept(n));
    this.hooks.light(number);
    if (number === null) hideTip(); else this.hooks.tip(number, [], event.clientX, event.clientY);
  }

  light(number) {
    super.light(number);
    this.group.classList.toggle("dimmed", number !== null);
    this.overlay.setAttribute("d", number === null ? "" : pathOf(this.lines[number]));
  }

  describe() {
    return `Parallel coordinates of ${this.data.configs.length} configurations over ${this.axes.map((axis) => axis.name).join(", ")}. The leaderboard has the same values as a table.`;
  }
}

// The value of a configuration on an axis; undefined if it has none, since null may be a value.
function valueOf(config, number, axis) {
  if (config.has && !config.has[number]) return undefined;
  const value = config.values[number];
  return axis.kind === "words" ? spelled(value) : value;
}
