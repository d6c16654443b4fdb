// Learning curves: a line for each configuration in the colour of its rank, with the best one on top.

class Learning extends Plot {
  constructor(place, data, hooks) {
    super(place, data, hooks);
    this.choose(data.metrics[0]);
    this.begin();
  }

  choose(metric) {
    this.metric = metric;
    this.curves = this.data.curves[metric].map(([epochs, values], number) => {
      const born = this.data.configs[number].born;
      return values.map((value, n) => [born + (epochs.length ? epochs[n] : n + 1), value]);
    });
    this.joined = this.curves.map((curve, number) => [...this.inherited(number), ...curve]);
    const values = this.curves.flatMap((curve) => curve.map((point) => point[1])).filter((v) => v !== null).sort((a, b) => a - b);
    this.values = values;
    this.canLog = values.length > 0 && values[0] > 0;
    this.log = false;
    if (this.canLog) this.range();
    this.log = this.canLog && (values.at(-1) / values[0] > 50 || this.cut > 0);
  }

  // The value of the parent when a child started from its state: the line of the child starts there.
  inherited(number) {
    const { parent, born } = this.data.configs[number];
    return parent === null ? [] : this.curves[parent].filter((point) => point[0] === born);
  }

  // One model that diverged must not flatten all others: values far beyond the rest are cut off, with a note.
  range() {
    const scale = this.log ? Math.log : (v) => v;
    const back = this.log ? Math.exp : (v) => v;
    const at = (part) => scale(this.values[Math.floor(part * (this.values.length - 1))]);
    const far = 6 * (at(0.75) - at(0.25));
    const clipped = far > 0 ? [Math.max(this.values[0], back(at(0.25) - far)), Math.min(this.values.at(-1), back(at(0.75) + far))] : [this.values[0], this.values.at(-1)];
    this.cut = this.values.filter((v) => v < clipped[0] || v > clipped[1]).length;
    return clipped;
  }

  draw() {
    this.marks = [];
    this.lines = [];
    if (!this.values.length) {
      this.place.textContent = `No finite ${this.metric} has been reported.`;
      return;
    }
    const [low, high] = this.range();
    const epochs = this.curves.flatMap((curve) => curve.map((point) => point[0]));
    this.first = epochs.reduce((a, b) => Math.min(a, b));
    this.last = epochs.reduce((a, b) => Math.max(a, b));
    this.scale = new Scale({ kind: this.log ? "log" : "linear", low, high });
    this.height = Math.round(Math.min(420, Math.max(250, this.width * 0.42)));
    this.box = { left: 52, right: 14, top: 12, bottom: 34 };
    const svg = this.svg(this.width, this.height, { role: "img", "aria-label": this.describe() });
    this.drawAxes(svg);
    this.drawLines(svg);
    svg.addEventListener("pointermove", (event) => this.point(event));
    svg.addEventListener("pointerdown", (event) => this.point(event));
  }

  x(epoch) {
    const { left, right } = this.box;
    return left + (this.last > this.first ? (epoch - this.first) / (this.last - this.first) : 0.5) * (this.width - left - right);
  }

  y(value) {
    const { top, bottom } = this.box;
    return this.height - bottom - (0.02 + 0.96 * this.scale.part(value)) * (this.height - top - bottom);
  }

