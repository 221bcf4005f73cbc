// What the other scripts stand on: settings, elements, numbers and times for people, light and dark.
"use strict";

// How much is asked for, shown and kept.
const EVERY = 1000, PATIENCE = 5000, POINTS = 180;
const TOPICS = 60, CONNECTIONS = 60;
const WATCH_RATE = 50, EVENT_RATE = 20;
const KEPT_MESSAGES = 150, KEPT_EVENTS = 150;
const LONGEST = 20000, COLOURED = 6000, LINE = 64;
const EVENTS = "!system/events/";

const $ = (id) => document.getElementById(id);

function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function say(element, text) {  // touches the page only when something changed
  if (element.textContent !== text) element.textContent = text;
}

// Numbers and times for people

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const number = (n) => whole.format(n);

function short(n) {
  if (n < 10000) return n < 10 && n % 1 ? n.toFixed(1) : number(n);
  const unit = n < 1e6 ? [1e3, "k"] : n < 1e9 ? [1e6, "M"] : [1e9, "G"];
  const scaled = n / unit[0];
  return scaled.toFixed(scaled < 100 && scaled % 1 ? 1 : 0) + " " + unit[1];
}

function size(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1000 && i < units.length - 1) { n /= 1024; i += 1; }
  return (i && n < 100 && n % 1 ? n.toFixed(1) : number(n)) + " " + units[i];
}

const clock = (date) => date.toLocaleTimeString("en-GB");
const exactly = (date) => clock(date) + "." + String(date.getMilliseconds()).padStart(3, "0");

function age(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 60) return Math.floor(seconds) + "s";
  if (seconds < 3600) return Math.floor(seconds / 60) + "m";
  if (seconds < 86400) return Math.floor(seconds / 3600) + "h";
  return Math.floor(seconds / 86400) + "d";
}

const moment = (ts) => new Date(typeof ts === "number" ? ts * 1000 : ts ?? Date.now());

// Light and dark

const dark = matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  const theme = localStorage.getItem("rtmb.theme") || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  for (const chart of charts) chart.draw();
}

function switchTheme() {
  const now = document.documentElement.dataset.theme;
  localStorage.setItem("rtmb.theme", now === "dark" ? "light" : "dark");
  applyTheme();
}
