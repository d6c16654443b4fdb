// The timeline: a row for each worker on a canvas, so that tens of thousands of units are fast to draw.

const GUTTER = 92; // names of the workers
const AXIS = 22; // times, above the rows
const MAX_ZOOM = 200000;

// Units of one worker are disjoint and sorted by start, so both their starts and ends ascend.
function rowsOf(data) {
  const rows = data.workers.map(() => []);
  data.units.start.forEach((_, unit) => rows[data.units.worker[unit]].push(unit));
  return rows;
}

function firstEndingAfter(row, ends, time) {
  let low = 0, high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[row[middle]] <= time) low = middle + 1; else high = middle;
  }
  return low;
}

class Timeline {
  constructor(canvas, data, colours, hooks) {
    Object.assign(this, { canvas, data, colours, hooks });
    this.units = data.units;
    this.rows = rowsOf(data);
    this.ends = this.units.end.map((end, unit) => Math.max(end, this.units.start[unit]));
    this.length = Math.max(1e-6, this.ends.reduce((most, end) => Math.max(most, end), 0));
    this.rowHeight = data.workers.length <= 12 ? 34 : data.workers.length <= 40 ? 22 : 14;
    this.busy = this.rows.map((row) => row.reduce((sum, unit) => sum + this.ends[unit] - this.units.start[unit], 0));
    this.present = data.present.map((spans) => spans.reduce((sum, [from, until]) => sum + until - from, 0));
    this.lit = null;
    this.chosen = null;
    this.layer = new OffscreenCanvas(1, 1);
    [this.from, this.to] = [0, this.length]; // the visible part
    this.listen();
    this.resize();
  }

  // Times and positions

  x(time) { return GUTTER + ((time - this.from) / (this.to - this.from)) * this.width; }
  time(x) { return this.from + ((x - GUTTER) / this.width) * (this.to - this.from); }

  fit() { this.look(0, this.length); }

  look(from, span) {
    span = Math.min(this.length, Math.max(this.length / MAX_ZOOM, span));
    this.from = Math.min(Math.max(0, from), this.length - span);
    this.to = this.from + span;
    this.draw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    const span = (this.to - this.from) * factor;
    this.look(at - ((at - this.from) / (this.to - this.from)) * span, span);
  }

  unitAt(x, y) {
    const row = this.rows[Math.floor((y - AXIS) / this.rowHeight)];
    if (!row || x < GUTTER) return null;
    const slack = (this.to - this.from) / this.width; // also finds units narrower than a pixel
    const unit = row[firstEndingAfter(row, this.ends, this.time(x) - slack)];
    return unit !== undefined && this.units.start[unit] <= this.time(x) + slack ? unit : null;
  }

  // Drawing

