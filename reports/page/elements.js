// Creating elements. Every text is set as text, never as markup.
"use strict";

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

/** The parts of nested lists, without the null and false that conditions leave. */
const flattened = (...parts) => parts.flat(Infinity).filter((part) => part != null && part !== false);

/** An element; `kind` is `tag.class.class`, children are elements, texts or nothing. */
function make(kind, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.filter(Boolean).join(" ");
  element.append(...flattened(children));
  return element;
}

/** A text of ours: what is between backticks is code. */
const prose = (text) => make("bdi", (text ?? "").split(/`([^`\n]+)`/).map((part, i) => (i % 2 ? make("code", part) : part)));

/** An SVG element with its attributes. */
function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function icon(name) {
  return draw("svg", { "aria-hidden": "true" }, draw("use", { href: `#${name}` }));
}

/** Whether a part of an element is on the screen. */
function isOnScreen(element) {
  const box = element?.getBoundingClientRect();
  return box != null && box.bottom > 0 && box.top < innerHeight;
}

function button(label, act, kind = "button.plain") {
  const element = make(kind, label);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
}

/** A link for a web address; any other text unchanged. */
function link(text) {
  if (!/^https?:\/\/[^\s]+$/i.test(text)) return make("bdi", text);
  const issue = text.match(/^https:\/\/github\.com\/([\w.-]+\/[\w.-]+)\/(?:issues|pull)\/(\d+)$/);
  const element = make("a", make("bdi", issue ? `${issue[1]}#${issue[2]}` : text));
  element.href = text;
  element.rel = "noopener noreferrer";
  return element;
}

/** Pairs as a description list; pairs without content are left out. */
function list(pairs) {
  return make(
    "dl",
    pairs
      .filter(([, content]) => content)
      .map(([term, content]) => make("div", make("dt", term), make("dd", content))),
  );
}

/** Preformatted text that the keyboard can scroll. */
function preformatted(text, label) {
  const element = make("pre", text);
  element.tabIndex = 0;
  element.setAttribute("role", "region");
  element.setAttribute("aria-label", label);
  return element;
}

/** A number with so many significant digits; the words nan, inf and -inf are kept. */
function number(value, digits = 4) {
  if (value == null) return "";
  if (typeof value === "string") return value;
  const short = Number(value.toPrecision(digits));
  const size = Math.abs(short);
  return size && (size < 1e-4 || size >= 1e7) ? short.toExponential().replace("e+", "e") : String(short);
}

/** A number with as many digits as distinguish it from another, at least seven. */
function distinguished(value, other) {
  let digits = 7;
  while (digits < 17 && value !== other && number(value, digits) === number(other, digits)) digits++;
  return number(value, digits);
}

/** A value of report/encoding.py: in `values`, a string inside an array or object is the place of a part. */
function decoded({ values, root }) {
  const made = [];
  const part = (one) => (typeof one === "string" ? made[parseInt(one, 36)] : one);
  for (const value of values) {
    if (typeof value === "string") made.push(value);
    else if (Array.isArray(value)) made.push(value.map(part));
    else made.push(Object.fromEntries(Object.entries(value).map(([name, one]) => [name, part(one)])));
  }
  return part(root);
}

/** The JSON in an element, base64 of gzip. Removes the element: it is read once. */
async function unpack(element) {
  const binary = atob(element.textContent);
  element.remove();
  const packed = new Uint8Array(binary.length); // a loop is ten times as fast as from()
  for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return decoded(JSON.parse(await new Response(stream).text()));
}

const plural = (count, noun, nouns = `${noun}s`) => `${count.toLocaleString("en")} ${count === 1 ? noun : nouns}`;

/**
 * Copies a text, and says so on the button that was pressed and to screen readers. Where the browser
 * has no clipboard or forbids it, selects the text in `shown`, so that Ctrl+C copies it.
 */
async function copy(text, control, shown) {
  control.dataset.label ??= control.textContent; // it may say "Copied" now
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    shown.hidden = false;
    getSelection().selectAllChildren(shown);
    done = document.execCommand("copy");
  }
  control.textContent = $("#said").textContent = done ? "Copied" : "Press Ctrl+C";
  setTimeout(() => {
    control.textContent = control.dataset.label;
    $("#said").textContent = "";
  }, 2000);
  return done;
}

/** A text with a button that copies it. */
function copyable(text, label) {
  const shown = preformatted(text, label);
  const control = button("Copy", () => copy(text, control, shown), "button.copy");
  control.setAttribute("aria-label", `Copy ${label}`);
  return make("div.command", shown, control);
}

/** Copies the page's address; `shown` shows it only if it cannot be copied. */
async function copyLink(control, shown) {
  shown.textContent = location.href;
  shown.hidden = await copy(location.href, control, shown);
}
