// What is asked of the table, and how it stands in the address, so that a link shows what I see:
// #ANCHOR?q=WORDS&verdict=wrong,crash&… where ANCHOR is a theme, a row, a case or case@target.
"use strict";

const LISTS = ["verdict", "target", "theme", "tag", "dtype", "open", "shut"];
const FLAGS = ["differs", "unexpected", "silent", "changed"];

/** Nothing asked: every case, in the order of the corpus, all folded. */
function nothingAsked() {
  const asked = { anchor: "", q: "", sort: "" };
  for (const name of LISTS) asked[name] = new Set();
  for (const name of FLAGS) asked[name] = false;
  return asked;
}

/** Whether anything is asked that leaves cases out. */
function narrows(asked) {
  const lists = ["verdict", "theme", "tag", "dtype"];
  return Boolean(asked.q.trim()) || lists.some((name) => asked[name].size) || FLAGS.some((name) => asked[name]);
}

/** What an address asks; what it does not know it passes over. */
function fromAddress(hash) {
  const [anchor, ...rest] = hash.replace(/^#/, "").split("?");
  const asked = nothingAsked();
  try {
    asked.anchor = decodeURIComponent(anchor);
  } catch {
    asked.anchor = ""; // a % that is none of an address
  }
  const given = new URLSearchParams(rest.join("?"));
  asked.q = given.get("q") ?? "";
  asked.sort = given.get("sort") === "worst" ? "worst" : "";
  for (const name of LISTS) asked[name] = new Set(given.getAll(name));
  for (const name of FLAGS) asked[name] = given.has(name);
  return asked;
}

function toAddress(asked) {
  const given = new URLSearchParams();
  if (asked.q) given.set("q", asked.q);
  for (const name of LISTS) for (const value of asked[name]) given.append(name, value);
  for (const name of FLAGS) if (asked[name]) given.set(name, "");
  if (asked.sort) given.set("sort", asked.sort);
  const anchor = encodeURIComponent(asked.anchor).replace(/%(2F|3D|2C|3A|40)/g, decodeURIComponent);
  const query = given.toString().replace(/=(?=&|$)/g, "");
  return `#${anchor}${query && `?${query}`}`;
}
