// Charts: two lines over the last minutes, drawn by hand

class Chart {
  constructor(name, keys, least, base, format) {
    this.canvas = $(name);
    this.keys = keys;
    this.least = least;
    this.base = base;
    this.format = format;
    this.points = [];
    this.hover = null;
    this.canvas.addEventListener("pointermove", (e) => this.point(e.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  add(...points) {
    this.points.push(...points);
    this.points.splice(0, this.points.length - POINTS);
    this.draw();
  }

  point(x) {
    const back = x === null ? null : Math.round((this.canvas.clientWidth - x) / this.step());
    this.hover = back;
    this.draw();
  }

  step() { return this.canvas.clientWidth / (POINTS - 1); }

  draw() {
    const { canvas, points } = this, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const top = this.top(), floor = height - 5, ceiling = 14;
    const x = (i) => width - (points.length - 1 - i) * this.step();
    const y = (value) => floor - (floor - ceiling) * value / top;

    pen.lineWidth = 1;
    pen.font = "11px " + colour("--sans");
    pen.textBaseline = "bottom";
    for (const part of [0, 0.5, 1]) {
      const at = Math.round(y(top * part)) + 0.5;
      pen.strokeStyle = colour(part ? "--soft" : "--line");
      pen.beginPath(); pen.moveTo(0, at); pen.lineTo(width, at); pen.stroke();
    }
    for (const [key, name] of this.keys) this.line(pen, key, colour(name), x, y, floor);
    pen.fillStyle = colour("--faint");
    pen.fillText(this.format(top), 0, ceiling - 1);
    this.mark(pen, x, y, floor, ceiling, colour);
  }

  line(pen, key, colour, x, y, floor) {
    if (!this.points.length) return;
    const path = new Path2D();
    this.points.forEach((point, i) => path.lineTo(x(i), y(point[key])));
    const area = new Path2D(path);
    area.lineTo(x(this.points.length - 1), floor);
    area.lineTo(x(0), floor);
    const fade = pen.createLinearGradient(0, 0, 0, floor);
    fade.addColorStop(0, colour + "33");
    fade.addColorStop(1, colour + "05");
    pen.fillStyle = fade;
    pen.fill(area);
    pen.strokeStyle = colour;
    pen.lineWidth = 1.7;
    pen.lineJoin = "round";
    pen.stroke(path);
  }

  mark(pen, x, y, floor, ceiling, colour) {  // what the pointer is on
    const at = this.hover === null ? -1 : this.points.length - 1 - this.hover;
    const point = this.points[at], words = ["last 3 minutes"];
    if (point) {
      const across = Math.round(x(at)) - 0.5;
      pen.strokeStyle = colour("--faint");
      pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(across, ceiling); pen.lineTo(across, floor); pen.stroke();
      words[0] = clock(point.when);
      for (const [key, name] of this.keys) {
        pen.fillStyle = colour(name);
        pen.beginPath(); pen.arc(across, y(point[key]), 3.5, 0, 7); pen.fill();
        words.splice(1, 0, `${key.split("_")[0]} ${this.format(point[key])}`);
      }
    }
    pen.fillStyle = colour(point ? "--text" : "--faint");
    pen.textAlign = "right";
    pen.fillText(words.join("  ·  "), this.canvas.clientWidth, ceiling - 1);
    pen.textAlign = "left";
  }

  top() {  // a round number, so that the scale seldom changes
    let most = this.least;
    for (const point of this.points) for (const [key] of this.keys) most = Math.max(most, point[key] || 0);
    const unit = this.base ** Math.floor(Math.log(most) / Math.log(this.base));
    const power = unit * 10 ** Math.floor(Math.log10(most / unit));
    return [1, 2, 3, 5, 8, 10].find((n) => n * power >= most) * power;
  }
}

const charts = [
  new Chart("msgs", [["out_msgs", "--out"], ["in_msgs", "--in"]], 10, 1000, short),
  new Chart("bytes", [["out_bytes", "--out"], ["in_bytes", "--in"]], 1024, 1024, size),
];
