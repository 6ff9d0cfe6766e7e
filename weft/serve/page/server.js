"use strict";
// Requests to the server. Whatever goes wrong becomes a sentence.

function sentence(text) {
  const trimmed = String(text).trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".");
}

/** The JSON that the server answers. An error has the message, and for `retryAfter` the seconds to wait, if they are known. */
async function ask(path, options = {}) {
  const response = await fetch(path, options).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("the server does not answer: it may be down, or this device offline");
  });
  const answer = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (response.ok && answer) return answer;
  const message = answer?.error ?? `the server's answer cannot be read; its status is ${response.status}`;
  throw Object.assign(new Error(message), { retryAfter: Number(response.headers.get("Retry-After")) });
}