  resize() {
    const ratio = window.devicePixelRatio || 1;
    const height = AXIS + this.rows.length * this.rowHeight + 2;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.width = this.canvas.clientWidth - GUTTER - 1; // cached: reading it makes the browser lay out the page
    this.draw();
  }

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = null; this.paint(); });
  }

  paint() {
    const pen = this.canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    this.readColours();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    this.paintTracks(pen);
    this.paintAxis(pen);
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, this.width + 1, this.canvas.clientHeight);
    pen.clip();
    pen.globalAlpha = this.lit === null ? 1 : 0.13;
    pen.drawImage(this.allUnits(ratio), 0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    pen.globalAlpha = 1;
    if (this.lit !== null) this.paintLit(pen);
    if (this.chosen !== null) this.paintChosen(pen);
    pen.restore();
  }

  // All units in their colours, cached until the view changes, so highlighting a model draws only its own units.
  allUnits(ratio) {
    const { width, height } = this.canvas;
    const seen = [this.from, this.to, width, height, this.tones["--track"]].join();
    if (this.seen === seen) return this.layer;
    this.seen = seen;
    Object.assign(this.layer, { width, height }); // this clears it
    const pen = this.layer.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.textBaseline = "middle";
    this.rows.forEach((row, number) => this.paintRow(pen, row, AXIS + number * this.rowHeight));
    return this.layer;
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const names = ["--track", "--hatch", "--ink", "--muted", "--line", "--panel", "--path", "--accent"];
    this.tones = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(name).trim()]));
  }

  colour(name) { return this.tones[name]; }

  hatch(pen) {
    const tile = new OffscreenCanvas(6, 6);
    const brush = tile.getContext("2d");
    brush.fillStyle = this.colour("--track");
    brush.fillRect(0, 0, 6, 6);
    brush.strokeStyle = this.colour("--hatch");
    brush.beginPath();
    for (const shift of [-6, 0, 6]) { brush.moveTo(shift, 6); brush.lineTo(shift + 6, 0); }
    brush.stroke();
    return pen.createPattern(tile, "repeat");
  }

  paintTracks(pen) {
    const idle = this.hatch(pen);
    pen.textBaseline = "middle";
    this.data.workers.forEach((worker, number) => {
      const top = AXIS + number * this.rowHeight;
      this.paintPresence(pen, number, top, idle);
      pen.font = `600 ${this.rowHeight < 20 ? 10 : 12}px system-ui, sans-serif`;
      pen.fillStyle = this.colour("--ink");
      pen.textAlign = "left";
      pen.fillText(worker, 0, top + this.rowHeight / 2, GUTTER - 46);
      pen.font = `${this.rowHeight < 20 ? 9 : 11}px system-ui, sans-serif`;
      pen.fillStyle = this.colour("--muted");
      pen.textAlign = "right";
      pen.fillText(this.busyShare(number), GUTTER - 8, top + this.rowHeight / 2, 46);
    });
  }

  // A line where the worker is absent, and hatching where it is present; its units cover the time that it is busy.
  paintPresence(pen, number, top, idle) {
    pen.strokeStyle = this.colour("--line");
    pen.beginPath();
    pen.moveTo(GUTTER, top + this.rowHeight / 2);
    pen.lineTo(GUTTER + this.width, top + this.rowHeight / 2);
    pen.stroke();
    pen.fillStyle = idle;
    for (const [from, until] of this.data.present[number]) {
      const left = Math.max(GUTTER, this.x(from));
      const right = Math.min(GUTTER + this.width, this.x(until));
      if (right > left) pen.fillRect(left, top + 1, right - left, this.rowHeight - 2);
    }
  }

  // Of the time for which the worker was present.
  busyShare(number) {
    if (!(this.present[number] > 0)) return "absent";
    return `${Math.round(Math.min(100, (100 * this.busy[number]) / this.present[number]))}% busy`;
  }

  paintAxis(pen) {
    const step = niceStep(this.to - this.from, this.width / 110);
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "left";
    for (let time = Math.ceil(this.from / step) * step; time <= this.to; time += step) {
      const x = Math.round(this.x(time)) + 0.5;
      pen.strokeStyle = this.colour("--line");
      pen.beginPath();
      pen.moveTo(x, 4);
      pen.lineTo(x, this.canvas.clientHeight);
      pen.stroke();
      pen.fillStyle = this.colour("--muted");
      if (x + 40 < GUTTER + this.width) pen.fillText(axisTime(time, step), x + 4, 10);
    }
  }

  paintRow(pen, row, top) {
    let covered = -Infinity;
    for (let n = firstEndingAfter(row, this.ends, this.from); n < row.length && this.units.start[row[n]] < this.to; n++) {
      const right = this.x(this.ends[row[n]]);
      if (right - covered < 0.5) continue; // hidden by its neighbour
      covered = right;
      this.paintUnit(pen, row[n], top);
    }
  }

  paintUnit(pen, unit, top) {
    const kind = this.units.kind[unit];
    const left = Math.max(GUTTER - 2, this.x(this.units.start[unit]));
    const whole = Math.min(GUTTER + this.width + 2, this.x(this.ends[unit])) - left;
    const width = Math.max(0.75, whole > 3 ? whole - 1 : whole);
    const height = this.rowHeight - 4;
    const colour = this.colours[this.units.config[unit]];
    pen.fillStyle = colour;
    if (kind === "train") {
      pen.fillRect(left, top + 2, width, height);
      this.paintHop(pen, unit, left, width, top);
      this.paintLabel(pen, unit, left, width, top);
    } else if (kind === "eval") {
      pen.fillStyle = this.colour("--track");
      pen.fillRect(left, top + 2, width, height);
      pen.fillStyle = colour;
      pen.fillRect(left, top + 2 + height * 0.55, width, height * 0.45);
    } else {
      pen.fillStyle = this.colour("--panel");
      pen.fillRect(left, top + 2, width, height);
      pen.strokeStyle = colour;
      pen.lineWidth = 1.5;
      pen.strokeRect(left + 0.75, top + 2.75, Math.max(0.5, width - 1.5), height - 1.5);
      pen.lineWidth = 1;
    }
  }

  // A unit starts with fetching the state.
  paintHop(pen, unit, left, width, top) {
    const hop = Math.min(width, this.x(this.units.start[unit] + this.units.hop_seconds[unit]) - left);
    if (hop < 1) return;
    pen.fillStyle = "#0005";
    pen.fillRect(left, top + 2, hop, this.rowHeight - 4);
  }

  paintLabel(pen, unit, left, width, top) {
    if (width < 46 || this.rowHeight < 20) return;
    pen.fillStyle = "#101418";
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "left";
    const words = `e${this.units.epoch[unit]} p${this.units.partition[unit]}`;
    pen.fillText(words, Math.max(left, GUTTER) + 5, top + this.rowHeight / 2 + 0.5, width - 8);
  }

  // One model: its units, and a line for each hop.
  paintLit(pen) {
    pen.textBaseline = "middle";
    this.units.config.forEach((config, unit) => {
      if (config === this.lit && this.ends[unit] > this.from && this.units.start[unit] < this.to) {
        this.paintUnit(pen, unit, AXIS + this.units.worker[unit] * this.rowHeight);
      }
    });
    pen.strokeStyle = this.colour("--path");
    pen.lineWidth = 1.2;
    pen.beginPath();
    const middle = (unit) => AXIS + (this.units.worker[unit] + 0.5) * this.rowHeight;
    this.pathOf(this.lit).forEach((unit, place, path) => {
      const before = path[place - 1];
      if (before === undefined || this.units.worker[unit] === this.units.worker[before]) return;
      pen.moveTo(this.x(this.ends[before]), middle(before));
      pen.lineTo(this.x(this.units.start[unit]), middle(unit));
    });
    pen.stroke();
    pen.lineWidth = 1;
  }

  pathOf(config) {
    const path = [];
    this.units.config.forEach((other, unit) => {
      if (other === config && this.units.kind[unit] === "train") path.push(unit);
    });
    return path;
  }

  paintChosen(pen) {
    const left = this.x(this.units.start[this.chosen]);
    const right = this.x(this.ends[this.chosen]);
    pen.strokeStyle = this.colour("--accent");
    pen.lineWidth = 2;
    pen.strokeRect(left, AXIS + this.units.worker[this.chosen] * this.rowHeight + 1, Math.max(2, right - left), this.rowHeight - 2);
    pen.lineWidth = 1;
  }

  // Wheel, pointer, keys

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      const span = this.to - this.from;
      if (sideways) this.look(this.from + ((event.deltaX || event.deltaY) / this.width) * span, span);
      else this.zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) * 0.003), this.time(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", () => { this.held = null; canvas.classList.remove("dragging"); });
    canvas.addEventListener("pointerleave", () => this.hooks.over(null));
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.choose(null));
    window.addEventListener("resize", () => this.resize());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  grab(event) {
    this.held = { x: event.offsetX, from: this.from };
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.classList.add("dragging");
  }

  move(event) {
    if (this.held) {
      const span = this.to - this.from;
      this.look(this.held.from - ((event.offsetX - this.held.x) / this.width) * span, span);
    }
    this.hooks.over(this.unitAt(event.offsetX, event.offsetY), event.clientX, event.clientY);
  }

  key(event) {
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    if (event.key in steps) this.walk(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(0.6, this.chosenTime());
    else if (event.key === "-") this.zoom(1 / 0.6, this.chosenTime());
    else if (event.key === "0" || event.key === "Home") this.fit();
    else if (event.key === "Escape") { this.choose(null); return; } // other charts clear their choice as well
    else return;
    event.preventDefault();
  }

  chosenTime() {
    return this.chosen === null ? undefined : this.units.start[this.chosen];
  }

  walk(along, across) {
    if (this.chosen === null) {
      const row = this.rows.find((candidate) => candidate.length);
      if (row) this.choose(row[Math.min(firstEndingAfter(row, this.ends, this.from), row.length - 1)]);
      return;
    }
    const number = this.units.worker[this.chosen];
    if (along) {
      const next = this.rows[number][this.rows[number].indexOf(this.chosen) + along];
      if (next !== undefined) this.choose(next);
      return;
    }
    for (let other = number + across; this.rows[other]; other += across) {
      const row = this.rows[other];
      if (!row.length) continue;
      this.choose(row[Math.min(firstEndingAfter(row, this.ends, this.chosenTime()), row.length - 1)]);
      return;
    }
  }

  choose(unit) {
    this.chosen = unit;
    if (unit !== null) {
      const span = this.to - this.from;
      if (this.units.start[unit] < this.from || this.ends[unit] > this.to) this.look(this.units.start[unit] - span / 3, span);
    }
    this.draw();
    this.hooks.chosen(unit);
  }

  placeOf(unit) {
    const box = this.canvas.getBoundingClientRect();
    return [box.left + Math.max(GUTTER, this.x(this.units.start[unit])), box.top + AXIS + (this.units.worker[unit] + 1) * this.rowHeight];
  }
}

function axisTime(time, step) {
  if (step < 0.001) return `${(time * 1e6).toFixed(0)} µs`;
  if (step < 0.5 && time < 1) return `${(time * 1e3).toFixed(0)} ms`;
  if (step < 1) return `${time.toFixed(step < 0.01 ? 3 : step < 0.1 ? 2 : 1)} s`;
  if (time < 120) return `${time.toFixed(0)} s`;
  const whole = Math.round(time);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
