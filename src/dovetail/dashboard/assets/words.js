"use strict";
// Numbers as people read them; what is not known is a dash.
(() => {
  const known = (value) => typeof value === "number" && Number.isFinite(value);
  const figures = (value, count) => {
    const text = Number(value.toPrecision(count));
    return Math.abs(text) < 1e-4 && text !== 0 ? text.toExponential(2) : text.toLocaleString("en-US", { maximumSignificantDigits: Math.max(count, Math.trunc(Math.log10(Math.abs(text) || 1)) + 1) });
  };
  const W = {};
  W.known = known;
  W.count = (value) => {
    if (!known(value)) return "–";
    const size = Math.abs(value);
    for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
      if (size >= limit) return figures(value / (unit === "k" ? 1e3 : limit), 4) + " " + unit;
    }
    return size >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en-US") : figures(value, 3);
  };
  W.figure = (value, count = 4) => (known(value) ? figures(value, count) : "–");
  W.usd = (value) => (known(value) ? "$" + (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : figures(value, 4)) : "–");
  W.percent = (part, digits = 1) => (known(part) ? (100 * part).toFixed(digits) + "%" : "–");
  W.bytes = (value) => {
    if (!known(value)) return "–";
    for (const [limit, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (Math.abs(value) >= limit) return figures(value / limit, 3) + " " + unit;
    return Math.round(value) + " B";
  };
  W.seconds = (value) => {
    if (!known(value)) return "–";
    if (value === 0) return "0 s";
    for (const [limit, scale, unit] of [[1e-3, 1e-6, "µs"], [1, 1e-3, "ms"], [120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]]) {
      if (value < limit) return figures(value / scale, 3) + " " + unit;
    }
    return figures(value / 86400, 3) + " d";
  };
  W.clock = (unix_s) => (known(unix_s) ? new Date(1000 * unix_s).toLocaleTimeString([], { hour12: false }) : "–");
  W.day = (unix_s) => (known(unix_s) ? new Date(1000 * unix_s).toLocaleString([], { dateStyle: "short", timeStyle: "short" }) : "–");
  W.times = (ratio) => (known(ratio) ? figures(ratio, 3) + "×" : "–");
  W.plural = (count, word) => count.toLocaleString("en-US") + " " + word + (count === 1 ? "" : "s");
  // A scale's round numbers between two values.
  W.ticks = (low, high, most) => {
    const rough = (high - low) / Math.max(1, most);
    if (!(rough > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
    return found;
  };
  // The same of seconds: whole minutes, hours and days.
  W.timeTicks = (low, high, most) => {
    const rough = (high - low) / Math.max(1, most);
    if (rough <= 30) return W.ticks(low, high, most);
    const step = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].find((each) => each >= rough) || 86400 * Math.ceil(rough / 86400);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high; at += step) found.push(at);
    return found;
  };
  // A moment since the beginning, as an axis has it: 1 h 20.
  W.moment = (seconds) => {
    if (!known(seconds) || Math.abs(seconds) < 120) return W.seconds(seconds);
    const minutes = Math.round(seconds / 60);
    if (minutes < 120) return minutes + " min";
    const hours = Math.trunc(minutes / 60), rest = minutes % 60;
    return hours < 72 ? hours + " h" + (rest ? " " + String(rest).padStart(2, "0") : "") : figures(hours / 24, 3) + " d";
  };
  D.words = W;
})();