  drawAxes(svg) {
    const { left, right, bottom } = this.box;
    for (const [value, text] of this.scale.ticks(6)) {
      const y = this.y(value);
      shape("line", { x1: left, x2: this.width - right, y1: y, y2: y, class: "grid" }, svg);
      shape("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, svg, Number(value.toPrecision(3)) || text);
    }
    const step = Math.max(1, Math.ceil((this.last - this.first) / Math.max(2, Math.floor(this.width / 80))));
    for (let epoch = this.first; epoch <= this.last; epoch += step) {
      shape("text", { x: this.x(epoch), y: this.height - bottom + 16, "text-anchor": "middle" }, svg, epoch);
    }
    shape("text", { x: this.width - right, y: this.height - 3, "text-anchor": "end" }, svg, "epoch");
  }

  drawLines(svg) {
    const { left, top, right, bottom } = this.box;
    const frame = shape("clipPath", { id: "learning-frame" }, svg);
    shape("rect", { x: left - 6, y: top - 6, width: this.width - left - right + 12, height: this.height - top - bottom + 12 }, frame);
    this.group = shape("g", { class: this.curves.length > 120 ? "many" : "", "clip-path": "url(#learning-frame)" }, svg);
    this.lines = this.joined.map((curve) => curve.map(([epoch, value]) => (value === null ? null : [this.x(epoch), this.y(value)])));
    for (let number = this.lines.length - 1; number >= 0; number--) this.marks[number] = this.drawLine(number);
    const over = shape("g", { "clip-path": "url(#learning-frame)" }, svg);
    if (this.data.configs[0].best) shape("path", { d: pathOf(this.lines[0]), class: "top" }, over);
    this.overlay = shape("path", { class: "lit" }, over);
    this.drawBest(svg);
  }

  drawLine(number) {
    const points = this.lines[number];
    const mark = shape("g", { class: "line", style: `stroke: ${this.tones[number]}` }, this.group);
    shape("path", { d: pathOf(points) }, mark);
    points.forEach((point, n) => { // a single value has no line
      if (point && !points[n - 1] && !points[n + 1]) shape("circle", { cx: point[0], cy: point[1], r: 1.8, style: `fill: ${this.tones[number]}` }, mark);
    });
    return mark;
  }

  drawBest(svg) {
    const { best, born } = this.data.configs[0];
    if (!best || this.metric !== this.data.run.metric) return;
    const [x, y] = [this.x(born + best[0]), this.y(best[1])];
    shape("circle", { cx: x, cy: y, r: 5.5, class: "top" }, svg);
    const leftwards = x > this.width / 2;
    const words = `best ${figure(best[1])} at epoch ${best[0]}${born ? `, ${born + best[0]} of its lineage` : ""}`;
    const label = shape("text", { x: x + (leftwards ? -8 : 8), y: y + (y > this.height / 2 ? -18 : 26), "text-anchor": leftwards ? "end" : "start", class: "label" }, svg, words);
    const box = label.getBBox();
    label.before(shape("rect", { x: box.x - 5, y: box.y - 2, width: box.width + 10, height: box.height + 4, rx: 4, class: "plate" }));
  }

  point(event) {
    const box = event.currentTarget.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const number = nearest(this.lines, x, y, (n) => this.isKept(n));
    this.hooks.light(number);
    if (number === null) { hideTip(); return; }
    let near = { x: Infinity, epoch: "-", value: null };
    const before = this.joined[number].length - this.curves[number].length;
    this.curves[number].forEach((point, n) => {
      const place = this.lines[number][n + before];
      if (place && Math.abs(place[0] - x) < Math.abs(near.x - x)) near = { x: place[0], epoch: point[0] - this.data.configs[number].born, value: point[1] };
    });
    this.hooks.tip(number, [["epoch", near.epoch], [this.metric, figure(near.value)]], event.clientX, event.clientY);
  }

  light(number) {
    super.light(number);
    if (!this.overlay) return;
    this.group.classList.toggle("dimmed", number !== null);
    this.overlay.setAttribute("d", number === null ? "" : pathOf(this.lines[number]));
  }

  describe() {
    const best = this.data.configs[0].best;
    const words = best ? ` The best, ${this.data.configs[0].id}, has ${this.data.run.metric} ${figure(best[1])} at epoch ${best[0]}.` : "";
    return `Learning curves: ${this.metric} after each epoch, ${this.first} to ${this.last}, of ${this.curves.length} configurations, from ${figure(this.values[0])} to ${figure(this.values.at(-1))}.${words} The leaderboard has the numbers.`;
  }

  note() {
    const thinned = this.data.curves[this.metric].some(([epochs], number) => epochs.length && epochs.length < this.data.configs[number].epoch);
    const words = [];
    if (this.cut) words.push(`${this.cut} values far beyond the others lie outside the picture.`);
    if (thinned) words.push("Long curves are drawn with some of their epochs: both ends, the best, and evenly between.");
    const lost = this.data.curves[this.metric].filter(([, values]) => values.includes(null)).length;
    if (lost) words.push(`${lost} ${lost === 1 ? "curve has epochs" : "curves have epochs"} without a finite number.`);
    return words.join(" ");
  }
}
