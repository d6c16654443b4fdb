// The budget of each configuration: a bar from its start to its last epoch, with rungs, and lines from parents to children.

const MOST_ROWS = 240;

class Budget extends Plot {
  constructor(place, data, hooks) {
    super(place, data, hooks);
    const budgets = new Set(data.configs.map((config) => config.epoch));
    this.unit = budgets.size > 1 ? "epochs" : "seconds"; // bars of equal length show nothing
    this.kin = data.configs.some((config) => config.parent !== null);
    this.begin();
  }

  // Longest first, so that rungs are steps; a child stands below its parent.
  order() {
    const { configs } = this.data;
    const numbers = configs.map((_, number) => number);
    if (!this.kin || this.unit === "seconds") return numbers.sort((a, b) => this.amount(configs[b]) - this.amount(configs[a]) || a - b);
    const children = new Map();
    for (const number of numbers) {
      const parent = configs[number].parent;
      if (parent !== null) children.set(parent, [...(children.get(parent) ?? []), number]);
    }
    const found = [];
    const stack = numbers.filter((number) => configs[number].parent === null).sort((a, b) => b - a);
    while (stack.length) { // not a recursion: a lineage may be long
      const number = stack.pop();
      found.push(number);
      stack.push(...(children.get(number) ?? []).sort((a, b) => configs[a].born - configs[b].born));
    }
    return found;
  }

  thinned(order) {
    const step = Math.ceil(order.length / MOST_ROWS);
    return order.filter((number, row) => row % step === 0 || number === 0);
  }

  amount(config) { return this.unit === "epochs" ? config.epoch : config.seconds; }
  birth(config) { return this.unit === "epochs" ? config.born : 0; }

  draw() {
    const { configs } = this.data;
    this.rows = this.thinned(this.order());
    const count = this.rows.length;
    this.rowHeight = count <= 40 ? 17 : count <= 100 ? 8 : 3;
    this.box = { left: count <= 40 ? 84 : 12, right: 20, top: 24, bottom: 30 };
    this.height = this.box.top + this.box.bottom + count * this.rowHeight;
    this.most = Math.max(1e-9, ...this.rows.map((number) => this.birth(configs[number]) + this.amount(configs[number])));
    const svg = this.svg(this.width, this.height, { role: "img", "aria-label": this.describe() });
    this.drawAxis(svg);
    this.marks = [];
    this.bars = shape("g", {}, svg);
    this.rows.forEach((number, row) => this.drawBar(number, row));
    if (this.kin && this.unit === "epochs") this.drawKin(svg);
    else if (this.unit === "epochs") this.drawRungs(svg);
    this.frame = shape("rect", { class: "lit", visibility: "hidden" }, svg);
    svg.addEventListener("pointermove", (event) => this.point(event));
    svg.addEventListener("pointerdown", (event) => this.point(event));
  }

  x(amount) { return this.box.left + (amount / this.most) * (this.width - this.box.left - this.box.right); }
  y(row) { return this.box.top + row * this.rowHeight; }

  drawAxis(svg) {
    const bottom = this.height - this.box.bottom;
    let ticks = ticksOf(0, this.most, Math.max(3, Math.floor(this.width / 110)), false);
    if (this.unit === "epochs") ticks = ticks.filter(Number.isInteger);
    for (const tick of ticks) {
      shape("line", { x1: this.x(tick), x2: this.x(tick), y1: this.box.top - 4, y2: bottom, class: "grid" }, svg);
      shape("text", { x: this.x(tick), y: bottom + 15, "text-anchor": "middle" }, svg, word(tick));
    }
    const what = this.unit === "epochs" ? (this.kin ? "epochs of the lineage" : "epochs") : "device seconds";
    shape("text", { x: this.width - this.box.right, y: this.height - 1, "text-anchor": "end" }, svg, what);
  }

