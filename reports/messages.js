// The words by which a message is recognised in another one: the rule of conformance/results/messages.py.
"use strict";

const WRAPPED = /^.*(?:status message:|error_message:|error in execution:|\[onnxruntimeerror\] : \d+ : \w+ :|\) ?, error |caused by:(?:.*\s\d+:(?=\s))?)/s;
const OF_ONE_CALL = /\b(?:node|name)\b[ :#]*(?:\([^()]*\)|\S+)|\[(?:with )?t\w* = [^\]]*\]|(?<!\w)'(?!s\b)[^'\n]{0,300}'(?!\w)|"[^"\n]{0,300}"|`[^`\n]{0,300}`/g;
const MESSAGE_WORD = /(?<![\w/.:])(?!(?:the|must|shall|should|cpu|cuda|webgpu|wasm|jsep|hip|rocm|qnn|dml)(?!\w))[a-z][a-z_]{2,}(?![\w/]|\.\w|::)/g;
const FEWEST_WORDS = 3;
const COMPARED = 8000; // characters

/** All words of a message, and those after all that it is wrapped in. */
function messageWords(text) {
  const lower = text.slice(0, COMPARED).toLowerCase();
  const wordsOf = (part) => new Set(part.replace(OF_ONE_CALL, " ").match(MESSAGE_WORD));
  return { every: wordsOf(lower), core: wordsOf(lower.replace(WRAPPED, "")) };
}

/** Whether all words of one set, if they are enough, are in the other. */
const areWithin = (core, every) => core.size >= FEWEST_WORDS && [...core].every((word) => every.has(word));

/** Whether one of two messages, without its wrapping, is a part of the other. */
const isLike = (one, other) => areWithin(one.core, other.every) || areWithin(other.core, one.every);

/** The search terms of a text: words in any order, and quoted phrases. */
const searchTerms = (text) => [...text.toLowerCase().matchAll(/"([^"]+)"?|\S+/g)].map(([word, quoted]) => quoted ?? word);

/** Shows the sections on what a message means that have all words of one of their beginnings; returns their number. */
function showMeanings(text) {
  const { every } = messageWords(text);
  const sections = [...document.querySelectorAll(".meanings > article")];
  for (const section of sections) {
    section.hidden = !section.dataset.beginnings.split("|").some((words) => words.split(" ").every((word) => every.has(word)));
  }
  const shown = sections.filter((section) => !section.hidden).length;
  document.querySelector(".meanings").hidden = !shown;
  return shown;
}
