// The query: what the table shows. The address holds it, so that a link shows the same view:
// #ANCHOR?q=WORDS&verdict=wrong&verdict=crash&… ANCHOR is a theme, a row, a case or case@target.
"use strict";

const LISTS = ["verdict", "target", "theme", "tag", "dtype", "basis", "score", "wrong", "symptom", "history", "releases", "open", "shut"];
const FLAGS = ["differs", "unexpected", "silent", "changed"];

/** The query that shows every case, in the order of the corpus, all collapsed. */
function emptyQuery() {
  const query = { anchor: "", q: "", sort: "" };
  for (const name of LISTS) query[name] = new Set();
  for (const name of FLAGS) query[name] = false;
  return query;
}

/** Whether a query leaves cases out. */
function isFiltered(query) {
  const lists = ["verdict", "theme", "tag", "dtype", "basis", "score", "wrong", "symptom", "history"];
  return Boolean(query.q.trim()) || lists.some((name) => query[name].size) || FLAGS.some((name) => query[name]);
}

/** The query of an address; unknown parameters are ignored. */
function parseAddress(hash) {
  const [anchor, ...rest] = hash.replace(/^#/, "").split("?");
  const query = emptyQuery();
  try {
    query.anchor = decodeURIComponent(anchor);
  } catch {
    query.anchor = ""; // a malformed percent escape
  }
  const given = new URLSearchParams(rest.join("?"));
  query.q = given.get("q") ?? "";
  query.sort = given.get("sort") === "worst" ? "worst" : "";
  for (const name of LISTS) query[name] = new Set(given.getAll(name));
  for (const name of FLAGS) query[name] = given.has(name);
  return query;
}

function formatAddress(query) {
  const given = new URLSearchParams();
  if (query.q) given.set("q", query.q);
  for (const name of LISTS) for (const value of query[name]) given.append(name, value);
  for (const name of FLAGS) if (query[name]) given.set(name, "");
  if (query.sort) given.set("sort", query.sort);
  const anchor = encodeURIComponent(query.anchor).replace(/%(2F|3D|2C|3A|40)/g, decodeURIComponent);
  const parameters = given.toString().replace(/=(?=&|$)/g, "");
  return `#${anchor}${parameters && `?${parameters}`}`;
}