  drawBar(number, row) {
    const config = this.data.configs[number];
    const [start, end] = [this.x(this.birth(config)), this.x(this.birth(config) + this.amount(config))];
    const gap = this.rowHeight > 5 ? 2 : 0.4;
    const look = { x: start, y: this.y(row) + gap / 2, width: Math.max(1.2, end - start), height: this.rowHeight - gap };
    const bar = shape("rect", { ...look, style: `fill: ${number === 0 && config.best ? "var(--best)" : this.tones[number]}` }, this.bars);
    if (config.status === "failed" && this.rowHeight > 5) shape("text", { x: Math.max(start, end) + 4, y: this.y(row) + this.rowHeight / 2 + 4, style: "fill: var(--bad)" }, this.bars, "× failed");
    if (this.rowHeight > 12) shape("text", { x: 0, y: this.y(row) + 12, class: "id" }, this.bars, config.id);
    this.marks[number] = bar;
  }

  drawRungs(svg) {
    let clear = -Infinity;
    for (const [epochs, count] of this.data.rungs) {
      const x = this.x(epochs);
      shape("line", { x1: x, x2: x, y1: this.box.top - 4, y2: this.height - this.box.bottom, class: "rung" }, svg);
      const text = `${count} at ${epochs}`;
      const width = text.length * 6.4;
      const left = Math.min(x - width / 2, this.width - width);
      if (left < clear) continue;
      clear = left + width + 8;
      shape("text", { x: left, y: 13 }, svg, text);
    }
  }

  drawKin(svg) {
    const rowOf = new Map(this.rows.map((number, row) => [number, row]));
    this.kinLines = new Map();
    for (const [number, row] of rowOf) {
      const config = this.data.configs[number];
      if (config.parent === null || !rowOf.has(config.parent)) continue;
      const x = this.x(config.born);
      const from = this.y(rowOf.get(config.parent)) + this.rowHeight / 2;
      const to = this.y(row) + this.rowHeight / 2;
      this.kinLines.set(number, shape("path", { d: `M${x},${from}V${to}h3`, class: "kin" }, svg));
    }
  }

  point(event) {
    const box = event.currentTarget.getBoundingClientRect();
    const number = this.rows[Math.floor((event.clientY - box.top - this.box.top) / this.rowHeight)] ?? null;
    this.hooks.light(number);
    if (number === null) { hideTip(); return; }
    const config = this.data.configs[number];
    const rows = [["epochs", config.epoch], ["device time", seconds(config.seconds)]];
    if (config.parent !== null) rows.push(["began from", this.data.configs[config.parent].id], ["after", `epoch ${config.born} of the lineage`]);
    this.hooks.tip(number, rows, event.clientX, event.clientY);
  }

  light(number) {
    super.light(number);
    if (!this.frame) return;
    this.kinLines?.forEach((line, child) => line.classList.toggle("lit", child === number));
    const mark = number === null ? null : this.marks[number];
    this.frame.setAttribute("visibility", mark ? "visible" : "hidden");
    if (mark) for (const name of ["x", "y", "width", "height"]) this.frame.setAttribute(name, mark.getAttribute(name));
  }

  describe() {
    const { configs, rungs } = this.data;
    const most = configs.reduce((a, config) => Math.max(a, config.epoch), 0);
    const words = rungs.map(([epochs, count]) => `${count} ended after epoch ${epochs}`).join(", ");
    const children = configs.filter((config) => config.parent !== null).length;
    return `Budget of ${configs.length} configurations, at most ${most} epochs. ${words}${children ? `${children} began from another's state.` : ""}`;
  }

  note() {
    const words = [];
    if (this.rows.length < this.data.configs.length) words.push(`Every ${Math.ceil(this.data.configs.length / MOST_ROWS)}th of ${this.data.configs.length} configurations is drawn, and the best.`);
    if (!this.kin && this.data.rungs.length) words.push("Dashed: budgets at which several configurations ended, with how many.");
    if (this.kin) words.push("A thin line leads from a parent to the child that began with its state.");
    return words.join(" ");
  }
}
